"""The tables of pgmq, PgQueuer and Procrastinate, and their rows as messages."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.errors import ConfigurationError
from notifyq.importing.table import Item, Table
from notifyq.models.payload import check_json, encode

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

    Finder = Callable[[Connection, str | None], Awaitable[list[Table]]]

_PGMQ = """
select m.queue_name::text as queue, quote_literal(m.queue_name) as literal,
  to_regclass(format('pgmq.%I', 'q_' || lower(m.queue_name)))::text as name
from pgmq.meta as m
order by m.queue_name
"""
_GROUP = "x-pgmq-group"
"""The header by which pgmq keeps messages in order."""

_PROCRASTINATE = """
select to_regclass($1)::text as jobs,
  (
    select format('%I.%I', n.nspname, replace(c.relname, 'jobs', 'events'))
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    where c.oid = to_regclass($1)
  ) as events
"""


async def pgmq(connection: Connection, name: str | None) -> list[Table]:
    """Find the tables of pgmq, one for each queue."""
    if name is not None:
        raise ConfigurationError("pgmq has a table for each queue: choose them with --queue")
    try:
        found = await connection.fetch(_PGMQ)
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
            # A row that was read and is not visible again is being handled.
            waits="(t.vt <= clock_timestamp() or t.read_ct = 0)",
            runs="(t.vt > clock_timestamp() and t.read_ct > 0)",
            begun="t.enqueued_at",
            item=partial(_of_pgmq, row["queue"]),
        )
        for row in found
        if row["name"] is not None
    ]


def _of_pgmq(
    queue: str, row_id: int, position: str, columns: dict[str, Any], payload: str | None
) -> Item:
    headers = _headers(columns)
    group = headers.get(_GROUP)
    return Item(
        id=row_id,
        position=position,
        queue=queue,
        message="null" if payload is None else payload,
        available_at=columns["vt"],
        headers={**headers, "pgmq": _kept(columns, "msg_id", "read_ct", "enqueued_at")},
        key=None if group is None else str(group),
    )


async def pgqueuer(connection: Connection, name: str | None) -> list[Table]:
    """Find the table of PgQueuer, by its usual name or another."""
    wanted = name or "pgqueuer"
    found = await connection.fetchval("select to_regclass($1)::text", wanted)
    return [
        Table(
            system="pgqueuer",
            name=_existing(wanted, found, "pgqueuer"),
            id="id",
            payload="payload",
            kind="bytea",
            queue="t.entrypoint",
            due="t.execute_after",
            waits="t.status = 'queued'",
            runs="t.status = 'picked'",
            begun="t.created",
            item=_of_pgqueuer,
        )
    ]


def _of_pgqueuer(
    row_id: int, position: str, columns: dict[str, Any], payload: bytes | None
) -> Item:
    kept = _kept(columns, "id", "attempts", "created")
    return Item(
        id=row_id,
        position=position,
        queue=columns["entrypoint"],
        message=_json(payload),
        type=columns["entrypoint"],
        priority=columns["priority"],
        available_at=columns.get("execute_after"),
        headers={**_headers(columns), "pgqueuer": kept},
        dedup_key=columns.get("dedupe_key"),
    )


async def procrastinate(connection: Connection, name: str | None) -> list[Table]:
    """Find the table of Procrastinate, by its usual name or another."""
    wanted = name or "procrastinate_jobs"
    [found] = await connection.fetch(_PROCRASTINATE, wanted)
    return [
        Table(
            system="procrastinate",
            name=_existing(wanted, found["jobs"], "procrastinate"),
            id="id",
            payload="args",
            kind="text",
            queue="t.queue_name",
            due="t.scheduled_at",
            waits="t.status = 'todo'",
            runs="t.status = 'doing'",
            # The row itself has no such column.
            begun=f"(select min(e.at) from {found['events']} as e where e.job_id = t.id)",
            item=_of_procrastinate,
        )
    ]


def _of_procrastinate(row_id: int, position: str, columns: dict[str, Any], payload: str) -> Item:
    kept = _kept(columns, "id", "attempts", "lock", "queueing_lock")
    return Item(
        id=row_id,
        position=position,
        queue=columns["queue_name"],
        message=payload,
        type=columns["task_name"],
        priority=columns.get("priority", 0),
        available_at=columns["scheduled_at"],
        headers={"procrastinate": kept},
        dedup_key=columns["queueing_lock"],
        key=columns["lock"],
    )


SYSTEMS: dict[str, Finder] = {
    "pgmq": pgmq,
    "pgqueuer": pgqueuer,
    "procrastinate": procrastinate,
}


def _existing(name: str, found: str | None, system: str) -> str:
    if found is None:
        raise ConfigurationError(
            f"there is no table {name} of {system} in this database: name it with --table, "
            "or give the DSN of its database"
        )
    return found


def _headers(columns: dict[str, Any]) -> dict[str, Any]:
    headers = columns.get("headers") or {}
    return headers if isinstance(headers, dict) else {"headers": headers}


def _kept(columns: dict[str, Any], *names: str) -> dict[str, Any]:
    """The columns that a header keeps, without nulls."""
    return {name: columns[name] for name in names if columns.get(name) is not None}


def _json(payload: bytes | None) -> str:
    """JSON unchanged; any other payload as base64 in an object."""
    if payload is None:
        return "null"
    try:
        text = payload.decode()
        check_json(text)
    except ValueError:
        return encode({"base64": base64.b64encode(payload).decode()})
    return text
