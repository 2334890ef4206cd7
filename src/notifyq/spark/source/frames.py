"""DataFrames to publish: the columns that they may have, and their batches as staged rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.errors import ConfigurationError
from notifyq.spark.publish import jsontext
from notifyq.spark.publish.staging import COLUMNS
from notifyq.spark.source.options import unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

_WRITABLE = (
    "available_at", "dedup_key", "delay", "headers", "key", "max_attempts", "message", "priority",
    "queue", "stream", "type",
)  # fmt: skip
_OPTIONS = ("dsn", "dsn_file", "load", "queue", "stream")
_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of a streaming write that Spark passes on."""
_MOST = 200
"""Characters of a row that an error shows."""
_WRONG = (ValueError, OverflowError)
"""Errors of values, also those of Arrow; Python has no year after 9999."""
_NUMBERS = {"tinyint", "smallint", "int", "bigint"}
_JSON = ("struct<", "map<", "array<", "variant")
_TAKES = {
    **{name: {"string"} for name in ("queue", "stream", "type", "key", "dedup_key")},
    "priority": _NUMBERS,
    "max_attempts": _NUMBERS,
    "delay": _NUMBERS | {"float", "double"},
    "available_at": {"timestamp"},
}


@dataclass(frozen=True, slots=True)
class Shape:
    """How rows of a DataFrame become messages."""

    columns: tuple[str, ...]
    variants: frozenset[str]
    target: str | None = None

    @property
    def targets(self) -> list[str]:
        """The queue or stream of all rows, if there is only one."""
        return [] if self.target is None else [self.target]

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch as it is staged; a ConfigurationError shows the row with the error."""
        try:
            return self._staged(batch)
        except ConfigurationError:
            for number in range(batch.num_rows):
                self._check(batch.slice(number, 1))
            raise

    def _check(self, row: pa.RecordBatch) -> None:
        try:
            self._staged(row)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}; this is row {_shown(row)}") from None

    def _staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns: dict[str, Any] = {}
        for name in self.columns:
            column = given[name]
            staged = "queue" if name == "stream" else name
            try:
                if name in {"message", "headers"}:
                    column = self._json(name, column)
                columns[staged] = _storable(column.cast(COLUMNS[staged]))
            except _WRONG as error:
                raise ConfigurationError(f"column {name}: {error}") from None
        if self.target is not None:
            columns["queue"] = pa.repeat(pa.scalar(self.target, pa.string()), batch.num_rows)
        for name in ("queue", "message"):
            if columns[name].null_count:
                raise ConfigurationError(
                    f"column {name} has a null: filter such rows, or publish the JSON null"
                )
        return pa.RecordBatch.from_pydict(columns)

    def _json(self, name: str, column: Any) -> Any:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return column
        return jsontext.texts(column, is_variant=name in self.variants)


def shape(schema: Any, options: Mapping[str, str]) -> Shape:
    """Check a schema of Spark and the options of a write."""
    for option in options:
        if option.lower() not in (*_OPTIONS, *_OF_SPARK):
            raise unknown("a write of the data source notifyq has no option", option, _OPTIONS)
    kinds = {name: schema[name].dataType.simpleString() for name in schema.fieldNames()}
    for name, kind in kinds.items():
        if name not in _WRITABLE:
            raise unknown("a message has no column", name, _WRITABLE)
        _check(name, kind)
    named = [name for name in ("queue", "stream") if name in kinds or options.get(name)]
    if len(named) != 1 or (named[0] in kinds and options.get(named[0])):
        raise ConfigurationError(
            "give the target exactly once: by option queue or stream, or by a column of that name"
        )
    if "message" not in kinds:
        raise ConfigurationError(
            "column message is missing: to publish whole rows, select "
            "struct('*') as message, or to_json(struct('*')) as message"
        )
    if "delay" in kinds and "available_at" in kinds:
        raise ConfigurationError("delay and available_at exclude each other: give one of them")
    return Shape(
        columns=tuple(kinds),
        variants=frozenset(name for name, kind in kinds.items() if kind == "variant"),
        target=options.get(named[0]) if named[0] not in kinds else None,
    )


def _storable(column: Any) -> Any:
    if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
        raise ConfigurationError("it has a NUL, which PostgreSQL does not store")
    return column


def _shown(row: pa.RecordBatch) -> str:
    values = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        with suppress(*_WRONG):
            if (value := column[0].as_py()) is not None:
                values[name] = value
    return str(values)[:_MOST]


def _check(name: str, kind: str) -> None:
    if name == "message":
        if kind != "string" and not kind.startswith(_JSON):
            raise ConfigurationError(
                f"column message is {kind}: use a string with JSON, a struct, a map, an array or a "
                "variant; to_json() makes a string"
            )
    elif name == "headers":
        if kind != "string" and not kind.startswith(("struct<", "map<string,", "variant")):
            raise ConfigurationError(f"column headers is {kind}: use a JSON object")
    elif kind not in _TAKES[name] and kind != "void":
        wanted = " or ".join(sorted(_TAKES[name]))
        raise ConfigurationError(f"column {name} is {kind}, not {wanted}: convert it before")
