"""Streams: how far their subscribers are, and where they go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from notifyq.database import sql
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.section import Section

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View

section = Section("streams", "Streams", key="s")


@section.page("/streams", "streams")
async def streams(view: View) -> Response:
    """All streams, each with its subscribers."""
    name = view.query("name") or None
    rows, subscriptions, batches, forwards = await asyncio.gather(
        view.database.fetch(sql.STREAM_INFO, name),
        view.database.fetch(sql.SUBSCRIPTION_INFO, name, None),
        view.database.fetch(statements.OPEN_BATCHES, name),
        view.database.fetch(sql.FORWARDS, name),
    )
    into = {(it["stream"], it["subscriber"]): it for it in forwards}
    return view.render(
        "streams.html",
        title="Streams",
        streams=[
            (row, [it for it in subscriptions if it["stream"] == row["stream"]]) for row in rows
        ],
        open_batches=batches,
        forwards=into,
    )


@section.action("/streams/pause", "pause_stream")
async def pause(view: View) -> Response:
    """Hand out no more of a stream."""
    name = view.form.get("name", "")
    changed = await view.change("stream.pause", name, sql.PAUSE_STREAM)
    return view.back(f"Paused {name}." if changed else f"{name} was paused already.")


@section.action("/streams/resume", "resume_stream")
async def resume(view: View) -> Response:
    """Hand out a stream again."""
    name = view.form.get("name", "")
    changed = await view.change("stream.resume", name, sql.RESUME_STREAM)
    return view.back(f"Resumed {name}." if changed else f"{name} was not paused.")


@section.action("/streams/seek", "seek_stream")
async def seek(view: View) -> Response:
    """Have a subscriber go on elsewhere: what is open is dropped, what lies between is skipped."""
    stream, subscriber = view.form.get("stream", ""), view.form.get("subscriber", "")
    place = view.form.get("place", "").strip()
    if not place:
        raise HTTPException(400, "say where to: start, now, an instant or the number of a tick")
    if not view.is_confirmed:
        return view.confirm(
            f"Move {subscriber} of {stream} to {place}?",
            [
                "With the next batch it goes on there: events between are seen again, or never.",
                "A batch that it has open is dropped, and so are events that it was to see again.",
            ],
            action=view.url("seek_stream"),
            button="Move",
            fields={"stream": stream, "subscriber": subscriber, "place": place},
        )
    async with view.acting("stream.seek", f"{stream} {subscriber}", to=place) as act:
        await act.connection.execute(sql.SEEK, stream, subscriber, place)
    return view.back(f"{subscriber} of {stream} goes on at {place}.")
