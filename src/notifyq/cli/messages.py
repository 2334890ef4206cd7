"""`notifyq ls`, `show`, `unblock` and `cancel`: single messages."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.archive.reader import Archive
from notifyq.cli.audited import noting
from notifyq.cli.hints import require_known
from notifyq.cli.output import (
    DsnOption,
    IdArgument,
    IdsArgument,
    JsonOption,
    QueueOption,
    cell,
    err,
    message_json,
    open_database,
    out,
    pick,
    print_rows,
    printable,
    run,
    span,
    when,
)
from notifyq.database import sql
from notifyq.models.message import ArchivedMessage, Attempt, Dependency, Message, State, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most.")]


def ls(
    queue: QueueOption = None,
    state: Annotated[State | None, typer.Option(help="Live messages in this state.")] = None,
    status: Annotated[Status | None, typer.Option(help="Finished messages of this status.")] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Finished messages of all.")] = False,
    limit: LimitOption = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List live messages, the oldest first, or finished ones, the latest first."""
    if state is not None and (status is not None or finished):
        raise typer.BadParameter("--state is for live messages, --status for finished ones")

    async def list_messages() -> None:
        async with open_database(dsn) as database:
            archive = Archive(database)
            found: Sequence[Message | ArchivedMessage]
            names: tuple[str, ...]
            if finished or status is not None:
                found = await archive.finished(queue, status, limit)
                names = ("id", "queue", "status", "archived_at", "details", "message")
            else:
                found = await archive.live(queue, state, limit)
                names = ("id", "queue", "state", "attempts", "available_at", "message")
            if not found:
                await require_known(database, queue)
        if as_json:
            for message in found:
                typer.echo(message_json(message))
        else:
            print_rows([pick(m, names) for m in found], as_json=False, empty="no messages")

    run(list_messages())


def show(message_id: IdArgument, dsn: DsnOption = None, as_json: JsonOption = False) -> None:
    """Show one message, live or finished: what it waits for, and each attempt that failed."""

    async def show_message() -> None:
        async with open_database(dsn) as database:
            archive = Archive(database)
            message = await archive.find(message_id)
            attempts = await archive.attempts(message_id)
            after = await archive.dependencies(message_id)
        if message is None:
            err.print(f"notifyq: there is no message {message_id}, neither live nor archived")
            raise typer.Exit(1)
        if as_json:
            typer.echo(message_json(message, history=attempts, after=after))
            return
        for name in message.__dataclass_fields__:
            value = getattr(message, name)
            if value is not None:
                out.print(f"{name:<16}{_whole(value)}")
        for number, other in enumerate(after):
            out.print(f"{'' if number else 'after':<16}{_other(other)}")
        for attempt in attempts:
            out.print(f"\nattempt {attempt.number:<8}{_told(attempt)}")
            out.print(f"{'':<16}{_whole(attempt.traceback or attempt.details or '-')}")

    run(show_message())


def unblock(ids: IdsArgument, dsn: DsnOption = None) -> None:
    """Hand out messages without what they wait for. Exit code 1 if one waits for nothing."""

    async def unblock_messages() -> bool:
        done = []
        async with open_database(dsn) as database:
            for message_id in dict.fromkeys(ids):
                async with noting(database, "message.unblock", message_id) as act:
                    done.append(bool(await act.value(sql.UNBLOCK, message_id)))
                    act.note(changed=done[-1])
                if done[-1]:
                    out.print(f"unblocked {message_id}")
                else:
                    err.print(f"notifyq: {message_id} does not wait for other messages")
        return all(done)

    if not run(unblock_messages()):
        raise typer.Exit(1)


def cancel(ids: IdsArgument, dsn: DsnOption = None) -> None:
    """Archive messages that nobody handles yet as rejected. Exit code 1 if one could not be."""

    async def cancel_messages() -> bool:
        done = []
        async with open_database(dsn) as database:
            for message_id in dict.fromkeys(ids):
                async with noting(database, "message.cancel", message_id) as act:
                    done.append(bool(await act.value(sql.CANCEL, message_id)))
                    act.note(changed=done[-1])
                _tell_cancelled(message_id, done=done[-1])
        return all(done)

    if not run(cancel_messages()):
        raise typer.Exit(1)


def _told(attempt: Attempt) -> str:
    """How an attempt ended, in one line."""
    parts = [
        f"{attempt.status} at {when(attempt.ended_at, full=True)}",
        f"after {span(attempt.ended_at - attempt.locked_at)}",
        f"by {printable(attempt.handled_by)}" if attempt.handled_by else "",
        "the last one" if attempt.retry_at is None else f"next at {when(attempt.retry_at)}",
    ]
    return ", ".join(filter(None, parts))


def _other(other: Dependency) -> str:
    """A message that one waits for: which, where it stands or how it ended, and why."""
    place = other.state if other.queue is None else f"{other.state} in {other.queue}"
    return printable(f"{other.id}, {place}" + (f": {cell(other.details)}" if other.details else ""))


def _whole(value: Any) -> str:
    """Text of a value, with all its lines."""
    if isinstance(value, datetime):
        return when(value, full=True)
    lines = value.splitlines() if isinstance(value, str) else [cell(value)]
    return ("\n" + " " * 16).join(printable(line) for line in lines)


def _tell_cancelled(message_id: int, *, done: bool) -> None:
    if done:
        out.print(f"cancelled {message_id}")
    else:
        err.print(
            f"notifyq: {message_id} cannot be cancelled: "
            "it is being handled, is finished, or never was"
        )
