"""Run an export: one snapshot of the archive, streamed into files by COPY."""

from __future__ import annotations

import enum
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import asyncpg

from notifyq.archive.export import statements
from notifyq.archive.export.files import Pending, compressed, pyarrow
from notifyq.database.installs import ours
from notifyq.database.pool import explaining
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.paths import local_path

if TYPE_CHECKING:
    from notifyq.archive.export.parquet import ParquetSink
    from notifyq.database.pool import Database

_LONG = 10 * 365 * 86_400.0
"""Timeout of COPY in seconds: none, as an export may take hours."""


class Format(enum.StrEnum):
    """File format of the rows."""

    PARQUET = "parquet"
    CSV = "csv"
    JSONL = "jsonl"


_FORMATS = {**{it.value: it for it in Format}, "ndjson": Format.JSONL}
_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportChoice:
    """Which messages are written into which files.

    `path` is a file, or with `by_day` a folder. The name of a file gives the format and the
    compression, as in `archive.csv.gz`; a folder needs `format`, and may have `compression` (`gz`
    or `zst`).
    """

    path: Path
    format: Format | None = None
    compression: str | None = None
    by_day: bool = False
    queue: str | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse a URI, which would become a local folder."""
        local_path(self.path)

    def kind(self) -> tuple[Format, str | None]:
        """Format and compression, by the fields or by the name of the file."""
        name = "" if self.by_day else self.path.name
        suffix = next((it for it in _COMPRESSED if name.endswith(it)), "")
        compression = self.compression or suffix[1:] or None
        kind = self.format or _FORMATS.get(Path(name.removesuffix(suffix)).suffix[1:])
        if kind is None:
            raise ConfigurationError(
                "give --format: parquet, csv or jsonl"
                if self.by_day
                else f"the format of {str(self.path)!r} is unknown: give --format, or a name that "
                "ends in .parquet, .csv or .jsonl"
            )
        if compression not in {None, "gz", "zst"}:
            raise ConfigurationError(f"compression is gz or zst, not {compression!r}")
        if kind is Format.PARQUET and compression is not None:
            raise ConfigurationError("Parquet is compressed by itself: leave .gz or .zst away")
        return kind, compression

    def target(self, day: date | None) -> Path:
        """The file of a day, or the only one."""
        if day is None:
            return self.path
        kind, compression = self.kind()
        end = f".{compression}" if compression else ""
        return self.path / f"archive-{day}.{kind}{end}"

    def bounds(self, day: date | None) -> tuple[datetime | None, datetime | None]:
        """The first instant of a day that is exported, and the end; of all, without a day."""
        if day is None:
            return self.since, self.until
        first = datetime(day.year, day.month, day.day, tzinfo=UTC)
        last = first + timedelta(days=1)
        return max(self.since or first, first), min(self.until or last, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedArchive:
    """The result of an export."""

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

    One snapshot is read. Files get their names when all of them are complete; an export that fails
    leaves none. `on_progress` receives the number of bytes read so far. Raises ConfigurationError
    for an existing file or a missing package.
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
        async with database.connection() as connection, _snapshot(connection, database.dsn):
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
async def _snapshot(connection: Any, dsn: str) -> AsyncIterator[None]:
    """Read one state of the archive; errors of files stay what they are."""
    try:
        with explaining(dsn):
            await connection.execute("begin isolation level repeatable read, read only")
            try:
                await connection.execute(ours(connection, statements.HOLD))
                await connection.execute(statements.SETTINGS)
                yield
            finally:
                if not connection.is_closed():
                    await connection.execute("rollback")
    except NotifyqError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise


async def _days(connection: Any, choice: ExportChoice) -> list[date | None]:
    if not choice.by_day:
        return [None]
    statement = ours(connection, statements.DAYS)
    return [row[0] for row in await connection.fetch(statement, choice.since, choice.until)]


async def _copy(
    connection: Any,
    choice: ExportChoice,
    day: date | None,
    file: IO[bytes],
    note: Callable[[int], None],
) -> int:
    """Write the rows of a day, or all, and return their number."""
    kind, compression = choice.kind()
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
            # JSON has no control characters: with these as quote and delimiter it is unchanged.
            options |= (
                {"quote": "\x01", "delimiter": "\x02"} if kind is Format.JSONL else {"header": True}
            )

        async def take(data: bytes) -> None:
            sink.write(data)
            note(len(data))

        result = await cast("asyncpg.Connection[asyncpg.Record]", connection).copy_from_query(
            ours(connection, statement),
            choice.queue,
            choice.status,
            *choice.bounds(day),
            output=cast("Callable[[bytes], Coroutine[Any, Any, None]]", take),
            timeout=_LONG,
            **options,
        )
        if parquet is not None:
            parquet.close()
    return int(result.rpartition(" ")[2])
