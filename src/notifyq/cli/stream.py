"""`notifyq stream`: list, create, change and drop streams; who reads them, and from where on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.audited import acting
from notifyq.cli.default_command import Listing
from notifyq.cli.forward import forward, forwards, unforward
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    duration,
    open_database,
    out,
    print_rows,
    run,
    size,
)
from notifyq.cli.tail import tail
from notifyq.errors import ConfigurationError
from notifyq.streams.admin import StreamPolicy, Streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from notifyq.queues.admin import Bell

stream = typer.Typer(
    name="stream", cls=Listing, help="Streams, whose events every subscriber gets: list (ls), make."
)
stream.command("tail")(tail)
for _command in (forward, unforward, forwards):
    stream.command(_command.__name__)(_command)

NameArgument = Annotated[str, typer.Argument(help="Name of the stream.")]
SubscriberArgument = Annotated[str, typer.Argument(help="Name of the subscriber.")]
PositionArgument = Annotated[
    str,
    typer.Argument(
        metavar="POSITION", help="last, now, start, the number of a tick, or an instant."
    ),
]
TypeOption = Annotated[
    str | None, typer.Option("--payload-type", metavar="TYPE", help="A type of PostgreSQL.")
]
SchemaOption = Annotated[
    Path | None,
    typer.Option("--payload-schema", metavar="FILE", help="JSON Schema of all events."),
]
DurableOption = Annotated[
    bool | None,
    typer.Option(
        "--durable/--volatile", help="Whether events survive a crash.", show_default=False
    ),
]
RetentionOption = Annotated[
    Any,
    typer.Option(parser=duration, metavar="DURATION", help="Keep what all have read for so long."),
]
MaxLagOption = Annotated[
    Any,
    typer.Option(parser=duration, metavar="DURATION", help="Skip what a subscriber is behind."),
]
MaxEventsOption = Annotated[
    int | None, typer.Option(min=0, help="Skip what a subscriber is behind by more events.")
]
BellOption = Annotated[
    str | None, typer.Option(metavar="auto|always|off", help="Whether publishing rings.")
]
MaxBytesOption = Annotated[int | None, typer.Option(min=1, help="Largest event.")]

# --json has all of it, the policy of a stream too.
_COLUMNS = ("stream", "subscriber", "lag", "pending", "retries", "dead", "members", "last_seen_at")


@stream.command()
def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the streams with their counts and policy."""

    async def list_streams() -> None:
        async with open_database(dsn) as database:
            rows = [dict(row) for row in await Streams(database).info()]
        shown = [_shown(row) for row in rows]
        print_rows(rows if as_json else shown, as_json=as_json, empty="no streams")

    run(list_streams())


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "stream": row["stream"],
        "subscribers": row["subscribers"],
        "size": size(row["bytes"]),
        "oldest": row["oldest_at"],
        "last tick": row["last_tick_at"],
        "retention": row["retention"],
        "paused": row["paused"],
    }


@stream.command()
def lag(
    name: Annotated[str | None, typer.Argument(help="Name of the stream.")] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the subscribers, and how far each one is behind."""

    async def list_lags() -> None:
        async with open_database(dsn) as database:
            found = await Streams(database).subscriptions(name)
        rows = [{it: getattr(info, it) for it in info.__dataclass_fields__} for info in found]
        shown = [{column: row[column] for column in _COLUMNS} for row in rows]
        print_rows(rows if as_json else shown, as_json=as_json, empty="no subscribers")

    run(list_lags())


@stream.command()
def create(
    name: NameArgument,
    payload_type: TypeOption = None,
    payload_schema: SchemaOption = None,
    durable: DurableOption = None,
    retention: RetentionOption = None,
    max_lag: MaxLagOption = None,
    max_events: MaxEventsOption = None,
    bell: BellOption = None,
    max_bytes: MaxBytesOption = None,
    dsn: DsnOption = None,
) -> None:
    """Create a stream."""
    policy = _policy(locals())
    _change(
        dsn,
        "create",
        name,
        lambda streams: streams.create(name, policy),
        f"created {name}",
        f"{name} exists already, nothing changed",
    )


@stream.command()
def alter(
    name: NameArgument,
    payload_type: TypeOption = None,
    payload_schema: SchemaOption = None,
    retention: RetentionOption = None,
    max_lag: MaxLagOption = None,
    max_events: MaxEventsOption = None,
    bell: BellOption = None,
    max_bytes: MaxBytesOption = None,
    dsn: DsnOption = None,
) -> None:
    """Change the policy of a stream; what is not named stays as it is."""
    policy = _policy(locals())

    async def alter_stream(streams: Streams) -> bool:
        await streams.alter(name, policy)
        return True

    said = {it: getattr(policy, it) for it in policy.__dataclass_fields__}
    _change(dsn, "alter", name, alter_stream, f"altered {name}", "", **said)


@stream.command()
def drop(
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also a stream that has subscribers.")
    ] = False,
    dsn: DsnOption = None,
) -> None:
    """Drop a stream and its events."""

    async def drop_stream() -> None:
        async with acting(dsn, "stream.drop", name) as act:
            left = await Streams(act).drop(name, force=force)
            act.note(subscribers=left)
        out.print(f"dropped {name}" + (f", which had {left} subscribers" if left else ""))

    run(drop_stream())


@stream.command()
def pause(name: NameArgument, dsn: DsnOption = None) -> None:
    """Refuse what is published into a stream; subscribers go on."""
    _change(
        dsn, "pause", name, lambda it: it.pause(name), f"paused {name}",
        f"{name} was paused already",
    )  # fmt: skip


@stream.command()
def resume(name: NameArgument, dsn: DsnOption = None) -> None:
    """Take what is published into a stream again."""
    _change(
        dsn, "resume", name, lambda it: it.resume(name), f"resumed {name}",
        f"{name} was not paused",
    )  # fmt: skip


@stream.command()
def subscribe(
    name: NameArgument,
    subscriber: SubscriberArgument,
    position: PositionArgument = "last",
    dsn: DsnOption = None,
) -> None:
    """Add a subscriber; one that exists stays where it is."""

    async def add() -> None:
        subject = f"{name} {subscriber}"
        # Subscribers may do it, too, and have no part in the audit.
        async with acting(
            dsn, "stream.subscribe", subject, is_required=False, position=position
        ) as act:
            is_new = await Streams(act).subscribe(name, subscriber, position)
            act.note(changed=is_new)
        there = f"{name} has the subscriber {subscriber} already, it stays where it is"
        out.print(f"subscribed {subscriber} to {name}" if is_new else there)

    run(add())


@stream.command()
def unsubscribe(name: NameArgument, subscriber: SubscriberArgument, dsn: DsnOption = None) -> None:
    """Remove a subscriber, and what waits to be delivered to it again."""
    _change(
        dsn,
        "unsubscribe",
        f"{name} {subscriber}",
        lambda streams: streams.unsubscribe(name, subscriber),
        f"unsubscribed {subscriber} from {name}",
        f"{name} has no subscriber {subscriber}",
    )


@stream.command()
def seek(
    name: NameArgument,
    subscriber: SubscriberArgument,
    position: PositionArgument,
    dsn: DsnOption = None,
) -> None:
    """Have a subscriber go on from another position; a batch that it has open is given up."""

    async def move(streams: Streams) -> bool:
        await streams.seek(name, subscriber, position)
        return True

    _change(
        dsn, "seek", f"{name} {subscriber}", move, f"{subscriber} goes on from {position}", "",
        to=position,
    )  # fmt: skip


@stream.command()
def tick(
    name: Annotated[str | None, typer.Argument(help="Name of the stream; else all.")] = None,
    dsn: DsnOption = None,
) -> None:
    """Cut a tick, and print its number; subscribers cut their own, so nobody has to."""

    async def cut() -> None:
        async with open_database(dsn) as database:
            number = await Streams(database).tick(name)
        out.print(number if name else f"{number} streams were ticked")

    run(cut())


def _policy(given: dict[str, Any]) -> StreamPolicy:
    file: Path | None = given["payload_schema"]
    schema = None
    if file is not None:
        try:
            schema = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigurationError(f"{file} is not JSON: {error}") from error
    bell: Bell | None = given["bell"]
    if bell not in {None, "auto", "always", "off"}:
        raise typer.BadParameter(f"--bell must be auto, always or off, not {bell!r}")
    names = ("payload_type", "durable", "retention", "max_lag", "max_events", "bell", "max_bytes")
    return StreamPolicy(payload_schema=schema, **{name: given.get(name) for name in names})


def _change(
    dsn: str | None,
    verb: str,
    subject: str,
    change: Callable[[Streams], Awaitable[bool]],
    done: str,
    else_: str,
    **details: Any,
) -> None:
    async def make() -> None:
        async with acting(dsn, f"stream.{verb}", subject, **details) as act:
            changed = await change(Streams(act))
            act.note(changed=changed)
        out.print(done if changed else else_)

    run(make())
