"""`notifyq dead watch`: hand out each new dead message, in print, to a command or to a webhook."""

import asyncio
import logging
import os
import random
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from pydantic import BaseModel, Field

from notifyq.archive.dead_letters import DeadLetters
from notifyq.archive.reader import Archive
from notifyq.cli.arguments import warn_of_password
from notifyq.cli.command import open_database, run
from notifyq.cli.hints import require_known
from notifyq.cli.logs import configure_logging
from notifyq.cli.options import (
    DsnOption,
    HideOption,
    JsonOption,
    MaskOption,
    QueueOption,
    instant_option,
    masks_of,
    option,
    read_secret,
)
from notifyq.cli.output import cell, out, row_json, waits, when
from notifyq.cli.signals import stop_signals
from notifyq.config import from_environment
from notifyq.errors import ConfigurationError, ForeignPositionError
from notifyq.handlers.retries import Reject
from notifyq.models.message import ArchivedMessage
from notifyq.operations.masks import hide
from notifyq.printable import printable
from notifyq.telemetry import log_events

if TYPE_CHECKING:
    from notifyq.contrib.http import DeadWebhook

log = logging.getLogger("notifyq.dead_letters")

_WEBHOOK = "NOTIFYQ_DEAD_WEBHOOK"
_SECRET = "NOTIFYQ_DEAD_WEBHOOK_SECRET"  # noqa: S105  the name of a variable
_LONGEST_PAUSE = 300.0
"""Most seconds between two requests with the same message."""

_HandOut = Callable[[ArchivedMessage], Awaitable[float | None]]
"""Hands out a message; unless it was taken, the seconds after which it is handed out again."""


def watch(
    queue: QueueOption = None,
    command: str | None = option("Run for each, JSON on its stdin.", "--exec", metavar="COMMAND"),
    webhook: str | None = option(
        f"POST each there, as signed JSON; else {_WEBHOOK}.", metavar="URL"
    ),
    webhook_secret_file: Path | None = option(
        f"File with the secret that signs the requests, else {_SECRET}.", metavar="FILE"
    ),
    state: Path | None = option("File that keeps the position of the watch."),
    since: datetime | None = instant_option("Begin then; --state is ignored."),
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print each new dead message, or pass it to a command or a webhook.

    It runs until SIGTERM or SIGINT, survives a restart of the server and misses nothing:
    notifications only wake it. With --state another run continues where this one stopped. A command
    that fails ends the watch with exit code 1, and the next run passes the message again. A webhook
    that does not answer 2xx gets the message again, after up to 5 minutes; 410 ends the watch. A
    server that was restored ends it, too: --since sets where to continue. When a standby takes
    over, the last messages come again.
    """
    configure_logging("info")
    masks = masks_of(mask, all_payloads=hide_payloads)
    to_webhook = _webhook(webhook, webhook_secret_file, command)

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
            if bookmark.position is not None:
                await archive.known_position(bookmark.position)
            async with _handing_out(command, to_webhook, as_json=as_json) as hand_out:
                watch = _Watch(letters, bookmark, lambda message: hand_out(hide(message, masks)))
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


def _webhook(
    url: str | None, secret_file: Path | None, command: str | None
) -> "DeadWebhook | None":
    """The webhook of the options and the environment, which --exec excludes."""
    if command is not None:
        if url is not None or secret_file is not None:
            raise typer.BadParameter("--exec and --webhook exclude each other")
        return None
    if url is not None:
        warn_of_password("in --webhook", url, _WEBHOOK, "")
    url = url or from_environment(_WEBHOOK)
    if url is None:
        if secret_file is not None:
            raise typer.BadParameter("--webhook-secret-file is an option of --webhook URL")
        return None
    secret = read_secret("--webhook-secret-file", secret_file, _SECRET)
    if secret is None:
        raise ConfigurationError(
            f"--webhook needs a secret that signs the requests: set {_SECRET}, or give "
            "--webhook-secret-file"
        )
    from notifyq.contrib.http import DeadWebhook

    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    return DeadWebhook(url, secret.split())


@asynccontextmanager
async def _handing_out(
    command: str | None, webhook: "DeadWebhook | None", *, as_json: bool
) -> AsyncIterator[_HandOut]:
    if webhook is not None:
        async with webhook:
            yield _Poster(webhook).post
    elif command is not None:
        yield partial(_execute, command)
    else:
        yield _printer(as_json=as_json)


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


class _Poster:
    """Posts dead messages to a webhook; one that it did not take comes again after a backoff."""

    def __init__(self, webhook: "DeadWebhook") -> None:
        self._webhook = webhook
        self._refused = 0

    async def post(self, message: ArchivedMessage) -> float | None:
        """Post a message; the seconds until it is to be posted again, or None."""
        from notifyq.contrib.http import DeliveryError

        try:
            await self._webhook.post(message, row_json(message).encode())
        except DeliveryError as error:
            self._refused += 1
            longest = min(0.5 * 2.0 ** min(self._refused, 10), _LONGEST_PAUSE)
            pause = longest * random.uniform(0.5, 1)  # noqa: S311
            again = pause if error.after is None else error.after.total_seconds()
            log.warning(
                "the webhook did not take dead message %d, which is posted again in %.1f s: %s",
                message.id, again, printable(str(error)),
            )  # fmt: skip
            return again
        except Reject as error:
            raise ConfigurationError(
                f"the webhook did not take dead message {message.id}: {error}; "
                "with --state the next run posts the message again"
            ) from error
        self._refused = 0
        return None


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
        """Let a running command or request end; a second call cancels it."""
        self._stops += 1
        if not self._is_busy or self._stops > 1:
            self._following.cancel()

    async def _follow(self) -> None:
        async for batch, seen in self._letters.batches():
            for message in batch:
                if not self._bookmark.has(message.id):
                    await self._pass_on(message)
                if self._stops:
                    return
            self._bookmark.move(seen)

    async def _pass_on(self, message: ArchivedMessage) -> None:
        """Hand out a message until it is taken, or until a stop."""
        while not self._stops:
            self._is_busy = True
            again = await self._hand_out(message)
            self._is_busy = False
            if again is None:
                self._bookmark.add(message.id)
                return
            if not self._stops:
                await asyncio.sleep(again)


def _printer(*, as_json: bool) -> _HandOut:
    async def show_one(message: ArchivedMessage) -> float | None:
        if as_json:
            typer.echo(row_json(message))
        else:
            at = when(message.archived_at, full=True)
            line = f"{at} {message.queue} {message.id} {message.status}: {cell(message.details)}"
            out.print(printable(line))
        return None

    return show_one


async def _execute(command: str, message: ArchivedMessage) -> float | None:
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
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGTERM)
        raise
    if code := process.returncode:
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        raise ConfigurationError(
            f"the command for dead message {message.id} {how}; "
            "with --state the next run passes the message again"
        )
    return None
