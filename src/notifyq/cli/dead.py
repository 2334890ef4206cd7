"""`notifyq dead`: list, show, watch, retry and delete dead messages."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from notifyq.archive.dead_letters import DeadLetters
from notifyq.archive.reader import Archive
from notifyq.cli.audited import acting
from notifyq.cli.default_command import Listing
from notifyq.cli.groups import FingerprintOption, act_on, groups
from notifyq.cli.hints import require_known
from notifyq.cli.logs import LogFormat, LogLevel, configure_logging
from notifyq.cli.messages import LimitOption, show
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    QueueOption,
    cell,
    err,
    instant,
    message_json,
    open_database,
    out,
    pick,
    print_json,
    print_rows,
    printable,
    run,
    when,
)
from notifyq.cli.watch_state import Bookmark
from notifyq.cli.worker import stop_signals
from notifyq.database import sql
from notifyq.errors import ConfigurationError, ForeignPositionError
from notifyq.models.message import ArchivedMessage, Status
from notifyq.operations.monitor import Act, Conditions
from notifyq.telemetry import log_sink

dead = typer.Typer(name="dead", cls=Listing, help="List (ls), show, retry, delete dead messages.")
dead.command("show")(show)
dead.command("groups")(groups)

SubscriberOption = Annotated[
    str | None, typer.Option("--subscriber", help="Only events of this subscriber.")
]
_HandOut = Callable[[ArchivedMessage], Awaitable[None]]

MaybeIdsArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID...", min=1, max=2**63 - 1, show_default=False),
]


@dead.command()
def ls(
    queue: QueueOption = None,
    subscriber: SubscriberOption = None,
    limit: LimitOption = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead messages and events that were not retried, the latest first."""

    async def list_dead() -> None:
        async with open_database(dsn) as database:
            archive = Archive(database)
            found = await archive.dead(queue, limit, subscriber=subscriber)
            total = await archive.dead_count(queue, subscriber)
            if not found:
                await require_known(database, queue, subscriber)
        if as_json:
            for message in found:
                typer.echo(message_json(message))
            return
        names = ["id", "queue", "status", "archived_at", "details"]
        if any(m.subscriber for m in found):
            names[2:2] = ["subscriber", "event_id"]
        print_rows([pick(m, names) for m in found], as_json=False, empty="no dead messages")
        if total > len(found):
            out.print(f"{total - len(found)} more: use --limit")

    run(list_dead())


@dead.command()
def retry(
    ids: MaybeIdsArgument = None,
    queue: QueueOption = None,
    subscriber: SubscriberOption = None,
    status: Annotated[Status | None, typer.Option(help="Only of this status.")] = None,
    fingerprint: FingerprintOption = None,
    since: Annotated[Any, typer.Option(parser=instant, metavar="INSTANT")] = None,
    until: Annotated[Any, typer.Option(parser=instant, metavar="INSTANT")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead messages.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10**5, help="At most.")] = 1000,
    dsn: DsnOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Publish dead messages again, by id or by filter; each only once.

    A dead event is delivered again to its subscriber alone.
    """
    given = (queue, subscriber, status, fingerprint, since, until)
    if bool(ids) == (everything or any(value is not None for value in given)):
        raise typer.BadParameter("give ids, or a filter, or --all")

    async def retry_dead() -> None:
        if fingerprint is not None:
            conditions = Conditions(
                queue=queue, subscriber=subscriber, state=status, fingerprint=fingerprint,
                since=since, until=until,
            )  # fmt: skip
            done = await act_on(dsn, Act.RETRY, conditions, limit)
            _tell_retried(done, None, as_json=as_json)
            return
        said = {"status": status, "since": since, "until": until}
        subject = _subject(ids, queue)
        async with acting(dsn, "dead.retry", subject, subscriber=subscriber, **said) as act:
            if ids:
                again = [row[0] for row in await act.fetch(sql.DEAD_RETRY, ids)]
                retried = len(again)
            else:
                again = None
                retried = await act.value(sql.REDRIVE, queue, *said.values(), limit, subscriber)
            act.note(done=retried, **({"as": again} if again else {}))
        if not ids and not retried:
            async with open_database(dsn) as database:
                await require_known(database, queue, subscriber)
        _tell_retried(retried, again, as_json=as_json)
        _require_all(ids or [], retried, "not dead, or were retried before")

    run(retry_dead())


@dead.command()
def delete(
    ids: MaybeIdsArgument = None,
    queue: QueueOption = None,
    fingerprint: FingerprintOption = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most, of a group.")
    ] = 1000,
    dsn: DsnOption = None,
) -> None:
    """Delete dead messages from the archive for good, by id, or all of a group."""
    if bool(ids) == (fingerprint is not None) or (ids and queue is not None):
        raise typer.BadParameter("give ids, or --fingerprint and perhaps --queue")

    async def delete_dead() -> None:
        if not ids:
            conditions = Conditions(queue=queue, fingerprint=fingerprint)
            out.print(f"{await act_on(dsn, Act.DELETE, conditions, limit)} deleted")
            return
        async with acting(dsn, "dead.delete", _subject(ids)) as act:
            deleted = await act.value(sql.DEAD_DELETE, ids)
            act.note(deleted=deleted)
        out.print(f"{deleted} deleted")
        _require_all(ids, deleted, "not dead")

    run(delete_dead())


def _tell_retried(done: int, ids: list[int] | None, *, as_json: bool) -> None:
    """Say how many were published again and, where they were named, as which messages."""
    if as_json:
        print_json({"published": done, "ids": ids})
    else:
        out.print(f"{done} published again" + (f" as {', '.join(map(str, ids))}" if ids else ""))


def _subject(ids: list[int] | None, queue: str | None = None) -> str:
    return ", ".join(map(str, ids)) if ids else queue or "those found"


def _require_all(ids: list[int], done: int, otherwise: str) -> None:
    given = len(set(ids))
    if done < given:
        err.print(f"notifyq: {given - done} of {given} are {otherwise}")
        raise typer.Exit(1)


@dead.command()
def watch(
    queue: QueueOption = None,
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="COMMAND", help="Run for each, JSON on its stdin."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="File that remembers what was handed out.")
    ] = None,
    since: Annotated[
        Any,
        typer.Option(parser=instant, metavar="INSTANT", help="Begin then, whatever --state says."),
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print each message that dies, or hand it to a command, until SIGTERM or SIGINT.

    Survives a restart of the server and misses nothing: the bell only says when to look. With
    --state another run goes on where this one stopped. A command that fails ends the watch with
    exit code 1, and the message is handed out again by the next run. So does a server that was
    restored: --since says where to go on. When a standby takes over, the last moments come again.
    """
    configure_logging(LogLevel.INFO, LogFormat.TEXT)

    async def watch_dead() -> None:
        async with open_database(dsn, serves=True) as database:
            await require_known(database, queue)
            archive = Archive(database)
            bookmark = Bookmark(state, queue, anew=since is not None)
            if bookmark.position is None and since is None:
                # Kept before the first look: what dies from now on is in it, however we end.
                bookmark.move(await archive.position())
            letters = DeadLetters(
                database, queue=queue, seen=bookmark.position, since=since, sink=log_sink
            )
            hand_out = _printer(as_json=as_json) if command is None else partial(_execute, command)
            watch = _Watch(letters, bookmark, hand_out)
            if bookmark.position is not None:
                await archive.known_position(bookmark.position)
            with stop_signals(watch.stop):
                await watch.run()

    try:
        run(watch_dead())
    except ForeignPositionError as error:
        where = "" if state is None else f"{state}: "
        raise ConfigurationError(
            f"{where}{error.args[0]}: give --since INSTANT to have again what died since then"
        ) from error


class _Watch:
    """Hands out dead messages, one after the other, until it is stopped."""

    def __init__(self, letters: DeadLetters, bookmark: Bookmark, hand_out: _HandOut) -> None:
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
        """Let a command that has begun come to its end; called again, break it off."""
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
            typer.echo(message_json(message))
        else:
            at = when(message.archived_at, full=True)
            line = f"{at} {message.queue} {message.id} {message.status}: {cell(message.details)}"
            out.print(printable(line))

    return show_one


async def _execute(command: str, message: ArchivedMessage) -> None:
    # Not a pipe: a command is free to end without reading it.
    with tempfile.TemporaryFile() as text:
        text.write(message_json(message).encode() + b"\n")
        text.seek(0)
        process = subprocess.Popen(  # noqa: ASYNC220, S602  quick; the shell is what was asked for
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
            "with --state the next run hands it out again"
        )
