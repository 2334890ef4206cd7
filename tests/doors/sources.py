"""Other queues as they are in the field, filled by their own libraries."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import procrastinate
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.db import AsyncpgDriver

from database import session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from database import Connection

# pgmq is an extension that this server may not have. The tables are those of its documentation, and
# of version 1.8: one for each queue, named after it, and a list of them.
_PGMQ = """
create schema pgmq;
create table pgmq.meta (
  queue_name varchar unique not null,
  is_partitioned boolean not null default false,
  is_unlogged boolean not null default false,
  created_at timestamptz not null default now()
);
"""
_PGMQ_QUEUE = """
insert into pgmq.meta (queue_name) values ('{name}');
create table pgmq."q_{lower}" (
  msg_id bigint primary key generated always as identity,
  read_ct integer not null default 0,
  enqueued_at timestamptz not null default now(),
  last_read_at timestamptz,
  vt timestamptz not null,
  message jsonb,
  headers jsonb
);
"""


async def install_procrastinate(dsn: str) -> procrastinate.App:
    """Install its schema; the app is to be opened by whoever uses it."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    return app


async def install_pgqueuer(dsn: str) -> None:
    """Install its schema."""
    async with session(dsn) as connection:
        await Queries(AsyncpgDriver(connection)).install()


async def enqueue(
    dsn: str, entrypoint: str, payloads: Sequence[bytes | None], **options: Any
) -> None:
    """Publish with pgqueuer."""
    count = len(payloads)
    connection = await asyncpg.connect(dsn)  # without a codec for jsonb, which it encodes itself
    await Queries(AsyncpgDriver(connection)).enqueue(
        [entrypoint] * count,
        list(payloads),
        options.pop("priority", [0] * count),
        [options.pop("execute_after", timedelta(0))] * count,
        **options,
    )
    await connection.close()


async def install_pgmq(connection: Connection, *names: str) -> None:
    """Make its tables."""
    await connection.execute(_PGMQ)
    for name in names:
        literal = name.replace("'", "''")
        await connection.execute(_PGMQ_QUEUE.format(name=literal, lower=name.lower()))


async def send(
    connection: Connection,
    name: str,
    message: Any,
    *,
    delay: int = 0,
    headers: Any = None,
    read_ct: int = 0,
) -> int:
    """Send as pgmq.send() does; with a `read_ct`, it was read as often."""
    number: int = await connection.fetchval(
        f'insert into pgmq."q_{name.lower()}" (vt, message, headers, read_ct) '
        "values (clock_timestamp() + make_interval(secs => $1), $2, $3, $4) returning msg_id",
        delay,
        message,
        headers,
        read_ct,
    )
    return number
