"""pgmq: a table for each queue; a row that was read and is not visible again is being worked on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.errors import ConfigurationError
from notifyq.importing.table import Item, Table, short

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

_FIND = """
select m.queue_name::text as queue, quote_literal(m.queue_name) as literal,
  to_regclass(format('pgmq.%I', 'q_' || lower(m.queue_name)))::text as name
from pgmq.meta as m
order by m.queue_name
"""
_GROUP = "x-pgmq-group"
"""The header by which pgmq keeps messages in order."""


async def tables(connection: Connection, name: str | None) -> list[Table]:
    """Find the tables of all queues."""
    if name is not None:
        raise ConfigurationError("pgmq has a table for each queue: choose them with --queue")
    try:
        found = await connection.fetch(_FIND)
    except (asyncpg.InvalidSchemaNameError, asyncpg.UndefinedTableError) as error:
        raise ConfigurationError(
            f"pgmq is not installed in this database: {error}: give the DSN of its database"
        ) from error
    return [
        Table(
            system="pgmq",
            name=row["name"],
            id="msg_id",
            payload="message",
            kind="text",
            queue=row["literal"],
            due="t.vt",
            waits="(t.vt <= clock_timestamp() or t.read_ct = 0)",
            runs="(t.vt > clock_timestamp() and t.read_ct > 0)",
            begun="t.enqueued_at",
            item=partial(_item, row["queue"]),
        )
        for row in found
        if row["name"] is not None
    ]


def _item(
    queue: str, row_id: int, place: str, columns: dict[str, Any], payload: str | None
) -> Item:
    headers = columns.get("headers") or {}
    if not isinstance(headers, dict):
        headers = {"headers": headers}
    group = headers.get(_GROUP)
    return Item(
        id=row_id,
        place=place,
        queue=queue,
        message="null" if payload is None else payload,
        available_at=columns["vt"],
        headers={**headers, "pgmq": short(columns, "msg_id", "read_ct", "enqueued_at")},
        key=None if group is None else str(group),
    )
