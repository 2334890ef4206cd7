"""Upgrades from version 1, with messages in the database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from notifyq import schema
from notifyq.database.sql import SCHEMA_VERSION
from notifyq.errors import (
    AccessDeniedError,
    OutdatedSchemaError,
    SchemaError,
    SchemaTooNewError,
    SchemaTooOldError,
)
from notifyq.schema.files import BEGIN
from support.database import Connection, catalog_lines, install, session, until_blocked

CLAIM = "select * from messages.claim($1, 10, worker => 'w')"
LOCK = "select pg_advisory_lock(7305427003)"

ALL_VERSIONS = list(range(1, SCHEMA_VERSION + 1))
NEXT = SCHEMA_VERSION + 1


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
        for table in ("queue", "message", "message_archive")
    }


async def versions(connection: Connection) -> list[int]:
    found = await connection.fetch("select version from messages.schema_version order by 1")
    return [row["version"] for row in found]


async def test_an_upgraded_database_equals_a_fresh_one(version_1: str, database: str) -> None:
    assert await catalog(version_1) != await catalog(database)
    async with session(version_1) as connection:
        report = await schema.upgrade(connection)
        assert await versions(connection) == ALL_VERSIONS
    assert (report.before, report.version, report.is_changed) == (1, SCHEMA_VERSION, True)
    assert await catalog(version_1) == await catalog(database)


async def test_an_upgrade_keeps_every_row(version_1: str) -> None:
    async with session(version_1) as connection:
        before = await rows(connection)
        assert {key: len(found) for key, found in before.items()} == {
            "queue": 3,
            "message": 5,
            "message_archive": 4,
        }
        await schema.upgrade(connection)
        after = await rows(connection)
        # Their publishers have not been asked whether less would do.
        assert [queue.pop("max_bytes") for queue in after["queue"]] == 3 * [2**28]
        for table, found in before.items():
            known = [
                {key: new[key] for key in old} for old, new in zip(found, after[table], strict=True)
            ]
            assert known == found


async def test_messages_go_on_after_an_upgrade(version_1: str) -> None:
    async with session(version_1) as connection:
        held = await connection.fetchrow("select * from messages.message where state = 'locked'")
        assert held is not None
        await schema.upgrade(connection)
        # A worker that claimed before the upgrade finishes after it.
        finish = "select messages.finish($1, $2)"
        assert await connection.fetchval(finish, held["id"], held["lock_token"])
        await connection.execute("insert into messages.message (message) values ('[\"new\"]')")
        claimed = await connection.fetch(CLAIM, None)
        assert [row["message"] for row in claimed] == [{"bill": 2}, ["new"]]
        for row in claimed:
            assert await connection.fetchval(finish, row["id"], row["lock_token"])
        # Those that died in version 1 can be published again.
        assert await connection.fetchval("select messages.redrive()") == 3
        again = await connection.fetch(CLAIM, ["default"])
        assert [row["message"] for row in again] == [2, 3, 4]


async def test_a_second_upgrade_finds_nothing_to_do(version_1: str) -> None:
    async with session(version_1) as connection:
        await schema.upgrade(connection)
        before = await catalog_lines(connection)
        report = await schema.upgrade(connection)
        assert (report.before, report.version, report.is_changed) == (
            SCHEMA_VERSION,
            SCHEMA_VERSION,
            False,
        )
        assert await versions(connection) == ALL_VERSIONS
        assert await catalog_lines(connection) == before


async def test_an_upgrade_renews_functions_of_the_same_version(version_1: str) -> None:
    async with session(version_1) as connection:
        await schema.upgrade(connection)
        before = await catalog_lines(connection)
        await connection.execute("drop function messages.dead_count(text, text)")
        report = await schema.upgrade(connection)
        assert (report.before, report.version, report.is_changed) == (
            SCHEMA_VERSION,
            SCHEMA_VERSION,
            True,
        )
        assert await catalog_lines(connection) == before


async def test_of_two_upgrades_at_once_one_waits_and_finds_nothing_to_do(version_1: str) -> None:
    async with (
        session(version_1) as holder,
        session(version_1) as one,
        session(version_1) as two,
        asyncio.TaskGroup() as group,
    ):
        await holder.execute(LOCK)
        for each in (one, two):
            # Its snapshot would be from before the wait.
            await each.execute("set default_transaction_isolation = 'serializable'")
        upgrades = [group.create_task(schema.upgrade(each)) for each in (one, two)]
        await until_blocked(holder, one, two)
        await holder.execute("select pg_advisory_unlock_all()")
        reports = [await upgrade for upgrade in upgrades]
    assert sorted((r.before, r.version, r.is_changed) for r in reports) == [
        (1, SCHEMA_VERSION, True),
        (SCHEMA_VERSION, SCHEMA_VERSION, False),
    ]


async def test_an_upgrade_gives_way_and_tries_again(
    version_1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.schema.BEGIN", BEGIN + "set local lock_timeout = '50ms';")
    monkeypatch.setattr(schema, "_PAUSES", (0.01,) * 1000)
    async with session(version_1) as user, session(version_1) as other, session(version_1) as one:
        begun = user.transaction()
        await begun.start()
        await user.execute("insert into messages.message (message) values ('1')")
        upgrade = asyncio.create_task(schema.upgrade(one))
        await until_blocked(other, one)
        # The queues go on meanwhile: what waits behind the upgrade waits for a moment only.
        await other.execute("insert into messages.message (message) values ('2')")
        assert not upgrade.done()
        await begun.commit()
        assert (await upgrade).version == SCHEMA_VERSION


async def test_in_a_circle_of_locks_the_upgrade_gives_way_and_not_the_publisher(
    version_1: str,
) -> None:
    async with session(version_1) as user, session(version_1) as other, session(version_1) as one:
        # As if it had waited before the upgrade did: who has waited longest looks first.
        await user.execute("set deadlock_timeout = '700ms'")
        begun = user.transaction()
        await begun.start()
        await user.execute("lock table messages.message in row exclusive mode")
        upgrade = asyncio.create_task(schema.upgrade(one))
        await until_blocked(other, one)
        # The upgrade has the table of queues by now.
        await user.fetch("select from messages.queue")
        await begun.commit()
        assert (await upgrade).version == SCHEMA_VERSION


async def test_an_upgrade_ends_where_a_transaction_does_not(
    version_1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.schema.BEGIN", BEGIN + "set local lock_timeout = '20ms';")
    monkeypatch.setattr(schema, "_PAUSES", (0.01,))
    async with session(version_1) as user, session(version_1) as connection:
        async with user.transaction():
            await user.execute("insert into messages.message (message) values ('1')")
            with pytest.raises(SchemaError, match="a long transaction uses the tables"):
                await schema.upgrade(connection)
        assert await versions(connection) == [1]
        assert await connection.fetchval("select messages.version()") == 1


async def test_a_migration_that_fails_takes_all_others_back(version_1: str, root: Path) -> None:
    (root / f"migrations/{NEXT:04}_broken.sql").write_text(
        "-- breaking: no\n-- needs: owner\n\n"
        "create table messages.half (id bigint);\ninsert into messages.nowhere values (1);\n"
    )
    before = await catalog(version_1)
    async with session(version_1) as connection:
        with pytest.raises(
            SchemaError,
            match=(
                rf"^migrations/{NEXT:04}_broken.sql, line 5: "
                'relation "messages.nowhere" does not exist; '
                "nothing"
            ),
        ):
            await schema.upgrade(connection, root)
        assert await versions(connection) == [1]
        assert await catalog_lines(connection) == before
        # The connection is as good as before.
        assert (await schema.upgrade(connection)).version == SCHEMA_VERSION


async def test_each_migration_is_recorded(version_1: str, root: Path) -> None:
    (root / f"migrations/{NEXT:04}_more.sql").write_text(
        "-- breaking: no\n-- needs: owner\n\ncreate table messages.more (id bigint);\n"
        "select pg_sleep(0.2);\n"
        f"do $$ begin assert {SCHEMA_VERSION} = "
        "(select max(version) from messages.schema_version); end; $$;\n"
    )
    source = root / "init/bootstrap/schema.sql"
    source.write_text(source.read_text().replace(f"select {SCHEMA_VERSION};", f"select {NEXT};"))
    async with session(version_1) as connection:
        await connection.execute("set statement_timeout = '100ms'")
        assert (await schema.upgrade(connection, root)).version == NEXT
        assert await versions(connection) == [*ALL_VERSIONS, NEXT]


async def test_a_migration_that_needs_a_superuser_says_so(
    version_1: str, root: Path, role: str
) -> None:
    (root / f"migrations/{NEXT:04}_power.sql").write_text("-- breaking: no\n-- needs: superuser\n")
    async with session(version_1) as connection:
        await connection.execute(f"alter schema messages owner to {role}; set role {role}")
        await connection.execute("reset role")
        await connection.execute(f"grant select on messages.schema_version to {role}")
        await connection.execute(f"set role {role}")
        with pytest.raises(
            AccessDeniedError, match=f"{NEXT:04}_power.sql needs a superuser, and {role}"
        ):
            await schema.upgrade(connection, root)
        await connection.execute("reset role")


async def test_what_a_superuser_adds_becomes_the_owners(
    empty_database: str, root: Path, role: str
) -> None:
    baseline = Path(__file__).with_name("baseline_0001.sql").read_text(encoding="utf-8")
    (root / f"migrations/{NEXT:04}_more.sql").write_text(
        "-- breaking: no\n-- needs: superuser\n\n"
        "create type messages.shade as enum ('a'); create type messages.pair as (one int);\n"
        "create view messages.seen as select 1 as one;\n"
        "create procedure messages.proceed() language sql as 'select 1';\n"
    )
    source = root / "init/bootstrap/schema.sql"
    source.write_text(source.read_text().replace(f"select {SCHEMA_VERSION};", f"select {NEXT};"))
    async with session(empty_database) as connection:
        await connection.execute(f"create schema messages authorization {role}")
        name = await connection.fetchval("select current_database()")
        await connection.execute(f"grant create on database {name} to {role}; set role {role}")
        await connection.execute(baseline)
        # A better match than the system's, in a schema where the superuser's session looks.
        await connection.execute(
            "create schema trap; grant usage on schema trap to public; "
            "create function trap.format(text, regprocedure, regrole) returns text "
            "language plpgsql as $$ begin raise exception 'trapped'; end; $$"
        )
        await connection.execute("reset role; set search_path = trap, public")
        await schema.upgrade(connection, root)
        owners = await connection.fetch(
            "select distinct owner::regrole::text from (select relowner from pg_class "
            "where relnamespace = 'messages'::regnamespace union all select proowner from pg_proc "
            "where pronamespace = 'messages'::regnamespace union all select typowner from pg_type "
            "where typnamespace = 'messages'::regnamespace) as o (owner)"
        )
        assert [row["owner"] for row in owners] == [role]
        # Functions that were there before, and are the role's, read the new table.
        assert await connection.fetch("select * from messages.dead_list()") == []
        await connection.execute(f"set role {role}")
        assert not (await schema.upgrade(connection, root)).is_changed
        await connection.execute("reset role")


async def test_an_install_over_an_older_version_asks_for_an_upgrade(version_1: str) -> None:
    before = await catalog(version_1)
    async with session(version_1) as connection:
        with pytest.raises(
            SchemaTooOldError,
            match=(
                f"^version 1 is installed, this notifyq needs {SCHEMA_VERSION}: "
                "run `notifyq migrate`$"
            ),
        ):
            await schema.install(connection)
        with pytest.raises(OutdatedSchemaError, match="version 1 of the schema is installed here"):
            await install(connection)
    async with session(version_1) as connection:
        assert await versions(connection) == [1]
        await connection.execute("select messages.dead_count()")
    assert len(await catalog(version_1)) == len(before)


async def test_a_later_version_is_left_alone(database: str) -> None:
    async with session(database) as connection:
        await connection.execute("insert into messages.schema_version values (99)")
        before = await catalog_lines(connection)
        for action in (schema.install, schema.upgrade):
            with pytest.raises(SchemaTooNewError, match="version 99 is installed"):
                await action(connection)
        with pytest.raises(OutdatedSchemaError, match="version 99 of the schema"):
            await install(connection)
        assert await catalog_lines(connection) == before


async def test_an_upgrade_brings_old_rows_into_bounds(version_1: str) -> None:
    async with session(version_1) as connection:
        await connection.execute("""
            insert into messages.queue (name, lock_timeout, retention, backoff, backoff_max)
            values ('long', '170000000 years', '300000 years', '300000 years', '300000 years'),
              ('odd', '1 minute', '71000000 months -2129999999 days', '0', '1 second');
            insert into messages.message (message, available_at)
            values ('"early"', '0044-03-15 BC'), ('"first"', '-infinity'), ('"never"', 'infinity');
            update messages.message set created_at = '-infinity' where message = '"early"';
            update messages.message_archive set created_at = 'infinity', available_at = 'infinity',
              archived_at = '0044-03-15 BC'
            where id = (select min(a.id) from messages.message_archive as a);
        """)
        before = [
            await connection.fetchval(f"select count(*) from messages.{table}")
            for table in ("queue", "message", "message_archive")
        ]
        await schema.upgrade(connection)
        after = [
            await connection.fetchval(f"select count(*) from messages.{table}")
            for table in ("queue", "message", "message_archive")
        ]
        assert after == before
        kept = await connection.fetch(
            "select q.retention <= '1000 years' and q.lock_timeout <= '1000 years' "
            "and q.backoff <= '1000 years' from messages.queue as q"
        )
        assert all(row[0] for row in kept)
        due = await connection.fetch(
            "select m.message #>> '{}' as said, m.available_at::text as due "
            "from messages.message as m where jsonb_typeof(m.message) = 'string' order by m.id"
        )
        instants = {row["said"]: row["due"] for row in due}
        assert instants["never"] == "infinity"
        assert {instants["early"], instants["first"]} == {"0001-01-01 00:00:00+00"}
        # Nothing overflows any more, and every row can be read.
        assert await connection.fetchval("select messages.maintain() is not null")
        for table in ("queue", "message", "message_archive"):
            await connection.fetch(f"select t.* from messages.{table} as t")
        assert await connection.fetch("select c.* from messages.claim(null, 100) as c")
