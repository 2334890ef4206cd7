"""`notifyq stream forward`, `unforward`, `forwards`: from a stream into a queue."""

from __future__ import annotations

from typing import Annotated

import typer

from notifyq.cli.audited import acting
from notifyq.cli.output import (
    DsnOption,
    FilterOption,
    JsonOption,
    open_database,
    out,
    print_rows,
    run,
)
from notifyq.streams.admin import Streams

_Stream = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
_Subscriber = Annotated[str, typer.Argument(help="Name of the subscriber.")]

_COLUMNS = {
    **{name: name for name in ("stream", "subscriber", "queue", "filter")},
    "failed_at": "failed",
    "last_error": "details",
}
"""What is shown of a row, and the head of its column."""


def forward(
    stream: _Stream,
    subscriber: _Subscriber,
    queue: Annotated[str, typer.Argument(help="Where its events go.")],
    position: Annotated[
        str, typer.Option("--from", metavar="POSITION", help="Where a new subscriber begins.")
    ] = "last",
    filter_: FilterOption = None,
    dsn: DsnOption = None,
) -> None:
    """Move the events of a subscriber into a queue, each exactly once."""

    async def begin() -> None:
        subject = f"{stream} {subscriber}"
        async with acting(dsn, "stream.forward", subject, queue=queue, filter=filter_) as act:
            is_new = await Streams(act).forward(stream, subscriber, queue, position, filter_)
            act.note(changed=is_new)
        how = "forwards" if is_new else "goes on: it forwards"
        out.print(f"{subscriber} {how} from {stream} into {queue}")

    run(begin())


def unforward(
    stream: _Stream,
    subscriber: _Subscriber,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the subscription, for somebody to read.")
    ] = False,
    dsn: DsnOption = None,
) -> None:
    """End forwarding, and the subscription with it."""

    async def end() -> None:
        async with acting(dsn, "stream.unforward", f"{stream} {subscriber}", kept=keep) as act:
            ended = await Streams(act).unforward(stream, subscriber, keep=keep)
            act.note(changed=ended)
        done = f"{subscriber} forwards no more"
        out.print(done if ended else f"{subscriber} does not forward")

    run(end())


def forwards(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List what is forwarded into which queue, and what fails."""

    async def list_forwards() -> None:
        async with open_database(dsn) as database:
            rows = [dict(row) for row in await Streams(database).forwards()]
        shown = [{head: row[name] for name, head in _COLUMNS.items()} for row in rows]
        print_rows(rows if as_json else shown, as_json=as_json, empty="nothing is forwarded")

    run(list_forwards())
