"""A server that refuses to report its position in the WAL, as Aurora does."""

from __future__ import annotations

from typing import Any

import pytest

from cli.programs import Notifyq
from notifyq import App
from support.database import Connection, session, until_equal
from support.running import statuses, working

REFUSED = ("pg_current_wal_insert_lsn", "pg_current_wal_lsn")


@pytest.fixture
async def managed(empty_database: str) -> str:
    """Give a database whose functions for the position in the WAL raise what Aurora raises."""
    async with session(empty_database) as connection:
        await connection.execute("set allow_system_table_mods = on")
        for name in REFUSED:
            # A built-in function cannot be replaced: it is called by its number.
            await connection.execute(f"""
                alter function pg_catalog.{name}() rename to {name}_;
                create function pg_catalog.{name}()
                  returns pg_lsn language plpgsql
                as $$
                begin
                  raise object_not_in_prerequisite_state using message = 'not supported';
                end;
                $$
            """)
    return empty_database


async def test_the_product_works_without_the_wal_position(managed: str) -> None:
    with Notifyq(managed) as command:
        assert command("init").code == 0
    app = App(managed)

    @app.handler("q", max_attempts=1)
    async def handle(payload: Any) -> None:
        if payload == "bad":
            raise ValueError("no")

    async with session(managed) as connection:
        position = await connection.fetchval("select messages.current_position()")
        async with working(app, maintenance=0.1):
            for payload in ("good", "bad"):
                await app.publish("q", payload)
            await until_equal(
                lambda: statuses(connection, "q"), {"success": 1, "failed": 1}, "all is handled", 30
            )
        await _check_functions(connection, position)
    await app.close()


async def _check_functions(connection: Connection, position: str) -> None:
    dead = await connection.fetch("select * from messages.dead_since(seen => $1)", position)
    assert len(dead) == 1
    assert await connection.fetchval("select messages.known_position($1)", position) == position
    assert await connection.fetchval("select (messages.maintain()).reaped") == 0
    assert not await connection.fetchval("select (notifyq.diagnose()).is_foreign")
    assert not await connection.fetch(
        "select f.error from notifyq.failing_duties() as f where f.failures > 0"
    )


async def test_what_depends_on_the_wal_position_is_left_out(managed: str) -> None:
    async with session(managed) as connection:
        name = f"managed_{connection.get_server_pid()}"
        with Notifyq(managed) as command:
            assert command("init").code == 0
            await connection.execute(f"select pg_create_physical_replication_slot('{name}', true)")
            try:
                figures = await connection.fetch("select name from messages.health()")
                found = command("doctor", "--only", "wal").out
            finally:
                await connection.execute(f"select pg_drop_replication_slot('{name}')")
    assert "does not report how much WAL" in found
    assert {"database_bytes", "kept_wal"} & {row["name"] for row in figures} == {"database_bytes"}
