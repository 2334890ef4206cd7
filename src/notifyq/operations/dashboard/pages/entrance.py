"""The entrance: log in and out, the colours, and the stream of live figures."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, StreamingResponse

from notifyq.operations.dashboard.access import KNOWN, LIFE
from notifyq.operations.dashboard.live import MOST_CLIENTS
from notifyq.operations.dashboard.section import Section

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View

log = logging.getLogger("notifyq.dashboard")

section = Section("entrance")

# Each try takes 64 MB and a tenth of a second of a processor: not more than two at a time.
_trying = asyncio.Semaphore(2)


@section.page("/login", "login", is_open=True)
async def login(view: View) -> Response:
    """Ask for name and password."""
    return _ask(view)


@section.action("/login", "enter", changes=False, is_open=True)
async def enter(view: View) -> Response:
    """Let in who has the password."""
    desk = view.desk
    if desk.users is None:
        return view.redirect(view.url("overview"))
    name = view.form.get("name") or desk.users.only or ""
    credential = desk.users.credential(name)
    known = f"{desk.sessions.cookie}_known"
    browser = desk.sessions.known(view.request.cookies.get(known), name, credential)
    wait = desk.attempts.wait(view.address, browser)
    if wait > 0:
        response = _ask(view, f"Too many attempts: wait {math.ceil(wait)} s.", 429)
        response.headers["retry-after"] = str(math.ceil(wait))
        return response
    # Counted before it is tried: many at once would all be let try.
    desk.attempts.fail(view.address, name, browser)
    async with _trying:
        user = await asyncio.to_thread(desk.users.check, name, view.form.get("password", ""))
    if user is None:
        log.warning("a login from %r has failed", view.address)
        return _ask(view, "That is not right.", 401)
    desk.attempts.clear(view.address, name, browser)
    if view.session.user is not None:
        desk.sessions.end(view.session)
    credential = desk.users.credential(name) or ""
    response = view.redirect(view.safe(view.form.get("back", "")))
    value = desk.sessions.write(desk.sessions.begin(user.name, credential))
    view.set_cookie(response, desk.sessions.cookie, value, LIFE)
    view.set_cookie(response, known, desk.sessions.know(user.name, credential), KNOWN)
    return response


@section.action("/logout", "leave", changes=False)
async def leave(view: View) -> Response:
    """End the session."""
    view.desk.sessions.end(view.session)
    response = view.redirect(view.url("login"))
    response.delete_cookie(view.desk.sessions.cookie, path=view.cookie_path)
    return response


@section.action("/theme", "theme", changes=False, is_open=True)
async def theme(view: View) -> Response:
    """Keep which colours are wanted; with scripts the page does it by itself."""
    following = {"system": "dark", "dark": "light", "light": "system"}
    response = view.back()
    response.set_cookie(
        "notifyq_theme", following[view.theme], max_age=365 * 86400, path=view.cookie_path,
        samesite="strict",
    )  # fmt: skip
    return response


@section.page("/live", "live")
async def live(view: View) -> Response:
    """The live figures as server-sent events."""
    if view.desk.live.listeners >= MOST_CLIENTS:
        return PlainTextResponse("too many pages are open\n", 503)
    return StreamingResponse(
        view.desk.live.stream(lambda: view.is_still_inside),
        media_type="text/event-stream",
        # nginx would gather them otherwise.
        headers={"x-accel-buffering": "no"},
    )


def _ask(view: View, problem: str = "", status: int = 200) -> Response:
    users = view.desk.users
    back = view.form.get("back") or view.query("back")
    return view.render(
        "login.html",
        status=status,
        problem=problem,
        back=view.safe(back),
        only=users.only if users else None,
    )
