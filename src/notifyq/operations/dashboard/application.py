"""The application: routes, who may ask them, and what is said when something fails."""

from __future__ import annotations

import asyncio
import hmac
import logging
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import asyncpg
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from notifyq.errors import DatabaseError, NotifyqError, reason
from notifyq.operations.dashboard.access import LIFE
from notifyq.operations.dashboard.failures import explain
from notifyq.operations.dashboard.guard import Guard, is_own
from notifyq.operations.dashboard.pages import SECTIONS
from notifyq.operations.dashboard.view import Desk, View, read_form

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from notifyq.operations.dashboard.section import Entry

log = logging.getLogger("notifyq.dashboard")

_LONGEST = 40.0
"""Seconds after which a page gives up; its statements have given up before."""
_MOST_BODY = 1 << 20


class _Files(StaticFiles):
    """Files of ours; their addresses change with their contents."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


def build(desk: Desk) -> Starlette:
    """Make the application of a desk."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await desk.live.end()
        await desk.database.close()
        await desk.writer.close()

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes: list[Route | Mount] = [
        Route(
            entry.path,
            _endpoint(desk, section.name, entry),
            methods=["POST"] if entry.is_action else ["GET"],
            name=entry.name,
        )
        for section in SECTIONS
        for entry in section.entries
    ]
    routes += [
        Route("/healthz", healthz, name="healthz"),
        Mount("/static", _Files(directory=str(files("notifyq.operations.dashboard") / "static"))),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, settings=desk.settings)],
        exception_handlers={HTTPException: _refuser(desk)},
        max_body_size=_MOST_BODY,
    )
    app.state.desk = desk
    return app


def _endpoint(desk: Desk, section: str, entry: Entry) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        view, is_new = _enter(desk, request, section)
        response = await _answer(view, entry)
        if is_new and desk.sessions.cookie not in str(response.headers.getlist("set-cookie")):
            view.set_cookie(response, desk.sessions.cookie, desk.sessions.write(view.session), LIFE)
        return response

    return endpoint


async def _answer(view: View, entry: Entry) -> Response:
    try:
        async with asyncio.timeout(_LONGEST):
            if not entry.is_open and not view.is_open and view.user is None:
                return _send_to_login(view, entry)
            if entry.is_action:
                await _check_form(view, entry)
            return await entry.handler(view)
    except (NotifyqError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        if entry.is_action and isinstance(error, DatabaseError):
            # What a function refuses is an answer to the form, not a failure.
            return view.back(error=reason(error))
        status, title, text = explain(error)
        return _failed(view, status, title, text)
    except HTTPException as error:
        return _failed(view, error.status_code, *_title(error))
    except Exception:
        log.exception("%s %s has failed", view.request.method, view.request.url.path)
        return _failed(view, 500, "Something is broken", "The log of the dashboard has the cause.")


def _enter(desk: Desk, request: Request, section: str) -> tuple[View, bool]:
    """Who asks: the view of the request, and whether its session is a new one."""
    session = desk.sessions.read(request.cookies.get(desk.sessions.cookie))
    is_new = session is None
    session = session or desk.sessions.begin(None)
    return View(request, desk, session, desk.user_of(request, session), section), is_new


def _send_to_login(view: View, entry: Entry) -> Response:
    if view.desk.users is None:
        raise HTTPException(403, "the application around this dashboard does not know you")
    if entry.is_action or entry.name == "live":
        raise HTTPException(401, "log in first")
    return view.redirect(view.url("login", back=view.here()))


async def _check_form(view: View, entry: Entry) -> None:
    if not is_own(view.request, view.desk.settings):
        raise HTTPException(403, "this form was not sent by a page of this dashboard")
    view.form = await read_form(view.request)
    sent = view.form.get("csrf", "").encode()
    if not hmac.compare_digest(sent, view.token.encode()):
        raise HTTPException(403, "this form is out of date: go back, reload the page, try again")
    if entry.changes and not view.may_write:
        raise HTTPException(
            403,
            "this dashboard only reads: it was started without --allow-writes"
            if not view.desk.settings.allow_writes
            else f"the user {view.actor} may only read",
        )


def _failed(view: View, status: int, title: str, text: str) -> Response:
    response = view.render("failure.html", status=status, title=title, text=text, code=status)
    if status == 503 and view.request.method == "GET":
        # Also without scripts it comes back by itself.
        response.headers["refresh"] = "5"
    return response


def _title(error: HTTPException) -> tuple[str, str]:
    titles = {400: "That is not an address of ours", 401: "Not logged in", 403: "Refused"}
    titles |= {404: "There is nothing here", 405: "Refused", 413: "Too large"}
    text = error.detail
    if error.status_code == 404 and text == "Not Found":
        text = "no page has this address"
    return titles.get(error.status_code, "That did not work"), f"{text[:1].upper()}{text[1:]}."


def _refuser(desk: Desk) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101  it is registered for these
        view, _ = _enter(desk, request, "")
        if view.user is None and not view.is_open:
            return PlainTextResponse(f"{error.detail}\n", error.status_code)
        return _failed(view, error.status_code, *_title(error))

    return refuse
