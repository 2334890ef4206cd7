"""`notifyq publish`: one message, or many from standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import asyncpg
import typer

from notifyq.cli.output import (
    DsnOption,
    duration,
    err,
    headers,
    instant,
    open_database,
    out,
    print_json,
    run,
)
from notifyq.cli.progress import Progress
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.models.payload import Json, check_json
from notifyq.queues.admin import Admin
from notifyq.queues.publish_options import DedupScope, OnDuplicate, OnFailure
from notifyq.queues.publisher import Publisher
from notifyq.streams.admin import Streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from notifyq.database.pool import Database

_LONGEST = 1 << 28
"""Bytes of the largest message that a queue can take."""
_WIDEST = 8
"""Bytes of a line for each byte of its message, at most: six for an escaped character, and room."""
_BATCH = 1 << 18
"""Bytes of input that are published by one statement, more or less."""


def publish(
    queue: Annotated[str, typer.Argument(help="Queue to publish into.")],
    message: Annotated[
        str, typer.Argument(metavar="[JSON|-]", help="The message; - reads one a line from stdin.")
    ] = "-",
    priority: Annotated[
        int, typer.Option(min=-(2**31), max=2**31 - 1, help="Larger is handed out first.")
    ] = 0,
    delay: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="Hand out after this long.")
    ] = None,
    at: Annotated[
        Any, typer.Option(parser=instant, metavar="INSTANT", help="Hand out from then on.")
    ] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Type of the message.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    dedup_key: Annotated[
        str | None, typer.Option(help="Publish only if no live message has this key.")
    ] = None,
    dedup_scope: Annotated[
        DedupScope | None, typer.Option(help="Until when a message has its key.")
    ] = None,
    dedup_window: Annotated[
        Any, typer.Option(parser=duration, metavar="DURATION", help="It has it this long at least.")
    ] = None,
    on_duplicate: Annotated[
        OnDuplicate, typer.Option(help="What becomes of the message that has the key.")
    ] = "keep",
    key: Annotated[
        str | None, typer.Option(help="What the message is about: order and limits go by it.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Attempts; by default those of the queue.")
    ] = None,
    after: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ID",
            min=1,
            max=2**63 - 1,
            help="Hand out when this message has ended; may be repeated.",
        ),
    ] = None,
    on_failure: Annotated[
        OnFailure | None,
        typer.Option(
            help="What if one of those dies: cancel this one (as by default), run it, or hold it.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Publish lines of stdin as they come, for ever.")
    ] = False,
    dsn: DsnOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the id, or how many, as JSON.")
    ] = False,
) -> None:
    """Publish a message and print its id; or publish each line of standard input.

    Lines are published all or none; with --follow a batch at a time, and an error leaves those
    before it published.
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
        "headers": headers(header or []),
        "max_attempts": max_attempts,
        "dedup_scope": dedup_scope,
        "dedup_window": dedup_window,
        "on_duplicate": on_duplicate,
        "after": after or None,
        "on_failure": on_failure or "cancel",
    }
    if message == "-":
        if dedup_key is not None:
            raise typer.BadParameter("--dedup-key is for a single message")
        keys = {} if key is None else {"key": lambda _: key}
        run(_publish_lines(dsn, queue, options | keys, follow=follow, as_json=as_json))
        return
    if follow:
        raise typer.BadParameter("--follow is for lines of standard input")
    try:
        check_json(message)
    except ValueError as error:
        raise ConfigurationError(
            f"the message is not JSON: {error}; a text needs quotes of its own, as in '\"hello\"'"
        ) from error

    async def publish_one() -> None:
        async with open_database(dsn) as database:
            published = await Publisher(database).publish(
                queue, Json(message), dedup_key=dedup_key, key=key, **options
            )
        _tell(queue, "id", published, as_json=as_json)

    run(publish_one())


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
            async with open_database(dsn, command_timeout=86400) as database:
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
            _tell(queue, "published", published, as_json=as_json)
        raise
    _tell(queue, "published", published, as_json=as_json)


def _tell(queue: str, what: str, number: int, *, as_json: bool) -> None:
    """Print the id of a message, or how many were published."""
    if as_json:
        print_json({"queue": queue, what: number})
    else:
        out.print(number if what == "id" else f"{number} published")


async def _to_its_end(call: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Await a call; a Ctrl-C comes after it, as nobody could say what one that was cut off did."""
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
    """Give the messages of standard input, many at a time, and how many bytes they took."""
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
    """How many bytes a line for a queue or a stream can have, so that not all of it is read."""
    # A publisher may not see the policy: then it is what the largest queue takes.
    with contextlib.suppress(NotifyqError, asyncpg.PostgresError):
        for row in await Admin(database).queue_info():
            if row["queue"] == queue:
                return min(_WIDEST * int(row["max_bytes"]), _LONGEST)
        for row in await Streams(database).info():
            if row["stream"] == queue:
                return min(_WIDEST * int(row["max_bytes"]), _LONGEST)
    return _LONGEST


async def _lines(
    *, follow: bool, queue: str = "", longest: int = _LONGEST
) -> AsyncIterator[list[bytes]]:
    """Read lines of standard input: as many as are there, or else as make a batch."""
    stdin = sys.stdin.buffer
    begun = bytearray()
    is_over = False
    while not is_over:
        # A Ctrl-C during the lines before has its effect here.
        await asyncio.sleep(0)
        with _interruptible():
            # One that a library has swallowed, as a driver may while it connects, or that came just
            # now: nobody would hear of it while the read goes on.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError
            read = os.read(stdin.fileno(), _BATCH) if follow else stdin.read(_BATCH)
        # The end of the input; in a terminal another read would wait for another Ctrl-D.
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
    """Let Ctrl-C end a read: asyncio would take note of it, and the read go on."""

    def cancel(*_: object) -> NoReturn:
        raise asyncio.CancelledError

    before = signal.signal(signal.SIGINT, cancel)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
