"""`notifyq dead`: list, show, watch, retry and delete dead messages."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic_core import to_json

from notifyq.archive import Archive
from notifyq.cli.common import (
    DsnOption,
    JsonOption,
    QueueOption,
    cell,
    err,
    instant,
    message_fields,
    open_database,
    out,
    pick,
    print_json,
    print_rows,
    run,
)
from notifyq.cli.logs import LogFormat, configure_logging
from notifyq.cli.messages import LimitOption, show
from notifyq.cli.worker import stop_signals
from notifyq.deadletters import DeadLetters
from notifyq.errors import ConfigurationError
from notifyq.events import log_sink
from notifyq.model import ArchivedMessage, Status
from notifyq.sql import SYSTEM

dead = typer.Typer(name="dead", help="Messages that did not succeed.", no_args_is_help=True)
dead.command("show")(show)

IdsArgument = Annotated[list[int] | None, typer.Argument(metavar="ID...", show_default=False)]


@dead.command()
def ls(
    queue: QueueOption = None,
    limit: LimitOption = 20,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead messages that were not retried, the latest first."""

    async def list_dead() -> None:
        async with open_database(dsn) as database:
            archive = Archive(database)
            found = await archive.dead(queue, limit)
            total = await archive.dead_count(queue)
        if as_json:
            for message in found:
                print_json(message_fields(message))
            return
        names = ("id", "queue", "status", "attempts", "archived_at", "details")
        print_rows([pick(m, names) for m in found], as_json=False, empty="no dead messages")
        if total > len(found):
            out.print(f"{total - len(found)} more: use --limit")

    run(list_dead())


@dead.command()
def retry(
    ids: IdsArgument = None,
    queue: QueueOption = None,
    status: Annotated[Status | None, typer.Option(help="Only of this status.")] = None,
    since: Annotated[Any, typer.Option(parser=instant, metavar="INSTANT")] = None,
    until: Annotated[Any, typer.Option(parser=instant, metavar="INSTANT")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead messages.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most.")] = 1000,
    dsn: DsnOption = None,
) -> None:
    """Publish dead messages again, by id or by filter; each only once."""
    filtered = any(value is not None for value in (queue, status, since, until))
    if bool(ids) == (filtered or everything):
        raise typer.BadParameter("give ids, or a filter, or --all")

    async def retry_dead() -> None:
        async with open_database(dsn) as database:
            archive = Archive(database)
            if ids:
                retried = len(await archive.dead_retry(ids))
            else:
                retried = await archive.redrive(queue, status, since, until, limit)
        out.print(f"{retried} published again")
        if ids and retried < len(ids):
            err.print(
                f"notifyq: {len(ids) - retried} of {len(ids)} are not dead or were retried before"
            )
            raise typer.Exit(1)

    run(retry_dead())


@dead.command()
def delete(
    ids: Annotated[list[int], typer.Argument(metavar="ID...")], dsn: DsnOption = None
) -> None:
    """Delete dead messages from the archive for good."""

    async def delete_dead() -> None:
        async with open_database(dsn) as database:
            deleted = await Archive(database).dead_delete(ids)
        out.print(f"{deleted} deleted")
        if deleted < len(set(ids)):
            err.print(f"notifyq: {len(set(ids)) - deleted} of {len(set(ids))} are not dead")
            raise typer.Exit(1)

    run(delete_dead())


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
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print each message that dies, or hand it to a command, until SIGTERM or SIGINT.

    Survives a restart of the server and misses nothing: the bell only says when to look. With
    --state another run goes on where this one stopped. A command that fails ends the watch with
    exit code 1, and the message is handed out again by the next run.
    """
    configure_logging("info", LogFormat.TEXT)

    async def watch_dead() -> None:
        async with open_database(dsn, retry_for=300) as database:
            system = await database.value(SYSTEM)
            letters = DeadLetters(
                database, queue=queue, seen=_read_state(state, system), sink=log_sink
            )
            watching = asyncio.create_task(_follow(letters, command, state, system, as_json))
            with stop_signals(watching.cancel):
                try:
                    await watching
                except asyncio.CancelledError:
                    return

    run(watch_dead())


async def _follow(
    letters: DeadLetters, command: str | None, state: Path | None, system: str, as_json: bool
) -> None:
    async for batch, seen in letters.batches():
        for message in batch:
            if command is not None:
                await _execute(command, message)
            elif as_json:
                print_json(message_fields(message))
            else:
                out.print(
                    f"{cell(message.archived_at)} {message.queue} {message.id} "
                    f"{message.status}: {cell(message.details)}"
                )
        sys.stdout.flush()
        if state is not None:
            _write_state(state, system, seen)


async def _execute(command: str, message: ArchivedMessage) -> None:
    process = await asyncio.create_subprocess_shell(command, stdin=asyncio.subprocess.PIPE)
    text = to_json(message_fields(message), timedelta_mode="float", fallback=str)
    await process.communicate(text + b"\n")
    if process.returncode:
        raise ConfigurationError(
            f"the command for dead message {message.id} ended with exit code {process.returncode}"
        )


def _read_state(path: Path | None, system: str) -> str | None:
    if path is None or not path.exists():
        return None
    try:
        kept = json.loads(path.read_text())
        found, snapshot = str(kept["system"]), str(kept["snapshot"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} cannot be read: delete it to begin now") from error
    if found != system:
        # Transaction numbers of another cluster mean nothing here.
        raise ConfigurationError(f"{path} is of another server: delete it to begin now")
    return snapshot


def _write_state(path: Path, system: str, snapshot: str) -> None:
    # Written beside and renamed: a crash leaves the old state or the new one, never half of one.
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps({"system": system, "snapshot": snapshot}))
    fresh.replace(path)
