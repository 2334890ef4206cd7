"""Upgrades to a second version that only the tests have, with messages in the database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from notifyq import schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import (
    AccessDeniedError,
    OutdatedSchemaError,
    SchemaError,
    SchemaTooNewError,
    SchemaTooOldError,
)
from notifyq.schema.files import BEGIN, init_files
from support.database import (
    Connection,
    catalog_lines,
    install,
    one_row,
    session,
    terminate,
    until_blocked,
)
from upgrade.second import GONE, NEXT, set_version
from upgrade.test_serves import RELEASED

CLAIM = "select * from messages.claim($1, 10, worker => 'w')"
LOCK = "select pg_advisory_lock(7305427003)"

BROKEN = NEXT + 1


async def catalog(dsn: str) -> list[str]:
    async with session(dsn) as connection:
        return await catalog_lines(connection)


async def rows(connection: Connection) -> dict[str, list[Any]]:
    return {
        table: [
            row[0]
            for row in await connection.fetch(
                f"select to_jsonb(t) from messages.{table} as t order by 1"
            )
        ]
        for table in ("queue", "message", "message_archive", "event")
    }


async def versions(connection: Connection) -> list[int]:
    found = await connection.fetch("select version from notifyq.schema_version order by 1")
    return [row["version"] for row in found]


@pytest.mark.parametrize(
    "folder", [None, *RELEASED], ids=lambda folder: folder.name if folder else "second"
)
async def test_an_upgraded_database_equals_a_fresh_one(
    empty_database: str, second: Path, folder: Path | None
) -> None:
    """From this version to the second one, and from each released version to this one."""
    target = None if folder else second
    async with session(empty_database) as connection:
        before = await schema.install(connection, folder)
        old = await catalog_lines(connection)
        report = await schema.upgrade(connection, target)
        upgraded = await catalog_lines(connection)
        assert (report.before, report.is_changed) == (before.version, True)
        await connection.execute("drop schema messages, notifyq cascade")
        assert (await schema.install(connection, target)).version == report.version
        assert old != upgraded
        assert await catalog_lines(connection) == upgraded


async def test_the_comparison_finds_a_function_that_a_migration_forgets(
    filled: str, empty_database: str, second: Path
) -> None:
    [path] = (second / "migrations").glob("*.sql")
    path.write_text(path.read_text().replace(f"drop function {GONE},", "drop function"))
    async with session(filled) as connection:
        await schema.upgrade(connection, second)
    async with session(empty_database) as connection:
        await schema.install(connection, second)
    left = set(await catalog(filled)) - set(await catalog(empty_database))
    assert left
    assert all(GONE in line for line in left)


async def test_an_upgrade_keeps_and_converts_every_row_and_messages_go_on(
    full: str, second: Path
) -> None:
    async with session(full) as connection:
        held = await one_row(connection, "select * from messages.message where state = 'locked'")
        before = await rows(connection)
        assert [len(found) for found in before.values()] == [4, 6, 4, 2]
        await schema.upgrade(connection, second)
        after = await rows(connection)
        for table, found in before.items():
            assert [
                {key: new[key] for key in old} for old, new in zip(found, after[table], strict=True)
            ] == found
        converted = await connection.fetch(
            "select q.label = upper(q.name) and q.patience = q.retention / 2 "
            "and exists (select from messages.label as l where l.name = q.label) "
            "from messages.queue as q"
        )
        assert [row[0] for row in converted] == [True] * 4
        # The bounds of durations hold for a column that came later.
        with pytest.raises(asyncpg.CheckViolationError, match="queue_durations_ck"):
            await connection.execute("update messages.queue set patience = '2000 years'")
        # A worker that claimed before the upgrade finishes after it.
        finish = "select messages.finish($1, $2)"
        assert await connection.fetchval(finish, held["id"], held["lock_token"])
        await connection.execute("insert into messages.message (message) values ('[\"new\"]')")
        claimed = await connection.fetch(CLAIM, None)
        messages = [row["message"] for row in claimed]
        assert sorted(messages, key=str) == sorted([{"bill": 2}, ["new"], "quick"], key=str)
        for row in claimed:
            assert await connection.fetchval(finish, row["id"], row["lock_token"])
        # Dead messages from before can be published again; the cancelled one is not dead.
        assert await connection.fetchval("select messages.redrive()") == 2
        again = await connection.fetch(CLAIM, ["default"])
        assert [row["message"] for row in again] == [3, 4]


async def test_a_second_upgrade_changes_nothing_or_renews_functions(
    filled: str, second: Path
) -> None:
    async with session(filled) as connection:
        await schema.upgrade(connection, second)
        before = await catalog_lines(connection)
        for sabotage in ("select", "drop function messages.dead_count(text, text, boolean, text)"):
            await connection.execute(sabotage)
            report = await schema.upgrade(connection, second)
            assert (report.before, report.version) == (NEXT, NEXT)
            assert report.is_changed == (sabotage != "select")
            assert await catalog_lines(connection) == before
        assert await versions(connection) == [SCHEMA_VERSION, NEXT]


async def test_of_two_upgrades_at_once_one_waits_and_finds_nothing_to_do(
    filled: str, second: Path
) -> None:
    async with (
        session(filled) as holder,
        session(filled) as one,
        session(filled) as two,
        asyncio.TaskGroup() as group,
    ):
        await holder.execute(LOCK)
        for each in (one, two):
            # Its snapshot would be from before the wait.
            await each.execute("set default_transaction_isolation = 'serializable'")
        upgrades = [group.create_task(schema.upgrade(each, second)) for each in (one, two)]
        await until_blocked(holder, one, two)
        await holder.execute("select pg_advisory_unlock_all()")
        reports = [await upgrade for upgrade in upgrades]
    assert sorted((r.before, r.version, r.is_changed) for r in reports) == [
        (SCHEMA_VERSION, NEXT, True),
        (NEXT, NEXT, False),
    ]


async def test_an_upgrade_gives_way_tries_again_and_ends_where_a_transaction_does_not(
    filled: str, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.schema.BEGIN", BEGIN + "set local lock_timeout = '50ms';")
    async with session(filled) as user, session(filled) as other, session(filled) as one:
        await user.execute("begin")
        await user.execute("insert into messages.message (message) values ('1')")
        monkeypatch.setattr(schema, "_PAUSES", (0.01,))
        with pytest.raises(SchemaError, match="a long transaction uses the tables"):
            await schema.upgrade(one, second)
        assert await versions(one) == [SCHEMA_VERSION]
        assert await one.fetchval("select messages.version()") == SCHEMA_VERSION
        monkeypatch.setattr(schema, "_PAUSES", (0.01,) * 1000)
        upgrade = asyncio.create_task(schema.upgrade(one, second))
        await until_blocked(other, one)
        # The queues go on meanwhile: what waits behind the upgrade waits for a moment only.
        await other.execute("insert into messages.message (message) values ('2')")
        assert not upgrade.done()
        await user.execute("commit")
        assert (await upgrade).version == NEXT


async def test_in_a_circle_of_locks_the_upgrade_gives_way_and_not_the_publisher(
    filled: str, second: Path
) -> None:
    async with session(filled) as user, session(filled) as other, session(filled) as one:
        # As if it had waited before the upgrade did: the longest waiting session checks first.
        await user.execute("set deadlock_timeout = '700ms'")
        await user.execute("begin")
        await user.execute("lock table messages.message in row exclusive mode")
        upgrade = asyncio.create_task(schema.upgrade(one, second))
        await until_blocked(other, one)
        # The upgrade has the table of queues by now.
        await user.fetch("select from messages.queue")
        await user.execute("commit")
        assert (await upgrade).version == NEXT


async def test_a_migration_that_fails_takes_all_others_back(filled: str, second: Path) -> None:
    broken = second / f"migrations/{BROKEN:04}_broken.sql"
    broken.write_text(
        "-- breaking: no\n-- needs: owner\n\n"
        "create table messages.half (id bigint);\ninsert into messages.nowhere values (1);\n"
    )
    before = await catalog(filled)
    async with session(filled) as connection:
        with pytest.raises(
            SchemaError,
            match=(
                rf"^migrations/{BROKEN:04}_broken.sql, line 5: "
                'relation "messages.nowhere" does not exist; '
                "nothing"
            ),
        ):
            await schema.upgrade(connection, second)
        assert await versions(connection) == [SCHEMA_VERSION]
        assert await catalog_lines(connection) == before
        # The connection is as good as before.
        broken.unlink()
        assert (await schema.upgrade(connection, second)).version == NEXT


async def test_each_migration_is_recorded(filled: str, second: Path) -> None:
    (second / f"migrations/{BROKEN:04}_more.sql").write_text(
        "-- breaking: no\n-- needs: owner\n\ncreate table messages.more (id bigint);\n"
        "select pg_sleep(0.2);\n"
        f"do $$ begin assert {NEXT} = "
        "(select max(version) from notifyq.schema_version); end; $$;\n"
    )
    set_version(second, BROKEN)
    async with session(filled) as connection:
        await connection.execute("set statement_timeout = '100ms'")
        assert (await schema.upgrade(connection, second)).version == BROKEN
        assert await versions(connection) == [SCHEMA_VERSION, NEXT, BROKEN]


async def test_a_migration_that_needs_a_superuser_reports_it(
    empty_database: str, second: Path, role: str
) -> None:
    (second / f"migrations/{BROKEN:04}_power.sql").write_text(
        "-- breaking: no\n-- needs: superuser\n"
    )
    async with session(empty_database) as connection:
        await schema.install(connection)
        await connection.execute(
            f"alter schema messages owner to {role}; alter schema notifyq owner to {role}; "
            f"grant select on notifyq.schema_version to {role}; set role {role}"
        )
        with pytest.raises(
            AccessDeniedError, match=f"{BROKEN:04}_power.sql needs a superuser, and {role}"
        ):
            await schema.upgrade(connection, second)
        await connection.execute("reset role")


async def test_what_a_superuser_adds_becomes_the_owners(
    empty_database: str, second: Path, role: str
) -> None:
    (second / f"migrations/{BROKEN:04}_more.sql").write_text(
        "-- breaking: no\n-- needs: superuser\n\n"
        "create type messages.shade as enum ('a'); create type messages.pair as (one int);\n"
        "create view messages.seen as select 1 as one;\n"
        "create procedure messages.proceed() language sql as 'select 1';\n"
    )
    set_version(second, BROKEN)
    async with session(empty_database) as connection:
        await connection.execute(f"create schema messages authorization {role}")
        name = await connection.fetchval("select current_database()")
        await connection.execute(f"grant create on database {name} to {role}; set role {role}")
        await schema.install(connection)
        # A better match than the system's, in a schema on the superuser's search path.
        await connection.execute(
            "create schema trap; grant usage on schema trap to public; "
            "create function trap.format(text, regprocedure, regrole) returns text "
            "language plpgsql as $$ begin raise exception 'trapped'; end; $$"
        )
        await connection.execute("reset role; set search_path = trap, public")
        await schema.upgrade(connection, second)
        owners = await connection.fetch(
            "select distinct owner::regrole::text from (select relowner from pg_class "
            "where relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) union "
            "all select proowner from pg_proc "
            "where pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) union "
            "all select typowner from pg_type "
            "where typnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)) as o "
            "(owner)"
        )
        assert [row["owner"] for row in owners] == [role]
        # Functions that were there before, and are the role's, read the new table.
        assert await connection.fetch("select * from messages.dead_list()") == []
        await connection.execute(f"set role {role}")
        assert not (await schema.upgrade(connection, second)).is_changed
        await connection.execute("reset role")


async def test_an_upgrade_that_was_cut_off_is_run_again(filled: str, second: Path) -> None:
    path = second / f"migrations/{NEXT:04}_labels.sql"
    whole = path.read_text()
    path.write_text(whole + "select pg_advisory_xact_lock(4711);\n")
    before = await catalog(filled)
    async with session(filled) as holder, session(filled) as victim:
        await holder.execute("select pg_advisory_lock(4711)")
        upgrade = asyncio.create_task(schema.upgrade(victim, second))
        await until_blocked(holder, victim)
        await terminate(holder, victim)
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await upgrade
        assert await versions(holder) == [SCHEMA_VERSION]
        assert await catalog_lines(holder) == before
        await holder.execute("select pg_advisory_unlock_all()")
        assert (await schema.upgrade(holder, second)).before == SCHEMA_VERSION
        assert await versions(holder) == [SCHEMA_VERSION, NEXT]


async def test_an_install_over_an_older_version_demands_an_upgrade(
    filled: str, second: Path
) -> None:
    before = await catalog(filled)
    async with session(filled) as connection:
        with pytest.raises(
            SchemaTooOldError,
            match=(
                f"^version {SCHEMA_VERSION} is installed, this notifyq needs {NEXT}: "
                "run `notifyq migrate`$"
            ),
        ):
            await schema.install(connection, second)
        with pytest.raises(
            OutdatedSchemaError, match=f"version {SCHEMA_VERSION} of the schema is"
        ) as caught:
            await install(connection, init_files(second))
        assert "notifyq migrate" in (caught.value.hint or "")
    async with session(filled) as connection:
        assert await versions(connection) == [SCHEMA_VERSION]
        await connection.execute("select messages.dead_count()")
    assert len(await catalog(filled)) == len(before)


async def test_a_later_version_is_left_alone(database: str) -> None:
    async with session(database) as connection:
        await connection.execute("insert into notifyq.schema_version values (99)")
        before = await catalog_lines(connection)
        for action in (schema.install, schema.upgrade):
            with pytest.raises(SchemaTooNewError, match="version 99 is installed"):
                await action(connection)
        with pytest.raises(OutdatedSchemaError, match="version 99 of the schema"):
            await install(connection)
        assert await catalog_lines(connection) == before
