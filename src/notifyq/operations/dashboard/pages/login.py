"""Login and logout, the theme, and the stream of live values."""

import asyncio
import logging
import math

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from notifyq.operations.dashboard.live import MOST_CLIENTS
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.sessions import KNOWN, LIFE
from notifyq.operations.dashboard.view import View

log = logging.getLogger("notifyq.dashboard")

section = Section("login")

# Each attempt takes 64 MB and 0.1 s of a processor.
_trying = asyncio.Semaphore(2)


@section.page("/login", "login", is_open=True)
async def login(view: View) -> Response:
    """The form for name and password."""
    return _form(view)


@section.action("/login", "enter", changes=False, is_open=True)
async def enter(view: View) -> Response:
    """Log a user in by the password."""
    dashboard = view.dashboard
    if dashboard.users is None:
        return view.redirect(view.url("overview"))
    name = view.form.get("name") or dashboard.users.only or ""
    credential = dashboard.users.credential(name)
    known = f"{dashboard.sessions.cookie}_known"
    browser = dashboard.sessions.known(view.request.cookies.get(known), name, credential)
    wait = dashboard.attempts.wait(view.address, browser)
    if wait > 0:
        response = _form(view, f"Too many failed attempts. Wait {math.ceil(wait)} s.", 429)
        response.headers["retry-after"] = str(math.ceil(wait))
        return response
    # Counted before the check, or concurrent attempts would not be limited.
    dashboard.attempts.fail(view.address, name, browser)
    async with _trying:
        user = await asyncio.to_thread(dashboard.users.check, name, view.form.get("password", ""))
    if user is None:
        log.warning("login failed from %r", view.address)
        return _form(view, "The name or the password is wrong.", 401)
    dashboard.attempts.clear(view.address, name, browser)
    if view.session.user is not None:
        dashboard.sessions.end(view.session)
    credential = dashboard.users.credential(name) or ""
    response = view.redirect(view.safe(view.form.get("back", "")))
    value = dashboard.sessions.write(dashboard.sessions.begin(user.name, credential))
    view.set_cookie(response, dashboard.sessions.cookie, value, LIFE)
    view.set_cookie(response, known, dashboard.sessions.know(user.name, credential), KNOWN)
    return response


@section.action("/logout", "leave", changes=False)
async def leave(view: View) -> Response:
    """End the session."""
    view.dashboard.sessions.end(view.session)
    response = view.redirect(view.url("login"))
    response.delete_cookie(view.dashboard.sessions.cookie, path=view.cookie_path)
    return response


@section.action("/theme", "theme", changes=False, is_open=True)
async def theme(view: View) -> Response:
    """Switch the theme; with scripts the page does it."""
    following = {"system": "dark", "dark": "light", "light": "system"}
    response = view.back()
    response.set_cookie(
        "notifyq_theme", following[view.theme], max_age=365 * 86400, path=view.cookie_path,
        samesite="strict",
    )  # fmt: skip
    return response


@section.page("/live", "live")
async def live(view: View) -> Response:
    """The live values as server-sent events."""
    if view.request.method == "HEAD":
        return Response(media_type="text/event-stream")
    if view.dashboard.live.listeners >= MOST_CLIENTS:
        return PlainTextResponse("too many pages are open\n", 503)
    return StreamingResponse(
        view.dashboard.live.stream(lambda: view.is_still_inside),
        media_type="text/event-stream",
        # Otherwise nginx buffers the events.
        headers={"x-accel-buffering": "no"},
    )


def _form(view: View, problem: str = "", status: int = 200) -> Response:
    users = view.dashboard.users
    back = view.form.get("back") or view.query("back")
    return view.render(
        "login.html",
        status=status,
        problem=problem,
        back=view.safe(back),
        only=users.only if users else None,
    )
