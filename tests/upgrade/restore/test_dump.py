"""A dump of an installation that is at work: all of it is there again, and it goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from notifyq import App
from notifyq import schema as migrate
from notifyq.cli import schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import ForeignPositionError, RestoredDatabaseError
from notifyq.telemetry import MessageFinished
from support.database import (
    Connection,
    catalog_lines,
    let_fail,
    publish,
    session,
    until_equal,
    value,
)
from support.running import Events, working
from upgrade.restore.conftest import Programs
from upgrade.restore.readers import burn, dead_since, position


async def contents(connection: Connection) -> dict[str, list[Any]]:
    """All rows of all tables."""
    tables = await connection.fetch(
        "select c.oid::regclass::text from pg_class as c "
        "where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) "
        "and c.relkind in ('r', 'p') "
        "and not c.relispartition"
    )
    return {
        table: [
            row[0]
            for row in await connection.fetch(
                f"select to_jsonb(t) from {table} as t order by to_jsonb(t)::text"
            )
        ]
        for (table,) in tables
    }


async def catalog(connection: Connection) -> set[str]:
    """The catalog but for what reads differently and is the same."""
    owner = await connection.fetchval(
        "select nspowner::regrole::text from pg_namespace where nspname = 'messages'"
    )
    return {
        # A dump has `a between b and c` as two comparisons, with other parentheses.
        re.sub("[()]", "", line)
        for line in await catalog_lines(connection)
        # And it grants to the owner what the owner may do in any case.
        if not (line.startswith("grant ") and line.endswith(f" to {owner}"))
    }


@asynccontextmanager
async def at_work(dsn: str) -> AsyncIterator[None]:
    """Publish and handle messages, some of which die, for as long as the block lasts."""
    app = App(dsn)

    @app.handler("busy")
    async def handle(number: int) -> int:
        if number % 5 == 0:
            raise ValueError(number)
        return number

    async def publish_on() -> None:
        async with session(dsn) as connection:
            while True:
                await connection.execute(
                    "select messages.publish('busy', to_jsonb(n)) from generate_series(1, 7) as n"
                )

    events = Events()
    await app.create_queues()
    async with working(app, events, maintenance=0.1):
        publishing = asyncio.create_task(publish_on())
        try:
            await events.wait(MessageFinished, 100)
            yield
            await events.wait(MessageFinished, len(events.of(MessageFinished)) + 50)
        finally:
            publishing.cancel()
            await asyncio.wait({publishing})
    await app.close()


async def dump_at_work(programs: Programs, dsn: str, path: Path) -> dict[str, list[Any]]:
    """Dump a database that is at work, and return what was in it at that moment."""
    async with session(dsn) as connection:
        await connection.execute("select messages.create_queue('held')")
        [held] = await publish(connection, 1, "held")
        assert await connection.fetch("select * from messages.claim(array['held'], 1)")
        await let_fail(connection, 3)
        assert await connection.fetchval("select messages.redrive('default', quantity => 1)") == 1
        async with at_work(dsn), connection.transaction(isolation="repeatable_read", readonly=True):
            snapshot = await connection.fetchval("select pg_export_snapshot()")
            found = await contents(connection)
            await programs.dump(dsn, path, f"--snapshot={snapshot}")
    assert held in {row["id"] for row in found["messages.message"]}
    assert len(found["messages.message_archive"]) > 50
    return found


async def goes_on(dsn: str) -> None:
    """Everything that the dump had under way is handled, and what is published now."""
    async with session(dsn) as connection:
        known = await connection.fetchval(
            "select greatest((select max(id) from messages.message), "
            "(select max(id) from messages.message_archive))"
        )
        assert await publish(connection, 1, "busy") > [known]
        # The worker of the dump is not here: the locks that it held expire.
        await connection.execute(
            "update messages.message set lock_expires_at = clock_timestamp() where state = 'locked'"
        )
        await connection.execute("select messages.maintain()")
        assert await connection.fetchval(
            "select status from messages.message_archive where queue = 'held'"
        ) == "lock_expired"  # fmt: skip
        app = App(dsn)
        app.handler("busy")(lambda number: None)
        app.handler("default")(lambda number: None)
        async with working(app, maintenance=0.1):
            await until_equal(
                lambda: connection.fetchval("select count(*) from messages.message"),
                0,
                "all is handled",
            )
        await app.close()
        assert not await connection.fetchval(
            "select count(*) from (select from messages.message_archive group by id "
            "having count(*) > 1) as twice"
        )


@pytest.mark.timeout(90)
async def test_into_another_database_of_the_server(
    programs: Programs, database: str, empty_database: str, tmp_path: Path, connection: Connection
) -> None:
    before = await dump_at_work(programs, database, tmp_path / "dump")
    seen = await position(connection)
    assert await programs.restore(tmp_path / "dump", empty_database, "--exit-on-error") == []
    async with session(empty_database) as restored:
        assert await contents(restored) == before
        assert await catalog(restored) ^ await catalog(connection) == set()
        report = await migrate.upgrade(restored)
        assert (report.before, report.version) == (SCHEMA_VERSION, SCHEMA_VERSION)
        assert (report.is_changed, report.is_foreign) == (False, False)
        # It shares its numbers with the other databases of the server, but not its messages.
        with pytest.raises(ForeignPositionError, match="of another database of this server"):
            await dead_since(restored, seen)
        here = await position(restored)
        dead = await let_fail(restored, 2)
        assert await dead_since(restored, here) == dead
        with pytest.raises(ForeignPositionError, match="of another database of this server"):
            await dead_since(connection, here)
        assert not await value(restored, "adopt")
    await goes_on(empty_database)


@pytest.mark.timeout(90)
async def test_into_another_server(
    programs: Programs,
    database: str,
    elsewhere: str,
    tmp_path: Path,
    connection: Connection,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await burn(connection, 3000)  # so that its numbers are still to come on the other one
    early = await position(connection)
    before = await dump_at_work(programs, database, tmp_path / "dump")
    late = await position(connection)
    output = await programs.restore(tmp_path / "dump", elsewhere)
    async with session(elsewhere) as restored:
        roles = await restored.fetch("select from pg_roles where rolname ~ '^notifyq_'")
        assert all("role" in line and "does not exist" in line for line in output), output
        assert bool(output) != bool(roles)
        assert await contents(restored) == before
        # Before it is adopted messages are handled, and no reader is misled.
        for refused in ("select messages.current_position()", "select messages.dead_since()"):
            with pytest.raises(RestoredDatabaseError, match="has not been adopted"):
                await restored.execute(refused)

    # What the roles were missing in comes with them.
    await asyncio.to_thread(schema.migrate, dsn=elsewhere)
    shown = capsys.readouterr()
    assert f"version {SCHEMA_VERSION} already installed in" in shown.out
    assert "came from another server: run `notifyq migrate --adopt`" in shown.err
    async with session(elsewhere) as restored:
        assert await catalog(restored) ^ await catalog(connection) == set()
        unseen = await let_fail(restored)

    await asyncio.to_thread(schema.migrate, dsn=elsewhere, adopt=True)
    shown = capsys.readouterr()
    assert shown.out.endswith(", and adopted\n")
    assert "came from" not in shown.err
    async with session(elsewhere) as restored:
        for seen in (early, late):
            with pytest.raises(ForeignPositionError, match="of another server"):
                await dead_since(restored, seen)
        here = await position(restored)
        dead = await let_fail(restored, 2)
        assert await dead_since(restored, here) == dead
        assert await dead_since(restored, await position(restored)) == []
        # By time, all messages that failed before and after the restore are found.
        since = await restored.fetch(
            "select d.id from messages.dead_since() as d where d.archived_at >= $1",
            await restored.fetchval("select now() - interval '1 hour'"),
        )
        assert {row["id"] for row in since} == {
            *(
                row["id"]
                for row in before["messages.message_archive"]
                if row["status"] != "success"
            ),
            *unseen,
            *dead,
        }
    await asyncio.to_thread(schema.migrate, dsn=elsewhere, adopt=True)
    assert capsys.readouterr().out.endswith(", nothing changed, and adopted before\n")
    await goes_on(elsewhere)


async def test_rows_that_come_without_their_origin_are_noticed(
    programs: Programs, database: str, elsewhere: str, tmp_path: Path, connection: Connection
) -> None:
    await burn(connection, 3000)
    dead = await let_fail(connection, 3)
    await programs.dump(
        database, tmp_path / "rows", "--data-only", "--table=notifyq.message_archive_*"
    )
    async with session(elsewhere) as restored:
        await migrate.install(restored)
        seen = await position(restored)
        assert await programs.restore(tmp_path / "rows", elsewhere) == []
        with pytest.raises(RestoredDatabaseError):
            await dead_since(restored, seen)
        assert await value(restored, "adopt")
        with pytest.raises(ForeignPositionError, match="from before this database was restored"):
            await dead_since(restored, seen)
        assert await dead_since(restored, await position(restored)) == []
        assert await restored.fetchval("select count(*) from messages.dead_since()") == 3
        assert len(dead) == 3


async def test_rows_of_the_own_transaction_do_not_count_as_restored(connection: Connection) -> None:
    seen = await position(connection)
    async with connection.transaction():
        dead = await let_fail(connection)
        assert await dead_since(connection, seen) == []
        assert not await value(connection, "adopt")
        assert await position(connection)
    assert await dead_since(connection, seen) == dead
