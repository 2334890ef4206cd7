"""For Starlette and FastAPI: an App as long as the web application runs, and events for browsers.

Events are sent as Server-Sent Events, which `EventSource` of a browser reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import StreamingResponse

from notifyq.app import App
from notifyq.errors import (
    ConfigurationError,
    ForeignPositionError,
    InvalidArgumentError,
    StreamNotFoundError,
)
from notifyq.models.event import Event
from notifyq.models.message import ArchivedMessage
from notifyq.models.payload import json_line, json_text
from notifyq.queues.results import Handle
from notifyq.streams.tail import Tail
from notifyq.telemetry import log_events

__all__ = ["EventStream", "get_app", "lifespan", "output_events", "stream_events"]

_KEEP_ALIVE = 15.0
"""Seconds of silence before a comment is sent, which a proxy and a closed browser notice."""

_State = Mapping[str, Any]


def lifespan(
    app: App,
    inner: Callable[[Any], AbstractAsyncContextManager[_State | None]] | None = None,
) -> Callable[[Any], AbstractAsyncContextManager[_State]]:
    """Make a lifespan that connects the App at the start and closes it at the end.

    `inner` is a lifespan of your own, which runs inside of it. The start fails if the database
    cannot be reached.
    """

    @asynccontextmanager
    async def run(web: Any) -> AsyncIterator[_State]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app)
            state = await stack.enter_async_context(inner(web)) if inner else None
            yield {**(state or {}), "notifyq": app}

    return run


def get_app(connection: HTTPConnection) -> App:
    """Return the App of `lifespan`, for a request or a web socket: a dependency of FastAPI."""
    app = getattr(connection.state, "notifyq", None)
    if not isinstance(app, App):
        raise ConfigurationError(
            "this web application runs without the lifespan of notifyq: give it "
            "lifespan=notifyq.contrib.starlette.lifespan(app)"
        )
    return app


async def output_events(request: Request, message_id: int) -> EventStream:
    """Send what the handler of a message emits, and at the end an event `end` with its status.

    The id of an event is the number of its chunk: a browser that connects again continues behind
    it. Answers 404 for an unknown message. Whether this user may see the message is for you to
    check.
    """
    app = get_app(request)
    after = request.headers.get("last-event-id", "0")
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise HTTPException(400, "Last-Event-ID is no number of a chunk")
    if await app.archive.find(message_id) is None:
        raise HTTPException(404, f"there is no message {message_id}")
    return EventStream(_output(app, message_id, int(after)))


async def stream_events(
    request: Request, stream: str, *, only: Callable[[Event], bool] | None = None
) -> EventStream:
    """Send the events of a stream that are committed from now on, or those that `only` accepts.

    A browser that connects again continues where it was, as far as events are kept. The data of an
    event has its `id`, `type`, `key`, `created_at` and `message`. Answers 404 for an unknown
    stream. Each open response holds a connection to the database.
    """
    app = get_app(request)
    last = request.headers.get("last-event-id")
    try:
        await app.streams.info(stream)
        seen = await (app.archive.known_position(last) if last else app.archive.position())
    except StreamNotFoundError as error:
        raise HTTPException(404, f"there is no stream {stream!r}") from error
    except (ForeignPositionError, InvalidArgumentError) as error:
        raise HTTPException(400, "Last-Event-ID is no position of this server") from error
    return EventStream(_stream(Tail(app.database, stream, seen=seen, telemetry=log_events), only))


class EventStream(StreamingResponse):
    """A response of Server-Sent Events; it keeps idle connections alive."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        self._events = _kept_alive(events)
        # nginx would collect the events in a buffer.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._events, headers=headers)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Respond; a HEAD request gets no events and keeps nothing open."""
        if scope["method"] == "HEAD":
            await self._events.aclose()
        await super().__call__(scope, receive, send)

    async def stream_response(self, send: Any) -> None:
        """Send the events; close what they come from when the browser is gone."""
        async with aclosing(self._events):
            await super().stream_response(send)


async def _output(app: App, message_id: int, after: int) -> AsyncGenerator[str, None]:
    async for chunk in Handle(message_id, app.results).output(after):
        yield _event(json_text(chunk.value), id_=chunk.number)
    ended = await app.archive.find(message_id)
    status = ended.status if isinstance(ended, ArchivedMessage) else None
    yield _event(json_text({"status": status}), name="end")


async def _stream(tail: Tail, only: Callable[[Event], bool] | None) -> AsyncGenerator[str, None]:
    yield f"id: {tail.position}\n\n"
    async with aclosing(tail.events()) as polls:
        async for found in polls:
            events = [_event(_shown(it)) for it in found if only is None or only(it)]
            # The position is behind all events of the poll: after a break within, all come again.
            yield "".join(events) + f"id: {tail.position}\n\n"


def _shown(event: Event) -> str:
    shown = {name: getattr(event, name) for name in ("id", "type", "key", "message")}
    return json_line(shown | {"created_at": event.created_at.isoformat()}, "message")


def _event(data: str, *, id_: int | None = None, name: str | None = None) -> str:
    head = (f"id: {id_}\n" if id_ is not None else "") + (f"event: {name}\n" if name else "")
    return f"{head}data: {data}\n\n"


async def _kept_alive(events: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """Yield the events, and a comment after each silence."""
    following = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            while not (await asyncio.wait([following], timeout=_KEEP_ALIVE))[0]:
                yield ": keep-alive\n\n"
            if (event := following.result()) is None:
                return
            following = asyncio.ensure_future(anext(events, None))
            yield event
    finally:
        # This ends the generator in a task of its own: in the one of the response, the server would
        # cancel the cleanup, too.
        following.cancel()
