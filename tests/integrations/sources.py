"""Other queues as they are in the field, filled by their own libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import procrastinate
from pgmq.install import get_embedded_install_sql
from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.domain.settings import DBSettings

from support.database import Connection, session


async def install_procrastinate(dsn: str) -> procrastinate.App:
    """Install its schema; the caller opens the app."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    return app


async def install_pgqueuer(dsn: str, **settings: Any) -> None:
    """Install its schema, under other names as its settings say."""
    environment = QueryBuilderEnvironment(DBSettings(**settings))
    async with session(dsn) as connection:
        await Queries(AsyncpgDriver(connection), qbe=environment).install()


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
    """Install its schema, from the copy of the extension's SQL that its client brings along."""
    await connection.execute(get_embedded_install_sql())
    for name in names:
        await connection.execute("select pgmq.create($1)", name)


async def send(
    connection: Connection,
    name: str,
    message: Any,
    *,
    delay: int = 0,
    headers: Any = None,
) -> int:
    """Send with pgmq."""
    number: int = await connection.fetchval(
        "select pgmq.send($1, $2::jsonb, $3::jsonb, $4::integer)", name, message, headers, delay
    )
    return number


async def install(system: str, dsn: str) -> None:
    """Install one of the systems, with a queue `default`."""
    match system:
        case "procrastinate":
            await install_procrastinate(dsn)
        case "pgqueuer":
            await install_pgqueuer(dsn)
        case _:
            async with session(dsn) as connection:
                await install_pgmq(connection, "default")


async def fill(system: str, dsn: str, numbers: Iterable[int]) -> None:
    """Publish numbers into its queue."""
    match system:
        case "procrastinate":
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn))
            async with app.open_async():
                for number in numbers:
                    await app.configure_task("t").defer_async(n=number)
        case "pgqueuer":
            await enqueue(dsn, "default", [str(number).encode() for number in numbers])
        case _:
            async with session(dsn) as connection:
                for number in numbers:
                    await send(connection, "default", number)
