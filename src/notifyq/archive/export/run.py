"""Run an export: one snapshot of the archive, streamed into files by COPY."""

from __future__ import annotations

import time
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

from notifyq.archive.export import statements
from notifyq.archive.export.choice import ExportChoice, Format
from notifyq.archive.export.files import Pending, compressed, pyarrow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from datetime import date

    import asyncpg

    from notifyq.archive.export.parquet import ParquetSink
    from notifyq.database.pool import Database

_LONG = 10 * 365 * 86_400.0
"""Seconds that COPY may take: as long as it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedArchive:
    """What an export has written."""

    path: str
    rows: int
    bytes: int
    files: int
    seconds: float


class _Sink(Protocol):
    def write(self, data: bytes, /) -> Any: ...


async def export_archive(
    database: Database,
    choice: ExportChoice,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> ExportedArchive:
    """Write the archive, or a part of it, into a file or into one for each day.

    All of it is read under one snapshot. Files have their names when all of them are complete;
    whatever ends this before leaves nothing. `on_progress` hears how many bytes have been read.
    Raises ConfigurationError where a file is there already, or a package is missing.
    """
    began = time.monotonic()
    kind, compression = choice.kind()
    if kind is Format.PARQUET or compression == "zst":
        pyarrow()
    if choice.by_day:
        choice.path.mkdir(parents=True, exist_ok=True)
    rows = files = read = 0

    def note(more: int) -> None:
        nonlocal read
        read += more
        if on_progress is not None:
            on_progress(read)

    with Pending(force=choice.force) as pending:
        if not choice.by_day:
            pending.check(choice.path)
        async with database.connection() as connection, _snapshot(connection):
            for day in await _days(connection, choice):
                with pending.open(choice.target(day)) as file:
                    count = await _copy(connection, choice, day, file, note)
                rows += count
                if count or day is None:
                    files += 1
                else:
                    pending.drop_last()
        size = pending.publish()
    return ExportedArchive(
        path=str(choice.path), rows=rows, bytes=size, files=files, seconds=time.monotonic() - began
    )


@asynccontextmanager
async def _snapshot(connection: Any) -> AsyncIterator[None]:
    """Read one state of the archive, whatever happens meanwhile."""
    await connection.execute("begin isolation level repeatable read, read only")
    try:
        await connection.execute(statements.HOLD)
        await connection.execute(statements.SETTINGS)
        yield
    finally:
        if not connection.is_closed():
            await connection.execute("rollback")


async def _days(connection: Any, choice: ExportChoice) -> list[date | None]:
    if not choice.by_day:
        return [None]
    return [row[0] for row in await connection.fetch(statements.DAYS, choice.since, choice.until)]


async def _copy(
    connection: Any,
    choice: ExportChoice,
    day: date | None,
    file: IO[bytes],
    note: Callable[[int], None],
) -> int:
    """Write the rows of a day, or all, and return how many they are."""
    kind, compression = choice.kind()
    since, until = _bounds(choice, day)
    with ExitStack() as stack:
        sink: _Sink
        parquet: ParquetSink | None = None
        options: dict[str, Any] = {"format": "csv"}
        if kind is Format.PARQUET:
            from notifyq.archive.export import parquet as module

            statement = statements.MICROSECONDS
            sink = parquet = module.ParquetSink(file)
        else:
            sink = stack.enter_context(compressed(file, compression))
            statement = statements.JSON if kind is Format.JSONL else statements.CSV
            # JSON has no control characters: with these as quote and delimiter it stays as it is.
            options |= (
                {"quote": "\x01", "delimiter": "\x02"} if kind is Format.JSONL else {"header": True}
            )

        async def take(data: bytes) -> None:
            sink.write(data)
            note(len(data))

        result = await cast("asyncpg.Connection[asyncpg.Record]", connection).copy_from_query(
            statement,
            choice.queue,
            choice.status,
            since,
            until,
            output=cast("Callable[[bytes], Coroutine[Any, Any, None]]", take),
            timeout=_LONG,
            **options,
        )
        if parquet is not None:
            parquet.close()
    return int(result.rpartition(" ")[2])


def _bounds(choice: ExportChoice, day: date | None) -> tuple[datetime | None, datetime | None]:
    if day is None:
        return choice.since, choice.until
    first = datetime(day.year, day.month, day.day, tzinfo=UTC)
    last = first + timedelta(days=1)
    since, until = choice.since or first, choice.until or last
    return max(since, first), min(until, last)
