"""Files of rows - Parquet, CSV, JSON lines - in chunks that tasks read, none of them as a whole."""

from __future__ import annotations

import csv
import gzip
import json
import os
from contextlib import closing
from dataclasses import dataclass, replace
from socket import gethostname
from typing import IO, TYPE_CHECKING, Any

import pyarrow.parquet as pq

from notifyq.errors import ConfigurationError
from notifyq.paths import local_path
from notifyq.spark import jsontext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Encode = Callable[[Sequence[str] | None], str]

FORMATS = ("csv", "jsonl", "parquet")
_LONGEST = 1 << 28
"""Bytes of the largest message that a queue can take."""
_SHOWN = 1000
_TOO_LONG = f"a line has more than {_LONGEST:,} bytes, which is more than any message"
_ENDS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_BYTES = 32_000_000
"""Of a file of JSON lines that one task reads."""
_ROWS = 200_000
"""Of a Parquet file that one task reads, at least."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one task reads: bytes of JSON lines, row groups of Parquet, or all of a CSV file."""

    path: str
    kind: str
    first: int = 0
    last: int = 0
    size: int = 0
    """Bytes of the whole file, where the chunks were made."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; `position` is its number in the file, of JSON lines the byte that it begins at.

    `encode` writes some of its columns as a JSON object, or all of them.
    """

    position: int
    values: dict[str, Any]
    encode: Encode
    is_sparse: bool = False
    """Whether a column that is not there is null."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why."""

    position: int
    text: str
    reason: str


def chunks(files: Sequence[str | Path], kind: str | None = None) -> list[Chunk]:
    """Split files into what tasks read; the kind of each is told by its name if it is not given."""
    found: list[Chunk] = []
    for file in files:
        path = local_path(file)
        if not path.is_file():
            raise ConfigurationError(f"{path} is no file that can be read")
        size = path.stat().st_size
        found += [replace(chunk, size=size) for chunk in _split(path, kind or _kind(path))]
    return found


def read(chunk: Chunk) -> Iterator[Row | BadRow]:
    """Give the rows of a chunk in their order; refuse a file that is another one here."""
    _check(chunk)
    match chunk.kind:
        case "parquet":
            return _parquet(chunk)
        case "csv":
            return _csv(chunk)
        case _:
            return _json_lines(chunk)


def _check(chunk: Chunk) -> None:
    try:
        size = os.stat(chunk.path).st_size  # noqa: PTH116 - a path of a task is text
    except OSError as error:
        raise ConfigurationError(
            f"{chunk.path} cannot be read on {gethostname()}: {error.strerror}; every executor "
            "must have the files of a load at the same path"
        ) from None
    if size != chunk.size:
        raise ConfigurationError(
            f"{chunk.path} has {size} bytes on {gethostname()} and had {chunk.size} where the load "
            "began: every executor must have the same file, and it must not change meanwhile"
        )


def _kind(path: Path) -> str:
    name = path.with_suffix("") if path.suffix == ".gz" else path
    try:
        return _ENDS[name.suffix]
    except KeyError:
        raise ConfigurationError(
            f"{path}: its name does not tell the format: give it, one of {', '.join(FORMATS)}"
        ) from None


def _split(path: Path, kind: str) -> Iterator[Chunk]:
    if kind == "parquet":
        try:
            metadata = pq.read_metadata(path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} is no Parquet file: {error}") from None
        first = rows = 0
        for group in range(metadata.num_row_groups):
            rows += metadata.row_group(group).num_rows
            if rows >= _ROWS or group + 1 == metadata.num_row_groups:
                yield Chunk(str(path), kind, first, group + 1)
                first, rows = group + 1, 0
    elif kind == "jsonl" and path.suffix != ".gz":
        size = path.stat().st_size
        for first in range(0, size, _BYTES):
            yield Chunk(str(path), kind, first, min(first + _BYTES, size))
    else:
        # A quoted value may have line ends, and what is packed has no middle.
        yield Chunk(str(path), kind)


def _open(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")  # noqa: PTH123 - closed by who calls


def _lines(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Read lines, each with its size; of one larger than any message only the first bytes."""
    while line := file.readline(_LONGEST):
        size = len(line)
        if size == _LONGEST and not line.endswith(b"\n"):
            line = line[:_SHOWN]
            while more := file.readline(_BYTES):
                size += len(more)
                if more.endswith(b"\n"):
                    break
        yield line, size


def _checked_lines(file: IO[bytes], path: str) -> Iterator[bytes]:
    for line, size in _lines(file):
        if size > len(line):
            raise ConfigurationError(f"{path}: {_TOO_LONG}")
        yield line


def _json_lines(chunk: Chunk) -> Iterator[Row | BadRow]:
    with closing(_open(chunk.path)) as file:
        position = chunk.first
        if position:
            # The line that goes over the border is of the chunk before.
            file.seek(position - 1)
            position += next(_lines(file), (b"", 0))[1] - 1
        for line, size in _lines(file):
            if chunk.last and position >= chunk.last:
                return
            start, position = position, position + size
            if line.isspace():
                continue
            if size > len(line):
                yield BadRow(start, line.decode("utf-8", "replace"), _TOO_LONG)
                continue
            try:
                text = line.decode("utf-8").strip()
                values = json.loads(text, parse_constant=_refuse)
                if not isinstance(values, dict):
                    raise TypeError("a row is a JSON object")  # noqa: TRY301
            except (ValueError, TypeError, RecursionError) as error:
                yield BadRow(start, line.decode("utf-8", "replace").strip(), f"no JSON: {error}")
                continue
            yield Row(start, values, _JsonRow(values, text), is_sparse=True)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class _JsonRow:
    def __init__(self, values: dict[str, Any], text: str | None = None) -> None:
        self._values = values
        self._text = text

    def __call__(self, names: Sequence[str] | None) -> str:
        if names is None:
            # As it is: no digit of a number is lost.
            return self._text or json.dumps(self._values, ensure_ascii=False)
        return json.dumps({name: self._values.get(name) for name in names}, ensure_ascii=False)


def _csv(chunk: Chunk) -> Iterator[Row | BadRow]:
    with closing(_open(chunk.path)) as file:
        lines = (
            line.decode("utf-8-sig" if i == 0 else "utf-8")
            for i, line in enumerate(_checked_lines(file, chunk.path))
        )
        reader = csv.reader(lines, strict=True)
        names = next(reader, None)
        if not names:
            raise ConfigurationError(f"{chunk.path} is empty: its first line names the columns")
        number = 0
        while True:
            number += 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                yield BadRow(number, "", f"no CSV: {error}")
                continue
            if not cells:
                continue
            if len(cells) != len(names):
                yield BadRow(
                    number, ",".join(cells), f"{len(cells)} values for {len(names)} columns"
                )
                continue
            values = dict(zip(names, cells, strict=True))
            yield Row(number, values, _JsonRow(values))


def _parquet(chunk: Chunk) -> Iterator[Row | BadRow]:
    with pq.ParquetFile(chunk.path) as file:
        before = (file.metadata.row_group(group).num_rows for group in range(chunk.first))
        number = sum(before)
        groups = list(range(chunk.first, chunk.last))
        for batch in file.iter_batches(10_000, row_groups=groups):
            encoders = {field.name: jsontext.encoder(field.type) for field in batch.schema}
            for values in batch.to_pylist():
                number += 1
                yield Row(number, values, _ArrowRow(values, encoders))


class _ArrowRow:
    def __init__(self, values: dict[str, Any], encoders: dict[str, Callable[[Any], str]]) -> None:
        self._values = values
        self._encoders = encoders

    def __call__(self, names: Sequence[str] | None) -> str:
        members = (
            f"{json.dumps(name)}:{self._encoders[name](self._values[name])}"
            for name in (self._values if names is None else names)
        )
        return "{" + ",".join(members) + "}"
