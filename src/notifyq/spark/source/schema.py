"""The schemas that Spark gets: the columns of a table, or those that were chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from notifyq.errors import ConfigurationError
from notifyq.spark.columns import ARCHIVE, EVENTS, MESSAGES, kind

_COLUMNS = {"archive": ARCHIVE, "dead": ARCHIVE, "messages": MESSAGES, "events": EVENTS}


def columns(table: str, chosen: Sequence[str] | None = None) -> dict[str, str]:
    """Return the columns of a table, or those that were chosen, with their types in Spark."""
    known = _COLUMNS[table]
    for name in chosen or ():
        if name not in known:
            raise ConfigurationError(f"{table} has no column {name!r}; it has {', '.join(known)}")
    return {name: kind(name) for name in chosen or known}


def struct(table: str, chosen: Sequence[str] | None = None) -> Any:
    """Return the columns as a schema of Spark."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

    types = {
        "bigint": LongType(), "int": IntegerType(), "string": StringType(),
        "timestamp": TimestampType(),
    }  # fmt: skip
    schema = StructType()
    for name, type_ in columns(table, chosen).items():
        schema.add(name, types[type_])
    return schema


def check(table: str, schema: Any) -> tuple[str, ...]:
    """Return the names in a schema of Spark, which may omit columns but not change their types."""
    chosen = tuple(schema.fieldNames())
    for name, wanted in columns(table, chosen).items():
        given = schema[name].dataType.simpleString()
        if given != wanted:
            raise ConfigurationError(
                f"column {name} of {table} is {wanted}, not {given}: convert it after reading"
            )
    return chosen
