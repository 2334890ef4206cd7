"""The columns of what can be read: their types in Spark, and how PostgreSQL writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT = {"headers", "message", "result", "state", "status"}
"""Columns of types that Spark has not: they are read as text."""

_ARCHIVE = {
    "id": "bigint",
    "queue": "string",
    "type": "string",
    "status": "string",
    "priority": "int",
    "attempts": "int",
    "max_attempts": "int",
    "key": "string",
    "dedup_key": "string",
    "created_at": "timestamp",
    "available_at": "timestamp",
    "locked_at": "timestamp",
    "archived_at": "timestamp",
    "lock_token": "bigint",
    "xid": "bigint",
    "handled_by": "string",
    "subscriber": "string",
    "event_id": "bigint",
    "message": "string",
    "headers": "string",
    "details": "string",
    "result": "string",
}
_MESSAGES = {
    "id": "bigint",
    "queue": "string",
    "type": "string",
    "state": "string",
    "priority": "int",
    "attempts": "int",
    "max_attempts": "int",
    "key": "string",
    "dedup_key": "string",
    "created_at": "timestamp",
    "available_at": "timestamp",
    "locked_at": "timestamp",
    "lock_expires_at": "timestamp",
    "lock_token": "bigint",
    "locked_by": "string",
    "message": "string",
    "headers": "string",
    "details": "string",
}
_EVENTS = {
    "id": "bigint",
    "type": "string",
    "key": "string",
    "created_at": "timestamp",
    "xid": "bigint",
    "message": "string",
    "headers": "string",
}
_COLUMNS = {"archive": _ARCHIVE, "dead": _ARCHIVE, "messages": _MESSAGES, "events": _EVENTS}


def columns(table: str, chosen: Sequence[str] | None = None) -> dict[str, str]:
    """Give the columns of a table, or those that were chosen, with the types that Spark knows."""
    known = _COLUMNS[table]
    for name in chosen or ():
        if name not in known:
            raise ConfigurationError(f"{table} has no column {name!r}; it has {', '.join(known)}")
    return {name: known[name] for name in chosen or known}


def struct(table: str, chosen: Sequence[str] | None = None) -> Any:
    """Give the columns as Spark is told of them."""
    from pyspark.sql.types import StructField, StructType

    kinds = columns(table, chosen)
    return StructType([StructField(name, _type(kind)) for name, kind in kinds.items()])


def _type(kind: str) -> Any:
    from pyspark.sql.types import IntegerType, LongType, StringType, TimestampType

    types = {"bigint": LongType, "int": IntegerType, "string": StringType}
    return types.get(kind, TimestampType)()


def check(table: str, schema: Any) -> tuple[str, ...]:
    """Give the names in a schema of Spark, which may leave columns out but not change them."""
    chosen = tuple(schema.fieldNames())
    for name, kind in columns(table, chosen).items():
        given = schema[name].dataType.simpleString()
        if given != kind:
            raise ConfigurationError(
                f"column {name} of {table} is {kind}, not {given}: convert it after reading"
            )
    return chosen


def expression(name: str) -> str:
    """Give what PostgreSQL shall compute for a column, so that Arrow has its type."""
    if name == "xid":
        return "r.xid::text::bigint as xid"
    return f"r.{name}::text as {name}" if name in _TEXT else f"r.{name}"
