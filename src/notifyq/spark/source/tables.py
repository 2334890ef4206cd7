"""What can be read: the tables behind the options, and the conditions that these mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from notifyq.errors import StreamNotFoundError
from notifyq.spark import statements
from notifyq.spark.source.schema import expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from notifyq.spark.source.options import ReadOptions

_NAMES = {
    "archive": "messages.message_archive",
    "dead": "messages.message_archive",
    "events": "messages.event",
    "messages": "messages.message",
}


def table(options: ReadOptions) -> sql.Composable:
    """Give the table, by which partitions are found as well."""
    return sql.SQL(_NAMES[options.table])


def query(
    options: ReadOptions, columns: Sequence[str], conditions: Sequence[sql.Composable]
) -> str:
    """Give the statement that reads the columns of the rows for which all conditions hold."""
    return (
        sql.SQL(statements.READ)
        .format(
            columns=sql.SQL(", ".join(map(expression, columns)) or "null"),
            table=table(options),
            condition=sql.SQL(" and ").join(conditions),
        )
        .as_string(None)
    )


def chosen(options: ReadOptions) -> list[sql.Composable]:
    """Give what the options say of each row."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if options.table == "dead":
        conditions.append(sql.SQL("r.status <> 'success'"))
    if options.queue is not None:
        conditions.append(sql.SQL("r.queue = {}").format(sql.Literal(options.queue)))
    return conditions


def segments(session: Connection[tuple[Any, ...]], stream: str) -> list[tuple[int, int, int]]:
    """Give the segments of a stream: id, file and pages of each."""
    found = session.execute(statements.STREAM_TABLES, (stream,)).fetchall()
    if not found:
        raise StreamNotFoundError(f"there is no stream {stream!r}")
    return [(number, node, pages) for number, node, pages in found if number is not None]


def of_segments(numbers: Sequence[int]) -> sql.Composable:
    """Tell rows that are in segments, of which others are not even opened."""
    if not numbers:
        return sql.SQL("false")
    return sql.SQL("r.segment in ({})").format(sql.SQL(", ").join(map(sql.Literal, numbers)))
