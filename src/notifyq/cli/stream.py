"""`notifyq stream`: list, create, change, drop, forward and tail streams; their subscribers."""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from notifyq.cli.command import Commands, Listing, acting, change, open_database
from notifyq.cli.hints import quoted
from notifyq.cli.logs import configure_logging
from notifyq.cli.options import (
    DsnOption,
    FilterOption,
    JsonOption,
    StreamArgument,
    SubscriberArgument,
    flag,
    option,
)
from notifyq.cli.output import cell, out, print_rows, row_json, waits, when
from notifyq.cli.policy import takes_policy
from notifyq.cli.signals import stop_signals
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError, StreamNotFoundError, SubscriptionNotFoundError
from notifyq.models.event import Event
from notifyq.operations.texts import size
from notifyq.printable import printable
from notifyq.streams.admin import CREATED_WITH, StreamPolicy, Streams
from notifyq.streams.tail import Tail
from notifyq.telemetry import log_events

stream = Commands(
    name="stream", cls=Listing, help="List (ls), create, change and drop streams; subscribe."
)

NameArgument = Annotated[str, typer.Argument(help="Name of the stream.")]
PositionArgument = Annotated[
    str,
    typer.Argument(
        metavar="POSITION", help="last, now, start, the number of a tick, or an instant."
    ),
]

# --json has the whole row, also the policy of a stream.
_COLUMNS = ("stream", "subscriber", "lag", "pending", "retries", "dead", "members", "last_seen_at")
_FORWARD_COLUMNS = {
    **{name: name for name in ("stream", "subscriber", "queue", "filter")},
    "failed_at": "failed",
    "last_error": "details",
}


@stream.command()
async def ls(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the streams with their counts and policy."""
    async with open_database(dsn) as database:
        rows = [dict(row) for row in await Streams(database).info()]
    shown = [_shown(row) for row in rows]
    print_rows(rows if as_json else shown, as_json=as_json, empty="no streams")


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
async def lag(
    name: str | None = typer.Argument(None, help="Name of the stream; else all."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the subscribers, and how far behind each one is."""
    async with open_database(dsn) as database:
        rows = [asdict(info) for info in await Streams(database).subscriptions(name)]
    shown = [{column: row[column] for column in _COLUMNS} for row in rows]
    print_rows(rows if as_json else shown, as_json=as_json, empty="no subscribers")


@stream.command()
@takes_policy(StreamPolicy, of_new=True)
async def create(name: NameArgument, policy: StreamPolicy, dsn: DsnOption = None) -> None:
    """Create a stream. Options that are not given have their defaults."""
    async with acting(dsn, "stream.create", name) as act:
        created = await Streams(act).create(name, policy)
        act.note(changed=created)
    out.print(f"created {name}" if created else f"{name} exists already, nothing changed")


@stream.command()
@takes_policy(StreamPolicy, without=CREATED_WITH)
async def alter(name: NameArgument, policy: StreamPolicy, dsn: DsnOption = None) -> None:
    """Change the policy of a stream. Options that are not given stay as they are."""
    async with acting(dsn, "stream.alter", name, **asdict(policy)) as act:
        await Streams(act).alter(name, policy)
        act.note(changed=True)
    out.print(f"altered {name}")


@stream.command()
async def drop(
    name: NameArgument,
    force: bool = flag("--force", "Even if it has subscribers."),
    dsn: DsnOption = None,
) -> None:
    """Drop a stream and its events."""
    async with acting(dsn, "stream.drop", name) as act:
        left = await Streams(act).drop(name, force=force)
        act.note(subscribers=left)
    out.print(f"dropped {name}" + (f", which had {left} subscribers" if left else ""))


@stream.command()
async def pause(name: NameArgument, dsn: DsnOption = None) -> None:
    """Refuse publishing into a stream; subscribers go on."""
    done, unchanged = f"paused {name}", f"{name} was paused already"
    await change(dsn, "stream.pause", sql.PAUSE_STREAM, [name], done, unchanged)


@stream.command()
async def resume(name: NameArgument, dsn: DsnOption = None) -> None:
    """Allow publishing into a paused stream again."""
    done, unchanged = f"resumed {name}", f"{name} was not paused"
    await change(dsn, "stream.resume", sql.RESUME_STREAM, [name], done, unchanged)


@stream.command()
async def subscribe(
    name: NameArgument,
    subscriber: SubscriberArgument,
    position: PositionArgument = "last",
    dsn: DsnOption = None,
) -> None:
    """Add a subscriber; an existing one keeps its position."""
    # Subscribers may do this without the right to write the audit.
    async with acting(
        dsn, "stream.subscribe", f"{name} {subscriber}", is_required=False, position=position
    ) as act:
        is_new = await Streams(act).subscribe(name, subscriber, position)
        act.note(changed=is_new)
    unchanged = f"{name} has the subscriber {subscriber} already, its position is unchanged"
    out.print(f"subscribed {subscriber} to {name}" if is_new else unchanged)


@stream.command()
async def unsubscribe(
    name: NameArgument, subscriber: SubscriberArgument, dsn: DsnOption = None
) -> None:
    """Remove a subscriber and the events that it retries."""
    async with acting(dsn, "stream.unsubscribe", f"{name} {subscriber}") as act:
        if not await Streams(act).unsubscribe(name, subscriber):
            raise SubscriptionNotFoundError(
                f"{quoted(subscriber)} does not subscribe to stream {quoted(name)}"
            )
        act.note(changed=True)
    out.print(f"unsubscribed {subscriber} from {name}")


@stream.command()
async def seek(
    name: NameArgument,
    subscriber: SubscriberArgument,
    position: PositionArgument,
    dsn: DsnOption = None,
) -> None:
    """Move a subscriber to another position. Its open batch is abandoned."""
    async with acting(dsn, "stream.seek", f"{name} {subscriber}", to=position) as act:
        await Streams(act).seek(name, subscriber, position)
        act.note(changed=True)
    out.print(f"{subscriber} goes on from {position}")


@stream.command()
async def tick(
    name: str | None = typer.Argument(None, help="Name of the stream; else all."),
    dsn: DsnOption = None,
) -> None:
    """Cut a tick and print its number. Subscribers also cut ticks themselves."""
    async with open_database(dsn) as database:
        number = await Streams(database).tick(name)
    out.print(number if name else f"{number} streams were ticked")


@stream.command()
async def forward(
    stream: StreamArgument,
    subscriber: SubscriberArgument,
    queue: Annotated[str, typer.Argument(help="The queue that its events go into.")],
    position: str = option(
        "Where a new subscriber begins.", "--from", default="last", metavar="POSITION"
    ),
    filter_: FilterOption = None,
    dsn: DsnOption = None,
) -> None:
    """Move a subscriber's events into a queue, each exactly once."""
    subject = f"{stream} {subscriber}"
    async with acting(dsn, "stream.forward", subject, queue=queue, filter=filter_) as act:
        is_new = await Streams(act).forward(stream, subscriber, queue, position, filter_)
        act.note(changed=is_new)
    how = "forwards" if is_new else "exists and now forwards"
    out.print(f"{subscriber} {how} from {stream} into {queue}")


@stream.command()
async def unforward(
    stream: StreamArgument,
    subscriber: SubscriberArgument,
    keep: bool = flag("--keep", "Keep the subscription, so that it can be read."),
    dsn: DsnOption = None,
) -> None:
    """End forwarding, and the subscription with it."""
    async with acting(dsn, "stream.unforward", f"{stream} {subscriber}", kept=keep) as act:
        if not await Streams(act).unforward(stream, subscriber, keep=keep):
            raise ConfigurationError(
                f"{quoted(subscriber)} does not forward from stream {quoted(stream)}: "
                "`notifyq stream forwards` lists those that do"
            )
        act.note(changed=True)
    out.print(f"{subscriber} forwards no more")


@stream.command()
async def forwards(dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """List the subscribers that forward, and their errors."""
    async with open_database(dsn) as database:
        rows = [dict(row) for row in await Streams(database).forwards()]
    shown = [{head: row[name] for name, head in _FORWARD_COLUMNS.items()} for row in rows]
    print_rows(rows if as_json else shown, as_json=as_json, empty="nothing is forwarded")


@stream.command()
async def tail(
    name: NameArgument,
    limit: int | None = option("End after this many new events.", "--limit", "-n", min=1),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print events as they are published, until SIGTERM or SIGINT.

    It is not a subscriber: nothing is kept for it, and nothing is left when it ends.
    """
    configure_logging("warning")

    async def follow(database: Database) -> None:
        left = limit
        if not await Streams(database).info(name):
            raise StreamNotFoundError(f"there is no stream {name!r}")
        waits(f"for new events of {name}")
        async for found in Tail(database, name, telemetry=log_events).events():
            for event in found[:left]:
                _show(event, as_json=as_json)
            if left is not None and (left := left - len(found)) <= 0:
                return

    async with open_database(dsn, serves=True) as database:
        following = asyncio.create_task(follow(database))
        with stop_signals(following.cancel), suppress(asyncio.CancelledError):
            await following


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        typer.echo(row_json(event))
        return
    about = "".join(
        f" {name}={value}" for name in ("type", "key") if (value := getattr(event, name))
    )
    out.print(
        printable(f"{when(event.created_at, full=True)} {event.id}{about} {cell(event.message)}")
    )
