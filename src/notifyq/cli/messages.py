"""`notifyq ls`, `show`, `parked`, `signal`, and what changes live messages: `cancel`, `move`."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from notifyq.archive.reader import Archive, obstacle
from notifyq.cli.command import actor, noting, open_database
from notifyq.cli.hints import empty_list, require_known
from notifyq.cli.matching import Selection, change_matching, selecting
from notifyq.cli.options import (
    DsnOption,
    HeaderOption,
    IdsArgument,
    JsonOption,
    LimitOption,
    MaybeIdsArgument,
    QueueOption,
    flag,
    headers,
    instant_option,
    option,
    require_json,
)
from notifyq.cli.output import cell, err, out, pick, print_rows, row_json, when
from notifyq.database import statements as sql
from notifyq.database.encryption.envelopes import environment_keys, required_keys
from notifyq.models.message import (
    ArchivedMessage,
    Attempt,
    Dependency,
    LogRecord,
    Message,
    ParkedMessage,
    Progress,
    RecordedStep,
    State,
    Status,
)
from notifyq.models.payload import encode, without_envelope
from notifyq.operations.monitor import FREE, Act
from notifyq.operations.texts import percent, span
from notifyq.printable import printable


async def ls(
    queue: QueueOption = None,
    state: State | None = option("Live messages in this state."),
    status: Status | None = option("Finished messages of this status."),
    finished: bool = flag("--finished", "All finished messages."),
    limit: LimitOption = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List live or finished messages.

    Live ones have the oldest first, finished ones the latest.
    """
    if state is not None and (status is not None or finished):
        raise typer.BadParameter("--state is for live messages, --status for finished ones")
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
        empty = "" if found else await empty_list(database, queue)
    if as_json:
        for message in found:
            typer.echo(row_json(message))
    else:
        print_rows([pick(m, names) for m in found], as_json=False, empty=empty)


async def show(
    message_id: Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1)],
    decrypt: bool = flag("--decrypt", "Decrypt it with the keys in NOTIFYQ_KEYS."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one message, its steps, attempts and logs."""
    async with open_database(dsn, keys=required_keys() if decrypt else None) as database:
        archive = Archive(database)
        message = await archive.find(message_id)
        attempts = await archive.attempts(message_id)
        steps = await archive.steps(message_id)
        logs = await archive.logs(message_id)
        after = await archive.dependencies(message_id)
        is_live = isinstance(message, Message)
        progress = await archive.progress(message_id) if is_live else None
        waits = await archive.parked(message_id=message_id) if is_live else []
    if message is None:
        err.print(f"notifyq: there is no message {message_id}, neither live nor archived")
        raise typer.Exit(1)
    if as_json:
        more = {"history": attempts, "after": after, "steps": steps, "logs": logs}
        typer.echo(row_json(message, **more, progress=progress, parked=waits))
        return
    _show(message, after, steps, attempts, progress, waits)
    _show_logs(logs)


def _show(
    message: Message | ArchivedMessage,
    after: Sequence[Dependency],
    steps: Sequence[RecordedStep],
    attempts: Sequence[Attempt],
    progress: Progress | None,
    waits: Sequence[ParkedMessage],
) -> None:
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if value is not None:
            out.print(f"{name:<16}{_whole(value)}")
    for number, other in enumerate(after):
        out.print(f"{'' if number else 'after':<16}{_other(other)}")
    if progress is not None:
        note = f": {printable(progress.note)}" if progress.note else ""
        at = when(progress.updated_at, full=True)
        out.print(f"{'progress':<16}{percent(progress.fraction)} at {at}{note}")
    for wait in waits:
        what = f"{wait.kind} {wait.waits_for}" if wait.waits_for else wait.kind
        until = f", until {when(wait.until, full=True)}" if wait.until else ""
        out.print(f"{'parked':<16}{printable(f'{wait.name}: {what}')}{until}")
    if steps:
        out.print()
        print_rows([asdict(step) for step in steps], as_json=False, empty="")
    for attempt in attempts:
        out.print(f"\nattempt {attempt.number:<8}{_ending(attempt)}")
        out.print(f"{'':<16}{_whole(attempt.traceback or attempt.details or '-')}")


def _show_logs(logs: Sequence[LogRecord]) -> None:
    lock_token = None
    for record in logs:
        if record.lock_token != lock_token:
            lock_token = record.lock_token
            out.print(f"\nlog of attempt {record.attempt}, lock {lock_token}")
        out.print(
            f"{'':<16}{when(record.created_at, full=True)} {printable(record.level)} "
            f"{printable(record.logger)}: {_whole(without_envelope(record.text))}"
        )


def _ending(attempt: Attempt) -> str:
    """How an attempt ended, in one line."""
    parts = [
        f"{attempt.status} at {when(attempt.ended_at, full=True)}",
        f"after {span(attempt.ended_at - attempt.locked_at)}",
        f"by {printable(attempt.handled_by)}" if attempt.handled_by else "",
        "the last one" if attempt.retry_at is None else f"next at {when(attempt.retry_at)}",
    ]
    return ", ".join(filter(None, parts))


def _other(other: Dependency) -> str:
    """A message that is waited for: its id, its state, and why it ended so."""
    state = other.state if other.queue is None else f"{other.state} in {other.queue}"
    return printable(f"{other.id}, {state}" + (f": {cell(other.details)}" if other.details else ""))


def _whole(value: Any) -> str:
    """Text of a value, with all its lines."""
    if isinstance(value, datetime):
        return when(value, full=True)
    lines = value.splitlines() if isinstance(value, str) else [cell(value)]
    return ("\n" + " " * 16).join(printable(line) for line in lines)


async def parked(
    queue: QueueOption = None,
    limit: LimitOption = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages that wait for a sleep or a signal."""
    async with open_database(dsn) as database:
        found = await Archive(database).parked(queue, limit)
        if not found:
            await require_known(database, queue)
    print_rows([asdict(it) for it in found], as_json=as_json, empty="no parked messages")


async def signal(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    payload: Annotated[str, typer.Argument(metavar="[JSON]", show_default=False)] = "null",
    message_id: int | None = option("Send it to this message alone.", "--id", min=1, max=2**63 - 1),
    dsn: DsnOption = None,
) -> None:
    """Send a signal to the handlers that wait for it.

    The first signal of a name counts; with --id each one is received by one wait.
    """
    require_json("payload", payload)
    async with open_database(dsn, keys=environment_keys()) as database:
        if message_id is not None:
            payload = await database.encrypted_for(message_id, "signal", payload)
        woken = await database.value(sql.SIGNAL, name, payload, message_id)
    out.print(
        f"signal {printable(name)} sent, {woken} parked message{'' if woken == 1 else 's'} woken"
    )


async def unblock(ids: IdsArgument, dsn: DsnOption = None) -> None:
    """Hand out messages without those they wait for. Exit code 1 if one waits for none."""
    refused = "{} does not wait for other messages"
    await _change_each(dsn, ids, "message.unblock", sql.UNBLOCK, (), "unblocked", refused)


@selecting
async def cancel(
    ids: MaybeIdsArgument = None,
    running: bool = flag("--running", "Also messages that a worker handles."),
    children: bool = flag("--children", "Also what they have published by steps."),
    reason: str | None = option("Why; the archive and the audit keep it."),
    dsn: DsnOption = None,
    *,
    chosen: Selection,
) -> None:
    """Reject messages that no worker handles yet. Exit code 1 if one cannot be.

    By id or by filter. With --running their workers cancel the handlers. Cancelled messages are not
    dead: `notifyq dead ls --cancelled` lists them, `notifyq dead retry ID` publishes one again.
    """
    args = (running, children, reason, actor()["actor"])
    facts = {} if reason is None else {"reason": reason}
    if chosen.is_instead_of(ids):
        states = (*FREE, "locked") if running else FREE
        await change_matching(dsn, Act.CANCEL, chosen, "cancelled", *args, states=states, **facts)
        return
    refused = "{} cannot be cancelled now: try again"
    await _change_each(
        dsn, ids or [], "message.cancel", sql.CANCEL_ALSO, args, "cancelled", refused, **facts
    )


@selecting
async def run_now(
    ids: MaybeIdsArgument = None, dsn: DsnOption = None, *, chosen: Selection
) -> None:
    """Make scheduled messages due. Exit code 1 if one is not scheduled."""
    if chosen.is_instead_of(ids):
        await change_matching(dsn, Act.RUN_NOW, chosen, "made due", states=("scheduled",))
        return
    refused = "{} is not scheduled"
    await _change_each(dsn, ids or [], "message.run_now", sql.RUN_NOW, (), "made due", refused)


@selecting
async def move(
    to: str = option("The queue to move them to.", default=...),
    dsn: DsnOption = None,
    *,
    chosen: Selection,
) -> None:
    """Move messages that no worker handles to another queue.

    They keep their ids. One that the other queue would not accept from a publisher stays, and so
    does one with recorded steps: exit code 1.
    """
    if chosen.conditions.queue is None:
        raise typer.BadParameter("give the --queue in which they are")
    await change_matching(dsn, Act.MOVE, chosen, "moved", to, to=to)


@selecting
async def amend(
    message_id: Annotated[
        int | None,
        typer.Argument(metavar="ID", min=1, max=2**63 - 1, show_default=False),
    ] = None,
    payload: Annotated[str | None, typer.Argument(metavar="[JSON]", show_default=False)] = None,
    priority: int | None = option("Larger first.", min=-(2**31), max=2**31 - 1),
    at: datetime | None = instant_option("Hand out from then on."),
    header: HeaderOption = None,
    dsn: DsnOption = None,
    *,
    chosen: Selection,
) -> None:
    """Change messages that no worker handles. Exit code 1 if one does, or it is finished.

    By filter, only the priority. Given headers replace all that it has. One with
    recorded steps can change its priority only.
    """
    if payload is not None:
        require_json("payload", payload)
    given = {
        "payload": payload,
        "priority": priority,
        "available_at": at,
        "headers": encode(headers(header)) if header else None,
    }
    changes = [name for name, value in given.items() if value is not None]
    if not changes:
        raise typer.BadParameter("give JSON, --priority, --at or --header")
    ids = [] if message_id is None else [message_id]
    if chosen.is_instead_of(ids):
        if changes != ["priority"]:
            raise typer.BadParameter("by filter, give --priority alone")
        await change_matching(dsn, Act.AMEND, chosen, "changed", priority, priority=priority)
        return
    refused = "{} cannot be changed now: try again"
    if payload is not None:
        async with open_database(dsn, keys=environment_keys()) as database:
            given["payload"] = await database.encrypted_for(ids[0], "payload", payload)
    args = tuple(given.values())
    await _change_each(
        dsn, ids, "message.amend", sql.AMEND, args, "changed", refused, changes=changes
    )


async def _change_each(
    dsn: str | None,
    ids: list[int],
    action: str,
    statement: str,
    args: Sequence[Any],
    done: str,
    refused: str,
    **facts: Any,
) -> None:
    """Change messages one by one; `refused` is why one is not, unless its state shows it."""
    refusals = 0
    async with open_database(dsn) as database:
        for message_id in dict.fromkeys(ids):
            async with noting(database, action, message_id, **facts) as act:
                changed = bool(await act.value(statement, message_id, *args))
                act.note(changed=changed)
            if changed:
                out.print(f"{done} {message_id}")
            else:
                found = await Archive(database).find(message_id)
                why = obstacle(message_id, found) or refused.format(message_id)
                err.print(f"notifyq: {printable(why)}")
                refusals += 1
    if refusals:
        raise typer.Exit(1)
