"""Streams: how far their subscribers are, and moving them."""

import asyncio

from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.database import statements as sql
from notifyq.database.installs import ours
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View

section = Section("streams", "Streams", key="s")
section.switch("stream.pause", sql.PAUSE_STREAM, "Paused")
section.switch("stream.resume", sql.RESUME_STREAM, "Resumed")


@section.page("/streams", "streams")
async def streams(view: View) -> Response:
    """All streams, each with its subscribers."""
    name = view.query("name") or None
    part, fetch = view.parts.read, view.database.fetch
    rows, subscriptions, batches, forwards = await asyncio.gather(
        part("streams", fetch(sql.STREAM_INFO, name), []),
        part("subscriptions", fetch(sql.SUBSCRIPTION_INFO, name, None), []),
        part("batches", fetch(statements.OPEN_BATCHES, name), []),
        part("forwards", fetch(sql.FORWARDS, name), []),
    )
    view.parts.check()
    return view.render(
        "streams.html",
        title="Streams",
        streams=[
            (row, [it for it in subscriptions if it["stream"] == row["stream"]]) for row in rows
        ],
        open_batches=batches,
        forwards={(it["stream"], it["subscriber"]): it for it in forwards},
    )


@section.action("/streams/seek", "seek_stream")
async def seek(view: View) -> Response:
    """Move a subscriber: its open batch is dropped, and events in between may be skipped."""
    stream, subscriber = view.form.get("stream", ""), view.form.get("subscriber", "")
    position = view.form.get("position", "").strip()
    if not position:
        raise HTTPException(400, "the position is missing: start, now, an instant or a tick")
    if not view.is_confirmed:
        return view.confirm(
            f"Move {subscriber} of {stream} to {position}?",
            [
                "The next batch begins there: events in between are delivered again, or skipped.",
                "Its open batch and its pending retries are dropped.",
            ],
            button="Move",
            fields={"stream": stream, "subscriber": subscriber, "position": position},
        )
    async with view.acting("stream.seek", f"{stream} {subscriber}", to=position) as act:
        await act.connection.execute(ours(act.connection, sql.SEEK), stream, subscriber, position)
    return view.back(f"{subscriber} of {stream} continues at {position}.")
