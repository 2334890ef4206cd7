"""`notifyq publish`: one message, or many from standard input."""

import asyncio
import contextlib
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any, NoReturn, TypeVar

import asyncpg
import typer

from notifyq.cli.command import open_database
from notifyq.cli.options import (
    AttemptsOption,
    DsnOption,
    HeaderOption,
    PriorityOption,
    TypeOption,
    duration_option,
    flag,
    headers,
    instant_option,
    option,
    require_json,
)
from notifyq.cli.output import err, out, print_json
from notifyq.cli.progress import Progress
from notifyq.database.encryption.envelopes import environment_keys
from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.models.payload import Json, check_json
from notifyq.queues.admin import Admin
from notifyq.queues.publish_options import DedupScope, OnDuplicate, OnFailure
from notifyq.queues.publisher import Publisher
from notifyq.streams.admin import Streams

T = TypeVar("T")

_LONGEST = 1 << 28
"""Bytes of the largest message that a queue can take."""
_WIDEST = 8
"""Most bytes of a line for each byte of its message: an escaped character has six."""
_BATCH = 1 << 18
"""About how many bytes of input one statement publishes."""


async def publish(
    queue: Annotated[str, typer.Argument(help="Queue to publish into.")],
    message: str = typer.Argument(
        "-", metavar="[JSON|-]", help="The message; - reads one a line from stdin."
    ),
    priority: PriorityOption = 0,
    delay: timedelta | None = duration_option("Hand out after this long."),
    at: datetime | None = instant_option("Hand out from then on."),
    type_: TypeOption = None,
    header: HeaderOption = None,
    dedup_key: str | None = option("Publish only if no live message has this key."),
    dedup_scope: DedupScope | None = option("State in which a message holds its key."),
    dedup_window: timedelta | None = duration_option("Least time that it holds its key."),
    on_duplicate: OnDuplicate = option(
        "What to do with the message that holds the key.", default="keep"
    ),
    key: str | None = option("Key of the message, for order and limits of a key."),
    max_attempts: AttemptsOption = None,
    after: list[int] | None = option(
        "Hand out when this message has ended; may be repeated.", metavar="ID", min=1, max=2**63 - 1
    ),
    on_failure: OnFailure | None = option(
        "If one of those is dead: cancel this one (the default), run it, or hold it."
    ),
    expires_in: timedelta | None = duration_option(
        "Reject the message, unless it is a duplicate, if no worker claims it within this time."
    ),
    cost: int | None = option(
        "Tokens that each attempt takes from the rates of its queue and key; by default one.",
        min=1,
        max=1_000_000_000,
    ),
    follow: bool = option("Publish lines of stdin as they come.", "--follow", "-f", default=False),
    dsn: DsnOption = None,
    as_json: bool = flag("--json", "Print the id, or how many, as JSON."),
) -> None:
    """Publish a message, or each line of standard input.

    Prints the id of the message, or how many were published. For a duplicate it prints the id of
    the message that has the key, and a note on stderr. All lines are published or none; with
    --follow a batch at a time, and after an error the batches before it stay published.
    """
    if delay is not None and at is not None:
        raise typer.BadParameter("--delay and --at exclude each other")
    if on_failure is not None and not after:
        raise typer.BadParameter("--on-failure is for what is published with --after")
    options: dict[str, Any] = {
        "priority": priority,
        "delay": delay,
        "available_at": at,
        "type": type_,
        "headers": headers(header),
        "max_attempts": max_attempts,
        "dedup_scope": dedup_scope,
        "dedup_window": dedup_window,
        "on_duplicate": on_duplicate,
        "after": after or None,
        "on_failure": on_failure or "cancel",
        "expires_in": expires_in,
        "cost": cost,
    }
    if message == "-":
        if dedup_key is not None:
            raise typer.BadParameter("--dedup-key is for a single message")
        keys = {} if key is None else {"key": lambda _: key}
        await _publish_lines(dsn, queue, options | keys, follow=follow, as_json=as_json)
        return
    if follow:
        raise typer.BadParameter("--follow is for lines of standard input")
    require_json("message", message)
    async with open_database(dsn, keys=environment_keys()) as database:
        published = await Publisher(database).publish(
            queue, Json(message), dedup_key=dedup_key, key=key, **options
        )
    if as_json:
        print_json({"queue": queue, "id": published, "is_duplicate": published.is_duplicate})
        return
    out.print(published)
    if published.is_duplicate:
        became = (
            "nothing was published"
            if on_duplicate == "keep"
            else "it gets this payload, unless a worker has locked it"
        )
        err.print(f"notifyq: a duplicate: message {published} has this dedup key, {became}")


async def _publish_lines(
    dsn: str | None, queue: str, options: dict[str, Any], *, follow: bool, as_json: bool
) -> None:
    if sys.stdin.isatty() and not follow:
        err.print("one message a line, as JSON; Ctrl-D publishes them, Ctrl-C none")
    info = os.fstat(sys.stdin.fileno())
    size = info.st_size if stat.S_ISREG(info.st_mode) else None
    published = 0
    try:
        with Progress("publishing", total=size, unit="B") as progress:
            async with open_database(
                dsn, command_timeout=86400, keys=environment_keys()
            ) as database:
                publisher = Publisher(database)
                longest = await _longest_line(database, queue)
                transaction = contextlib.nullcontext() if follow else publisher.transaction()
                async with transaction as connection:
                    async for batch, read in _batches(queue, longest, follow=follow):
                        call = publisher.publish_many(
                            queue, batch, connection=connection, **options
                        )
                        published += len(await (_to_its_end(call) if follow else call))
                        progress.advance(read)
    except BaseException:
        if follow:
            _report(queue, published, as_json=as_json)
        raise
    _report(queue, published, as_json=as_json)


def _report(queue: str, published: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "published": published})
    else:
        out.print(f"{published} published")


async def _to_its_end(call: Coroutine[Any, Any, list[T]]) -> list[T]:
    """Await a call and only then a Ctrl-C: a cancelled call may or may not have published."""
    running = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        ids = await running
        if (waiting := asyncio.current_task()) is not None:
            waiting.cancel()  # at its next await
        return ids


async def _batches(
    queue: str, longest: int, *, follow: bool
) -> AsyncIterator[tuple[list[Json], int]]:
    """Yield the messages of standard input in batches, each with its number of bytes."""
    number = 0
    async for lines in _lines(follow=follow, queue=queue, longest=longest):
        batch: list[Json] = []
        for line in lines:
            number += 1
            if line and not line.isspace():
                batch.append(_message(line, number, follow=follow))
        yield batch, sum(map(len, lines)) + len(lines)


def _message(line: bytes, number: int, *, follow: bool) -> Json:
    try:
        text = line.decode().strip()
        check_json(text)
    except ValueError as error:
        what = "nothing of its batch" if follow else "nothing"
        raise ConfigurationError(
            f"line {number} is not JSON: {error}; {what} was published"
        ) from error
    return Json(text)


async def _longest_line(database: Database, queue: str) -> int:
    """Most bytes of a line for a queue or a stream: a longer one is refused before its end."""
    # Without the right to see the policy, the limit is that of the largest possible queue.
    with contextlib.suppress(NotifyqError, asyncpg.PostgresError):
        for kind, read in (
            ("queue", Admin(database).queue_info),
            ("stream", Streams(database).info),
        ):
            for row in await read():
                if row[kind] == queue:
                    return min(_WIDEST * int(row["max_bytes"]), _LONGEST)
    return _LONGEST


async def _lines(
    *, follow: bool, queue: str = "", longest: int = _LONGEST
) -> AsyncIterator[list[bytes]]:
    """Read lines of standard input: with follow as many as are there, else a batch."""
    stdin = sys.stdin.buffer
    begun = bytearray()
    is_over = False
    while not is_over:
        # A Ctrl-C that came during the lines before takes effect here.
        await asyncio.sleep(0)
        with _interruptible():
            # A library may have swallowed it, as a driver can while it connects; the read below
            # would block it further.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError
            read = os.read(stdin.fileno(), _BATCH) if follow else stdin.read(_BATCH)
        # At the end of input another read of a terminal would wait for another Ctrl-D.
        is_over = not read if follow else len(read) < _BATCH
        begun += read
        whole = len(begun) if is_over else begun.rfind(b"\n", len(begun) - len(read)) + 1
        if whole:
            yield bytes(begun[:whole]).removesuffix(b"\n").split(b"\n")
            del begun[:whole]
        if len(begun) > longest:
            raise ConfigurationError(
                f"a line has more than {longest:,} bytes, and queue {queue!r} takes no message as "
                f"large: {'nothing of its batch' if follow else 'nothing'} was published"
            )


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end a read; the handler of asyncio would not interrupt it."""

    def cancel(*_: object) -> NoReturn:
        raise asyncio.CancelledError

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
