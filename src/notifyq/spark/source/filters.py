"""Filter pushdown: the filters of Spark that mean exactly the same in PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from notifyq.spark.columns import STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

_ORDERED = {
    GreaterThan: "{} > {}",
    GreaterThanOrEqual: "{} >= {}",
    LessThan: "{} < {}",
    LessThanOrEqual: "{} <= {}",
}
_OPERATORS = _ORDERED | {
    EqualTo: "{} = {}",
    EqualNullSafe: "{} is not distinct from {}",
    In: "{} in ({})",
    IsNull: "{} is null",
    IsNotNull: "{} is not null",
}
_DOCUMENTS = {"headers", "message", "result"}
_ENUMS = {"status": STATUSES, "state": {"waiting", "scheduled", "locked"}}


def condition(given: Any, kinds: Mapping[str, str]) -> sql.Composable | None:
    """Return a filter as SQL; None: Spark must apply it."""
    if isinstance(given, Not):
        # Both sides have the same three-valued logic.
        inner = condition(given.child, kinds)
        return None if inner is None else sql.SQL("not ({})").format(inner)
    if len(given.attribute) != 1 or given.attribute[0] not in kinds:
        return None
    name = given.attribute[0]
    # PostgreSQL has another order of texts and of statuses.
    if type(given) not in _OPERATORS or (type(given) in _ORDERED and kinds[name] == "string"):
        return None
    return _compare(name, _OPERATORS[type(given)], _values(given), kinds)


def _values(given: Any) -> tuple[Any, ...]:
    if isinstance(given, In):
        return tuple(given.value)
    return () if isinstance(given, IsNull | IsNotNull) else (given.value,)


def _compare(
    name: str, operator: str, values: tuple[Any, ...], kinds: Mapping[str, str]
) -> sql.Composable | None:
    literals = [_value(name, value, kinds) for value in values]
    if None in literals:
        return None
    listed = sql.SQL(", ").join(literal for literal in literals if literal)
    return sql.SQL(operator).format(sql.SQL("r.{}").format(sql.Identifier(name)), listed)


def _value(name: str, value: Any, kinds: Mapping[str, str]) -> sql.Composable | None:
    """Return a literal of the column's type; None: PostgreSQL has no such value."""
    kind = kinds[name]
    if kind == "timestamp":
        is_instant = isinstance(value, datetime) and value.tzinfo is not None
        return sql.Literal(value.isoformat()) if is_instant else None
    if kind == "string":
        is_text = isinstance(value, str) and "\0" not in value and name not in _DOCUMENTS
        is_known = name not in _ENUMS or value in _ENUMS[name]
        return sql.Literal(value) if is_text and is_known else None
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        return None
    if name == "xid":
        return sql.SQL("{}::xid8").format(sql.Literal(str(value))) if value >= 0 else None
    return sql.Literal(value)


def span(filters: list[Any], column: str) -> tuple[datetime | None, datetime | None]:
    """Return the first and last instant of a column that pass the filters."""
    since = until = None
    for given in filters:
        if getattr(given, "attribute", None) != (column,):
            continue
        value = getattr(given, "value", None)
        if not isinstance(value, datetime) or value.tzinfo is None:
            continue
        if isinstance(given, GreaterThan | GreaterThanOrEqual | EqualTo):
            since = value if since is None else max(since, value)
        if isinstance(given, LessThan | LessThanOrEqual | EqualTo):
            until = value if until is None else min(until, value)
    return since, until
