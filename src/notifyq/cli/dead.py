"""`notifyq dead`: list, group, show, watch, retry and delete dead messages."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import BaseModel, Field

from notifyq.archive.dead_letters import DeadLetters
from notifyq.archive.reader import Archive
from notifyq.cli.command import Commands, Listing, acting, open_database, run
from notifyq.cli.hints import require_known
from notifyq.cli.logs import configure_logging
from notifyq.cli.matching import run_steps
from notifyq.cli.messages import show
from notifyq.cli.options import (
    DsnOption,
    JsonOption,
    LimitOption,
    MaybeIdsArgument,
    QueueOption,
    SubscriberOption,
    flag,
    instant_option,
    limit_option,
    option,
)
from notifyq.cli.output import cell, err, out, pick, print_json, print_rows, row_json, waits, when
from notifyq.cli.signals import stop_signals
from notifyq.database import statements as sql
from notifyq.errors import ConfigurationError, ForeignPositionError
from notifyq.models.message import ArchivedMessage
from notifyq.operations import monitor
from notifyq.operations.monitor import Act, Conditions, clock, dead_groups
from notifyq.printable import printable
from notifyq.telemetry import log_events

dead = Commands(name="dead", cls=Listing, help="List (ls), show, retry and delete dead messages.")
dead.command("show")(show)


FingerprintOption = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", metavar="TEXT", help="Only of this group, see `notifyq dead groups`."
    ),
]
_SHOWN, _NOTED = 20, 1000
"""Most ids that are printed, and most new ones of a retry that the audit keeps."""

_HandOut = Callable[[ArchivedMessage], Awaitable[None]]


@dead.command()
async def ls(
    queue: QueueOption = None,
    subscriber: SubscriberOption = None,
    cancelled: bool = flag("--cancelled", "The messages that were cancelled, instead."),
    limit: LimitOption = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead messages and events, the latest first. Retried ones are left out."""
    async with open_database(dsn) as database:
        archive = Archive(database)
        found = await archive.dead(queue, limit, subscriber=subscriber, cancelled=cancelled)
        total = await archive.dead_count(queue, subscriber, cancelled=cancelled)
        if not found:
            await require_known(database, queue, subscriber)
    if as_json:
        for message in found:
            typer.echo(row_json(message))
        return
    names = ["id", "queue", "status", "archived_at", "details"]
    if any(m.subscriber for m in found):
        names[2:2] = ["subscriber", "event_id"]
    if cancelled:
        names[names.index("details") :] = ["cancelled_by", "details"]
    empty = "no cancelled messages" if cancelled else "no dead messages"
    print_rows([pick(m, names) for m in found], as_json=False, empty=empty)
    if total > len(found):
        out.print(f"{total - len(found)} more: use --limit")


@dead.command()
async def groups(
    queue: QueueOption = None,
    subscriber: SubscriberOption = None,
    since: datetime | None = instant_option("Archived then or later."),
    until: datetime | None = instant_option("Archived before then."),
    limit: Annotated[int, limit_option(2000)] = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Group dead messages by the fingerprint of their errors.

    Retried ones are left out. `notifyq dead retry --fingerprint TEXT` publishes all of a group
    again, `notifyq dead delete --fingerprint TEXT` deletes them.
    """
    conditions = Conditions(queue=queue, subscriber=subscriber, since=since, until=until)
    async with open_database(dsn) as database:
        found = await dead_groups(database, conditions, quantity=limit)
        if not found.groups:
            await require_known(database, queue, subscriber)
    if as_json:
        for group in found.groups:
            print_json(group)
        return
    rows = [
        {
            "dead": group.dead,
            "last_at": when(group.last_at),
            "last_id": group.last_id,
            "queue": ", ".join(group.queues),
            "fingerprint": group.fingerprint,
        }
        for group in found.groups
    ]
    print_rows(rows, as_json=False, empty="no dead messages")
    if found.position is not None and found.position.at is not None:
        out.print(
            f"of the latest {found.scanned} dead messages: "
            f"--until {found.position.at.isoformat()} continues"
        )


@dead.command()
async def retry(
    ids: MaybeIdsArgument = None,
    queue: QueueOption = None,
    subscriber: SubscriberOption = None,
    status: Literal["rejected", "failed", "lock_expired"] | None = option("Only of this status."),
    fingerprint: FingerprintOption = None,
    since: datetime | None = instant_option("Archived then or later."),
    until: datetime | None = instant_option("Archived before then."),
    everything: bool = flag("--all", "All dead messages."),
    from_step: str | None = option(
        "With one id: without this recorded step and those after it.", "--from", metavar="STEP"
    ),
    limit: Annotated[int, limit_option(100_000)] = 1000,
    dsn: DsnOption = None,
    as_json: bool = flag("--json", "Print the counts as JSON."),
) -> None:
    """Publish dead messages again, by id or by filter; each only once.

    A dead event is delivered again to its subscriber alone. A message with recorded steps goes on
    behind the last one, or with --from at the one that is named.
    """
    given = (queue, subscriber, status, fingerprint, since, until)
    if bool(ids) == (everything or any(value is not None for value in given)):
        raise typer.BadParameter("give ids, or a filter, or --all")
    if from_step is not None and (ids is None or len(ids) != 1):
        raise typer.BadParameter("--from is for one message: give its id alone")
    if fingerprint is not None:
        conditions = Conditions(
            queue=queue, subscriber=subscriber, state=status, fingerprint=fingerprint,
            since=since, until=until,
        )  # fmt: skip
        _, published = await _act_on_group(dsn, Act.RETRY, conditions, limit)
        _print_retried(published, as_json)
        return
    filters = {"status": status, "since": since, "until": until}
    facts = {} if from_step is None else {"from": from_step}
    subject = _subject(ids, queue)
    left: list[int] = []
    async with acting(dsn, "dead.retry", subject, subscriber=subscriber, **filters, **facts) as act:
        if ids:
            left = await _left_out(act, ids, retried=True)
            if from_step is None:
                found = await act.fetch(sql.DEAD_RETRY, ids)
            else:
                found = [] if left else await act.fetch(sql.DEAD_RETRY_FROM, ids[0], from_step)
        else:
            found = await act.fetch(sql.REDRIVE_IDS, queue, *filters.values(), limit, subscriber)
        again = [row[0] for row in found]
        act.note(done=len(again), **({"as": again[:_NOTED]} if again else {}))
    if not ids and not again:
        async with open_database(dsn) as database:
            await require_known(database, queue, subscriber)
    _print_retried(again, as_json)
    _require_all(ids or [], left, "not dead, or were retried before")


@dead.command()
async def delete(
    ids: MaybeIdsArgument = None,
    queue: QueueOption = None,
    fingerprint: FingerprintOption = None,
    limit: Annotated[int, limit_option(100_000)] = 1000,
    dsn: DsnOption = None,
) -> None:
    """Delete dead messages permanently, by id or by group."""
    if bool(ids) == (fingerprint is not None) or (ids and queue is not None):
        raise typer.BadParameter("give ids, or --fingerprint and perhaps --queue")
    if not ids:
        conditions = Conditions(queue=queue, fingerprint=fingerprint)
        deleted, _ = await _act_on_group(dsn, Act.DELETE, conditions, limit)
        out.print(f"{deleted} deleted")
        return
    async with acting(dsn, "dead.delete", _subject(ids)) as act:
        left = await _left_out(act, ids)
        deleted = await act.value(sql.DEAD_DELETE, ids)
        act.note(deleted=deleted)
    out.print(f"{deleted} deleted")
    _require_all(ids, left, "not dead")


async def _act_on_group(
    dsn: str | None, act: Act, conditions: Conditions, limit: int
) -> tuple[int, list[int]]:
    """Retry or delete dead messages that match, in steps, up to `limit`; how many, and new ids."""
    async with open_database(dsn) as database:
        if conditions.until is None:
            # Without an end, messages that are retried here and fail again would match, too.
            conditions = replace(conditions, until=await clock(database))
        total = await run_steps(database, act, conditions, limit=limit)
        if not total.done:
            await require_known(database, conditions.queue, conditions.subscriber)
            raise ConfigurationError(
                "no dead message has this fingerprint, or all were retried before: "
                "`notifyq dead groups` lists what is left"
            )
    return total.done, total.ids


def _print_retried(ids: list[int], as_json: bool) -> None:
    """Print how many messages were published again, and their ids."""
    if as_json:
        print_json({"published": len(ids), "ids": ids})
        return
    out.print(f"{len(ids)} published again" + (f" as {_some(ids)}" if ids else ""))


def _some(ids: list[int]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(map(str, ids[:_SHOWN])) + more


def _subject(ids: list[int] | None, queue: str | None = None) -> str:
    return ", ".join(map(str, ids)) if ids else queue or "those found"


async def _left_out(act: monitor.Action, ids: list[int], *, retried: bool = False) -> list[int]:
    """Those of the ids that are not of dead messages or, with `retried`, were retried before."""
    dead = {row[0] for row in await act.fetch(sql.DEAD_AMONG, ids, retried)}
    return [id_ for id_ in dict.fromkeys(ids) if id_ not in dead]


def _require_all(ids: list[int], left: list[int], otherwise: str) -> None:
    if left:
        err.print(f"notifyq: {len(left)} of {len(set(ids))} are {otherwise}: {_some(left)}")
        raise typer.Exit(1)


@dead.command()
def watch(
    queue: QueueOption = None,
    command: str | None = option("Run for each, JSON on its stdin.", "--exec", metavar="COMMAND"),
    state: Path | None = option("File that keeps the position of the watch."),
    since: datetime | None = instant_option("Begin then; --state is ignored."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print each new dead message, or pass it to a command.

    It runs until SIGTERM or SIGINT, survives a restart of the server and misses nothing:
    notifications only wake it. With --state another run continues where this one stopped. A command
    that fails ends the watch with exit code 1, and the next run passes the message again. A server
    that was restored ends it, too: --since sets where to continue. When a standby takes over, the
    last messages come again.
    """
    configure_logging("info")

    async def watch_dead() -> None:
        async with open_database(dsn, serves=True) as database:
            await require_known(database, queue)
            archive = Archive(database)
            bookmark = _Bookmark(state, queue, anew=since is not None)
            if bookmark.position is None and since is None:
                # Kept before the first poll: a crash must not lose messages that fail from now on.
                bookmark.move(await archive.position())
            letters = DeadLetters(
                database, queue=queue, seen=bookmark.position, since=since, telemetry=log_events
            )
            hand_out = _printer(as_json=as_json) if command is None else partial(_execute, command)
            watch = _Watch(letters, bookmark, hand_out)
            if bookmark.position is not None:
                await archive.known_position(bookmark.position)
            with stop_signals(watch.stop):
                waits("for dead messages" + (f" of {queue}" if queue else ""))
                await watch.run()

    try:
        run(watch_dead())
    except ForeignPositionError as error:
        where = "" if state is None else f"{state}: "
        raise ConfigurationError(
            f"{where}{error.args[0]}: give --since INSTANT to get again the messages that failed "
            "since then"
        ) from error


class _Head(BaseModel):
    """First line of the file; the ids handed out since that position follow."""

    queue: str | None = None
    position: str = Field(pattern=r"^-?\d+(:\d+){3}/\d+:\d+:[\d,]*$")


class _Bookmark:
    """A position before which all is handed out, and the ids handed out since."""

    def __init__(self, path: Path | None, queue: str | None, *, anew: bool = False) -> None:
        """Read what is in the file; `anew` overwrites it at the first move instead."""
        self._path = path
        self._queue = queue
        self._done: set[int] = set()
        self.position: str | None = None
        """None: there was no file."""
        if path is not None and not anew:
            self._read(path)

    def has(self, message_id: int) -> bool:
        """Whether the message was handed out."""
        return message_id in self._done

    def add(self, message_id: int) -> None:
        """Note that a message was handed out."""
        self._done.add(message_id)
        if self._path is not None:
            with _writing(self._path), self._path.open("a") as file:
                file.write(f"{message_id}\n")

    def move(self, position: str) -> None:
        """Note that everything before a position is handed out."""
        self._done.clear()
        self.position = position
        if self._path is not None:
            head = _Head(queue=self._queue, position=position)
            # Written beside it and renamed: a crash leaves the old state or the new one.
            fresh = self._path.with_name(self._path.name + ".new")
            with _writing(self._path):
                fresh.write_text(head.model_dump_json() + "\n")
                fresh.replace(self._path)

    def _read(self, path: Path) -> None:
        try:
            # Text after the last line end was cut off by a crash.
            head, *ids = path.read_text().rpartition("\n")[0].split("\n")
            kept = _Head.model_validate_json(head)
            self._done = {int(line) for line in ids}
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigurationError(
                f"{path} is not a file that --state wrote: delete it to begin now"
            ) from error
        if kept.queue != self._queue:
            of = "all queues" if kept.queue is None else f"--queue {kept.queue}"
            raise ConfigurationError(f"{path} is for {of}: delete it to begin now")
        self.position = kept.position


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


class _Watch:
    """Hands out dead messages, one after the other, until it is stopped."""

    def __init__(self, letters: DeadLetters, bookmark: _Bookmark, hand_out: _HandOut) -> None:
        self._letters = letters
        self._bookmark = bookmark
        self._hand_out = hand_out
        self._is_busy = False
        self._stops = 0

    async def run(self) -> None:
        self._following = asyncio.create_task(self._follow())
        with suppress(asyncio.CancelledError):
            await self._following

    def stop(self) -> None:
        """Let a running command end; a second call cancels it."""
        self._stops += 1
        if not self._is_busy or self._stops > 1:
            self._following.cancel()

    async def _follow(self) -> None:
        async for batch, seen in self._letters.batches():
            for message in batch:
                if self._bookmark.has(message.id):
                    continue
                self._is_busy = True
                await self._hand_out(message)
                self._is_busy = False
                self._bookmark.add(message.id)
                if self._stops:
                    return
            self._bookmark.move(seen)


def _printer(*, as_json: bool) -> _HandOut:
    async def show_one(message: ArchivedMessage) -> None:
        if as_json:
            typer.echo(row_json(message))
        else:
            at = when(message.archived_at, full=True)
            line = f"{at} {message.queue} {message.id} {message.status}: {cell(message.details)}"
            out.print(printable(line))

    return show_one


async def _execute(command: str, message: ArchivedMessage) -> None:
    # Not a pipe: a command may end without reading it.
    with tempfile.TemporaryFile() as text:
        text.write(row_json(message).encode() + b"\n")
        text.seek(0)
        process = subprocess.Popen(  # noqa: ASYNC220, S602  quick; --exec is a shell command
            command,
            shell=True,
            stdin=text,
            # A Ctrl-C in the terminal is for the watch, which waits for the command.
            start_new_session=True,
        )
    try:
        await asyncio.to_thread(process.wait)
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    if code := process.returncode:
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        raise ConfigurationError(
            f"the command for dead message {message.id} {how}; "
            "with --state the next run passes the message again"
        )
