"""Installations: into nothing, twice, and where they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from notifyq import schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import AccessDeniedError, SchemaError, SchemaMissingError
from notifyq.schema.state import check_rights
from support.database import Connection, catalog_lines, session


async def catalog(dsn: str) -> list[str]:
    async with session(dsn) as connection:
        return await catalog_lines(connection)


async def test_an_install_is_whole_and_another_changes_nothing_or_repairs_it(
    empty_database: str, database: str
) -> None:
    async with session(empty_database) as connection:
        report = await schema.install(connection)
        assert await schema.installed_version(connection) == SCHEMA_VERSION
        again = await schema.install(connection)
        await connection.execute("drop index messages.message_waiting_idx")
        await schema.install(connection)
    assert (report.before, report.version, report.is_changed) == (None, SCHEMA_VERSION, True)
    assert report.database in empty_database
    assert report.files == tuple(schema.plan(None))
    assert (again.before, again.version, again.is_changed) == (SCHEMA_VERSION,) * 2 + (False,)
    line = "pg_cron does not serve this database: the workers do maintenance"
    assert report.notices == again.notices == (line,)
    assert await catalog(empty_database) == await catalog(database)


async def test_an_install_that_was_broken_off_is_completed(
    empty_database: str, database: str
) -> None:
    async with session(empty_database) as connection:
        for path in schema.plan(None)[:9]:
            await connection.execute(path.read_text())
        assert await schema.installed_version(connection) is None
        assert (await schema.install(connection)).before is None
    assert await catalog(empty_database) == await catalog(database)


async def test_there_is_nothing_to_upgrade_in_an_empty_database(empty_database: str) -> None:
    async with session(empty_database) as connection:
        with pytest.raises(SchemaMissingError, match=r"not installed in database .*`notifyq init`"):
            await schema.upgrade(connection)


@pytest.mark.parametrize(
    "thing",
    ["table messages.message (id int)", "type messages.status as enum ()", "sequence messages.s"],
)
async def test_a_schema_of_another_product_is_not_touched(empty_database: str, thing: str) -> None:
    async with session(empty_database) as connection:
        await connection.execute(f"create schema messages; create {thing}")
        before = await catalog_lines(connection)
        for action in (schema.install, schema.upgrade, schema.installed_version):
            with pytest.raises(SchemaError, match="is not that of notifyq"):
                await action(connection)
        assert await catalog_lines(connection) == before


async def test_an_error_for_a_user_without_rights_has_a_hint(
    empty_database: str, role: str
) -> None:
    async with session(empty_database) as connection:
        name = await connection.fetchval("select current_database()")
        await connection.execute(f"set role {role}")
        with pytest.raises(
            AccessDeniedError,
            match=f"^user {role} may not create schema messages in database {name}: run as its "
            f"owner or `grant create on database {name} to {role}`$",
        ):
            await schema.install(connection)
        await connection.execute("reset role")
        await connection.execute(f"grant create on database {name} to {role}")
        await connection.execute(f"set role {role}")
        await schema.install(connection)
        await connection.execute("reset role")
        await connection.execute(f"revoke create on database {name} from {role}")
        await connection.execute(f"set role {role}")
        # The owner of the schema needs no right to create others.
        for action in (schema.install, schema.upgrade):
            assert not (await action(connection)).is_changed
        await connection.execute("reset role")


async def test_an_owner_may_prepare_an_empty_schema(empty_database: str, role: str) -> None:
    async with session(empty_database) as connection:
        await connection.execute(f"create schema messages authorization {role}; set role {role}")
        with pytest.raises(
            AccessDeniedError, match=f"`create schema notifyq authorization {role}`"
        ):
            await schema.install(connection)
        await connection.execute("reset role")
        await connection.execute(f"create schema notifyq authorization {role}; set role {role}")
        assert (await schema.install(connection)).before is None
        await connection.execute("reset role")


async def test_only_the_owner_may_change_the_schema(empty_database: str, role: str) -> None:
    async with session(empty_database) as connection:
        await schema.install(connection)
        for grants in ("select", f"grant notifyq_reader to {role}"):
            await connection.execute(grants)
            await connection.execute(f"set role {role}")
            for action in (schema.install, schema.upgrade):
                with pytest.raises(
                    AccessDeniedError,
                    match="run as its owner, notifyq_owner: as a superuser, or as a member of that",
                ):
                    await action(connection)
            await connection.execute("reset role")


async def test_a_right_that_is_missing_inside_a_file_is_named(
    database: str, root: Path, role: str
) -> None:
    async with session(database) as connection:
        await connection.execute(f"alter schema messages owner to {role}")
        await connection.execute(f"alter schema notifyq owner to {role}")
        await connection.execute(f"grant select on notifyq.schema_version to {role}")
        await connection.execute(f"set role {role}")
        with pytest.raises(AccessDeniedError, match=r"schema.sql: must be owner of .*superuser"):
            await schema.upgrade(connection, root)
        await connection.execute("reset role")
        await connection.execute("alter schema messages owner to current_user")
        await connection.execute("alter schema notifyq owner to current_user")
        await connection.execute(f"drop owned by {role}")


async def test_a_read_only_session_is_refused(empty_database: str) -> None:
    async with session(
        empty_database, server_settings={"default_transaction_read_only": "on"}
    ) as connection:
        with pytest.raises(SchemaError, match="transactions are read-only here"):
            await schema.install(connection)


def test_a_standby_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"^db:5432 is a read-only standby: connect to its prim"):
        check_rights({"is_standby": True, "is_read_only": True, "server": "db:5432"})


async def test_an_old_server_is_refused() -> None:
    class OldServer:
        async def fetchrow(self, _: str) -> dict[str, Any]:
            return {"server_number": 140002, "server_version": "14.2 (Debian 14.2-1)"}

    with pytest.raises(SchemaError, match=r"^PostgreSQL 15 or newer is needed, this is 14\.2$"):
        await schema.installed_version(cast("Connection", OldServer()))


async def test_settings_of_the_session_do_not_matter(empty_database: str, database: str) -> None:
    async with session(
        empty_database,
        server_settings={
            "default_transaction_isolation": "serializable",
            "search_path": "trap, public",
            "statement_timeout": "300ms",
            "client_min_messages": "error",
            "DateStyle": "German",
            "IntervalStyle": "iso_8601",
            "TimeZone": "Pacific/Kiritimati",
        },
    ) as connection:
        await connection.execute(
            "create schema trap; "
            "create function trap.format(text, integer) returns text language plpgsql as "
            "$$ begin raise exception 'trapped'; end; $$; "
            "create function trap.format(text, text) returns text language plpgsql as "
            "$$ begin raise exception 'trapped'; end; $$"
        )
        assert (await schema.install(connection)).notices
        assert await connection.fetchval("show search_path") == "trap, public"
        await connection.execute("drop schema trap cascade")
    assert await catalog(empty_database) == await catalog(database)
