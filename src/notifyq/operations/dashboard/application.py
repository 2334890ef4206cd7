"""The application: routes, access, and the pages about errors."""

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import asyncpg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from notifyq.errors import DatabaseError, NotifyqError, reason
from notifyq.operations.dashboard.failures import explain, sentence
from notifyq.operations.dashboard.guard import Guard, is_same_origin
from notifyq.operations.dashboard.section import Entry
from notifyq.operations.dashboard.sessions import LIFE
from notifyq.operations.dashboard.view import Dashboard, View, read_form

log = logging.getLogger("notifyq.dashboard")

_LONGEST = 40.0
"""Seconds after which a page is cancelled; its statements are cancelled earlier."""
_MOST_BODY = 1 << 20


class _Files(StaticFiles):
    """Static files; their addresses change with their contents."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def build(dashboard: Dashboard) -> Starlette:
    """Make the application."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await dashboard.live.end()
        await dashboard.database.close()
        await dashboard.writer.close()

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes: list[Route | Mount] = [
        Route(
            entry.path,
            _endpoint(dashboard, section.name, entry),
            methods=["POST"] if entry.is_action else ["GET"],
            name=entry.name,
        )
        for section in dashboard.sections
        for entry in section.entries
    ]
    routes += [
        Route("/healthz", healthz, name="healthz"),
        Mount("/static", _Files(directory=str(files("notifyq.operations.dashboard") / "static"))),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, hosts=dashboard.hosts, base_path=dashboard.base_path)],
        exception_handlers={HTTPException: _refusal(dashboard)},
        max_body_size=_MOST_BODY,
    )
    app.state.dashboard = dashboard
    return app


def _endpoint(
    dashboard: Dashboard, section: str, entry: Entry
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        view, is_new = _enter(dashboard, request, section)
        response = await _respond(view, entry)
        if is_new and dashboard.sessions.cookie not in str(response.headers.getlist("set-cookie")):
            view.set_cookie(
                response, dashboard.sessions.cookie, dashboard.sessions.write(view.session), LIFE
            )
        return response

    return endpoint


async def _respond(view: View, entry: Entry) -> Response:
    try:
        async with asyncio.timeout(_LONGEST):
            if not entry.is_open and not view.is_open and view.user is None:
                return _send_to_login(view, entry)
            if entry.is_action:
                await _check_form(view, entry)
            return await entry.handler(view)
    except (NotifyqError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if entry.is_action and isinstance(error, DatabaseError):
            # An SQL function refused the input of the form.
            return view.back(error=reason(error))
        status, title, text = explain(error)
        return _failed(view, status, title, text)
    except HTTPException as error:
        return _refused(view, error)
    except Exception:
        log.exception("%s %s failed", view.request.method, view.request.url.path)
        return _failed(view, 500, "Internal error", "See the log of the dashboard for the cause.")


def _enter(dashboard: Dashboard, request: Request, section: str) -> tuple[View, bool]:
    """The view of a request, and whether its session is new."""
    session = dashboard.sessions.read(request.cookies.get(dashboard.sessions.cookie))
    is_new = session is None
    session = session or dashboard.sessions.begin(None)
    return View(request, dashboard, session, dashboard.user_of(request, session), section), is_new


def _send_to_login(view: View, entry: Entry) -> Response:
    if view.dashboard.users is None:
        raise HTTPException(
            403, "the surrounding application does not permit you to see this dashboard"
        )
    if entry.is_action or entry.name == "live":
        raise HTTPException(401, "log in first")
    return view.redirect(view.url("login", back=view.here()))


async def _check_form(view: View, entry: Entry) -> None:
    if not is_same_origin(view.request, view.dashboard.hosts):
        raise HTTPException(403, "the form was not sent by a page of this dashboard")
    view.form = await read_form(view.request)
    sent = view.form.get("csrf", "").encode()
    if not hmac.compare_digest(sent, view.token.encode()):
        raise HTTPException(403, "the form is out of date: go back, reload the page and try again")
    if entry.changes and not view.may_write:
        raise HTTPException(
            403,
            "this dashboard is read-only: it was started without --allow-writes"
            if not view.dashboard.allow_writes
            else f"the user {view.actor} may only read",
        )


def _failed(view: View, status: int, title: str, text: str) -> Response:
    response = view.render("failure.html", status=status, title=title, text=text, code=status)
    if status == 503 and view.request.method == "GET":
        # Reloads the page also without scripts.
        response.headers["refresh"] = "5"
    return response


def _refused(view: View, error: HTTPException) -> Response:
    titles = {400: "Invalid request", 401: "Not logged in", 403: "Not permitted", 404: "Not found"}
    titles |= {405: "Not permitted", 413: "Too large"}
    status, text = error.status_code, error.detail
    if status == 404 and text == "Not Found":
        text = "no page has this address"
    return _failed(view, status, titles.get(status, "Error"), sentence(text))


def _refusal(dashboard: Dashboard) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  it is registered for these
        view, _ = _enter(dashboard, request, "")
        if view.user is None and not view.is_open:
            return PlainTextResponse(f"{error.detail}\n", error.status_code)
        return _refused(view, error)

    return refuse
