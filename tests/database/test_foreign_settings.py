"""A database whose settings change what SQL means, as old applications set them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cli.programs import Notifyq
from notifyq import App, Event
from support.database import Connection, session, until
from support.running import statuses, working

SETTINGS = {
    "of values": {
        "standard_conforming_strings": "off",
        "escape_string_warning": "on",
        "backslash_quote": "off",
        "array_nulls": "off",
        "transform_null_equals": "on",
        "bytea_output": "escape",
        "xmlbinary": "hex",
        "client_encoding": "LATIN1",
    },
    "of texts": {
        "quote_all_identifiers": "on",
        "DateStyle": "German, DMY",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Asia/Kathmandu",
        "extra_float_digits": "-15",
        "lc_numeric": "C",
    },
    "of statements": {
        "default_transaction_isolation": "serializable",
        "default_transaction_deferrable": "on",
        "search_path": "pg_temp",
        "row_security": "off",
        "plan_cache_mode": "force_generic_plan",
        "from_collapse_limit": "1",
        "join_collapse_limit": "1",
        "restrict_nonsystem_relation_kind": "view",
    },
    # Alone: it hides what others break in the bodies of functions.
    "of functions": {"check_function_bodies": "off"},
}
"""A value that is not the default, for each setting of a database that changes what SQL means.

Of those set together none takes back what another one changes.
"""

ARCHIVE = """
    insert into messages.message_archive (
      id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
      message, headers
    ) values ($1, now(), now(), $2, 1, 0, 1, 'success', 'q', '1', '{}')
"""


@pytest.fixture(params=SETTINGS)
async def foreign(request: pytest.FixtureRequest, empty_database: str) -> str:
    """Give a database with the settings of one kind that this server has."""
    async with session(empty_database) as connection:
        database = await connection.fetchval("select quote_ident(current_database())")
        for name, setting in SETTINGS[request.param].items():
            if await connection.fetchval("select 1 from pg_settings where name = $1", name):
                await connection.execute(f"alter database {database} set {name} = '{setting}'")
    return empty_database


async def test_the_product_works_with_foreign_settings(foreign: str) -> None:
    with Notifyq(foreign) as command:
        assert command("init").code == 0
        assert command("init").code == 0
        command.good("ls")
        command.good("dead")
    app = App(foreign)
    seen: list[Any] = []

    @app.handler("q", max_attempts=1)
    async def handle(payload: Any) -> Any:
        if payload == "bad":
            raise ValueError("a \\ b")
        return payload

    @app.cron("0 12 * * *", queue="noon")
    async def noon() -> None: ...

    @app.subscriber("news", "reader")
    async def read(event: Event) -> None:
        seen.append(event.payload())

    async with session(foreign) as connection:
        async with working(app, poll=0.1, maintenance=0.1):
            for payload in ({"a": "\\d"}, "bad", 3):
                await app.publish("q", payload)
            await app.publish("news", 1)

            async def is_done() -> bool:
                ends = await statuses(connection, "q")
                return ends == {"success": 2, "failed": 1} and seen == [1]

            await until(is_done, "all is handled", 30)
        assert len(await app.archive.dead("q")) == 1
        assert await app.archive.redrive("q") == 1
        await _check_functions(connection)
    await app.close()


async def _check_functions(connection: Connection) -> None:
    assert await connection.fetchval("select messages.cron_next('*/5 1-3 * * mon', 'UTC')")
    assert not await connection.fetch(
        "select f.error from notifyq.failing_duties() as f where f.failures > 0"
    )
    await connection.execute(ARCHIVE, 1000, datetime(2001, 2, 3, tzinfo=UTC))
    assert await connection.fetchval("select (messages.maintain()).partitions_dropped") == 1
