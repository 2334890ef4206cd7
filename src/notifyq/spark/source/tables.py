"""The tables behind the options of a read, and the conditions that the options mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg import sql

from notifyq.errors import StreamNotFoundError
from notifyq.spark import statements
from notifyq.spark.source.options import TIMES

if TYPE_CHECKING:
    from notifyq.spark.connection import Session
    from notifyq.spark.source.options import ReadOptions

_NAMES = {
    "archive": "messages.message_archive",
    "dead": "messages.message_archive",
    "events": "messages.event",
    "messages": "messages.message",
}


def table(options: ReadOptions) -> sql.Composable:
    """Return the name of the table; it has the rows of all its partitions."""
    return sql.SQL(_NAMES[options.table])


def query(
    options: ReadOptions, columns: Sequence[str], conditions: Sequence[sql.Composable]
) -> str:
    """Return the statement that reads the columns of the rows that meet all conditions."""
    return (
        sql.SQL(statements.READ)
        .format(
            columns=statements.selected(columns),
            table=table(options),
            condition=sql.SQL(" and ").join(conditions),
        )
        .as_string(None)
    )


def chosen(options: ReadOptions) -> list[sql.Composable]:
    """Return the conditions of the options."""
    conditions: list[sql.Composable] = [sql.SQL("true")]
    if options.table == "dead":
        # The condition of messages.dead_message, which has no ctid to read by blocks.
        conditions.append(sql.SQL("r.status <> 'success' and r.cancelled_by is null"))
    if options.queue is not None:
        conditions.append(sql.SQL("r.queue = {}").format(sql.Literal(options.queue)))
    for operator, instant in ((">=", options.since), ("<", options.until)):
        if instant is not None:
            conditions.append(
                sql.SQL("r.{} {} {}").format(
                    sql.Identifier(TIMES[options.table]),
                    sql.SQL(operator),
                    sql.Literal(instant.isoformat()),
                )
            )
    return conditions


def segments(session: Session, stream: str) -> list[tuple[int, int, int]]:
    """Return id, file number and pages of each segment of a stream."""
    found = session.execute(statements.STREAM_TABLES, (stream,)).fetchall()
    if not found:
        raise StreamNotFoundError(f"there is no stream {stream!r}")
    return [(number, node, pages) for number, node, pages in found if number is not None]


def of_segments(numbers: Sequence[int]) -> sql.Composable:
    """Return the condition of rows in these segments; tables of others are not even opened."""
    if not numbers:
        return sql.SQL("false")
    return sql.SQL("r.segment in ({})").format(sql.SQL(", ").join(map(sql.Literal, numbers)))
