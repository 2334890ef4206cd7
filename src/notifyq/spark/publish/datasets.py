"""Files of rows (Parquet, CSV, JSON lines), read in chunks; no file is held in memory."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from socket import gethostname
from typing import IO, TYPE_CHECKING, Any

import pyarrow.parquet as pq

from notifyq.errors import ConfigurationError
from notifyq.paths import local_path
from notifyq.spark.publish import jsontext

if TYPE_CHECKING:
    Encode = Callable[[Sequence[str] | None], str]

FORMATS = ("csv", "jsonl", "parquet")
_LONGEST = 1 << 28
"""Bytes of the largest message that a queue accepts."""
_SHOWN = 1000
_TOO_LONG = f"a line has more than {_LONGEST:,} bytes, which is more than any message"
_ENDS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_BYTES = 32_000_000
"""Bytes of JSON lines that one task reads."""
_ROWS = 200_000
"""Rows of a Parquet file that one task reads, at least."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The part that one task reads: bytes of JSON lines, row groups of Parquet, or a CSV file."""

    path: str
    kind: str
    first: int = 0
    last: int = 0
    size: int = 0
    """Bytes of the whole file on the driver."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row; `position` is its number in the file, for JSON lines its first byte.

    `encode` writes some or all of its columns as a JSON object.
    """

    position: int
    values: dict[str, Any]
    encode: Encode
    is_sparse: bool = False
    """Whether a missing column is null."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be read, and why."""

    position: int
    text: str
    reason: str


def chunks(files: Sequence[str | Path], kind: str | None = None) -> list[Chunk]:
    """Split files into chunks; `kind` is a format, by default that of the ending of each name."""
    found: list[Chunk] = []
    for file in files:
        path = local_path(file)
        if not path.is_file():
            raise ConfigurationError(f"{path} is not a file")
        size = path.stat().st_size
        found += [replace(chunk, size=size) for chunk in _split(path, kind or _kind(path))]
    return found


def read(chunk: Chunk) -> Iterator[Row | BadRow]:
    """Give the rows of a chunk in order; refuse a file with another size on this machine."""
    try:
        size = os.stat(chunk.path).st_size  # noqa: PTH116 - a path of a task is text
    except OSError as error:
        raise ConfigurationError(
            f"{chunk.path} cannot be read on {gethostname()}: {error.strerror}; every executor "
            "must have the files of a load at the same path"
        ) from None
    if size != chunk.size:
        raise ConfigurationError(
            f"{chunk.path} has {size} bytes on {gethostname()} and had {chunk.size} on the driver: "
            "every executor must have the same file, and it must not change during the load"
        )
    match chunk.kind:
        case "parquet":
            return _parquet(chunk)
        case "csv":
            return _csv(chunk)
        case _:
            return _json_lines(chunk)


def _kind(path: Path) -> str:
    name = path.with_suffix("") if path.suffix == ".gz" else path
    try:
        return _ENDS[name.suffix]
    except KeyError:
        raise ConfigurationError(
            f"{path}: its name has no known ending: give the format, one of {', '.join(FORMATS)}"
        ) from None


def _split(path: Path, kind: str) -> Iterator[Chunk]:
    if kind == "parquet":
        try:
            metadata = pq.read_metadata(path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} is not a Parquet file: {error}") from None
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
        # Quoted values of CSV may contain line ends, and gzip cannot be read from the middle.
        yield Chunk(str(path), kind)


def _open(path: str) -> IO[bytes]:
    if path.endswith(".gz"):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return open(path, "rb")  # noqa: PTH123 - the caller closes it


def _lines(file: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    """Give lines with their sizes; a line larger than any message is truncated."""
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
            # A line across the border belongs to the chunk before.
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
                    raise TypeError("a row must be a JSON object")  # noqa: TRY301
            except (ValueError, TypeError, RecursionError) as error:
                yield BadRow(start, line.decode("utf-8", "replace").strip(), f"not JSON: {error}")
                continue
            yield Row(start, values, _json_encoder(values, text), is_sparse=True)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def _json_encoder(values: dict[str, Any], text: str | None = None) -> Encode:
    def encode(names: Sequence[str] | None) -> str:
        if names is None and text is not None:
            return text  # it keeps all digits of numbers
        chosen = values if names is None else {name: values.get(name) for name in names}
        return json.dumps(chosen, ensure_ascii=False)

    return encode


def _csv(chunk: Chunk) -> Iterator[Row | BadRow]:
    with closing(_open(chunk.path)) as file:
        lines = (
            line.decode("utf-8-sig" if i == 0 else "utf-8")
            for i, line in enumerate(_checked_lines(file, chunk.path))
        )
        reader = csv.reader(lines, strict=True)
        names = next(reader, None)
        if not names:
            raise ConfigurationError(
                f"{chunk.path} is empty: its first line must have the names of the columns"
            )
        for number in itertools.count(1):
            try:
                cells = next(reader)
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                yield BadRow(number, "", f"not CSV: {error}")
                continue
            if not cells:
                continue
            if len(cells) != len(names):
                yield BadRow(
                    number, ",".join(cells), f"{len(cells)} values for {len(names)} columns"
                )
                continue
            values = dict(zip(names, cells, strict=True))
            yield Row(number, values, _json_encoder(values))


def _parquet(chunk: Chunk) -> Iterator[Row | BadRow]:
    with pq.ParquetFile(chunk.path) as file:
        number = sum(file.metadata.row_group(group).num_rows for group in range(chunk.first))
        groups = list(range(chunk.first, chunk.last))
        for batch in file.iter_batches(10_000, row_groups=groups):
            encoders = {field.name: jsontext.encoder(field.type) for field in batch.schema}
            for values in batch.to_pylist():
                number += 1
                yield Row(number, values, _arrow_encoder(values, encoders))


def _arrow_encoder(values: dict[str, Any], encoders: dict[str, Callable[[Any], str]]) -> Encode:
    def encode(names: Sequence[str] | None) -> str:
        members = (
            f"{json.dumps(name)}:{encoders[name](values[name])}"
            for name in (values if names is None else names)
        )
        return "{" + ",".join(members) + "}"

    return encode
