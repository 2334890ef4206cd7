"""The owner: a role that cannot log in, if the installer may create one; else the installer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from notifyq import schema
from notifyq.dsn import with_database
from support.database import Connection, install, session
from support.servers import kept_server

OWNERS = """
    select distinct o.owner::regrole::text from (
      select n.nspowner from pg_namespace as n where n.nspname in ('messages', 'notifyq')
      union all select relowner from pg_class where relnamespace in ('messages'::regnamespace,
        'notifyq'::regnamespace)
      union all select proowner from pg_proc where pronamespace in ('messages'::regnamespace,
        'notifyq'::regnamespace)
      union all select typowner from pg_type where typnamespace in ('messages'::regnamespace,
        'notifyq'::regnamespace)
    ) as o (owner)
"""


@pytest.fixture
def bare_server() -> Iterator[str]:
    """Give the DSN of a server without any role of notifyq."""
    with kept_server() as server:
        yield server.start()


async def owners(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(OWNERS)]


async def works(connection: Connection) -> None:
    await connection.execute("insert into messages.message (message) values ('1')")
    (message,) = await connection.fetch("select * from messages.claim()")
    assert await connection.fetchval("select messages.finish($1, 1)", message["id"])
    assert await connection.fetchval("select messages.maintain() is not null")


async def test_each_installer_gets_the_owner_that_it_may_make(bare_server: str) -> None:
    async with session(bare_server) as superuser:
        for name, attribute in (("plain", ""), ("maker", "createrole"), ("second", "createrole")):
            await superuser.execute(f"create role {name} login {attribute}")
            await superuser.execute(f"create database {name} owner {name}")
        for name in ("prepared", "handed"):
            await superuser.execute(f"create database {name}")

    async with session(with_database(bare_server, "plain")) as connection:
        await connection.execute("set session authorization plain")
        assert (await schema.install(connection)).before is None
        assert await owners(connection) == ["plain"]
        await works(connection)
        assert not (await schema.install(connection)).is_changed

    async with session(with_database(bare_server, "maker")) as connection:
        await connection.execute("set session authorization maker")
        assert (await schema.install(connection)).before is None
        assert await owners(connection) == ["notifyq_owner"]
        await works(connection)
        # It is a member, so it can do so again, also where something new is to be made.
        await connection.execute("drop function messages.dead_count(text, text, boolean)")
        assert (await schema.upgrade(connection)).is_changed
        assert await owners(connection) == ["notifyq_owner"]
        assert not (await schema.install(connection)).is_changed

    # The role exists and belongs to another: an installer that is no member stays the owner.
    async with session(with_database(bare_server, "second")) as connection:
        await connection.execute("set session authorization second")
        await schema.install(connection)
        assert await owners(connection) == ["second"]
        await works(connection)
        await connection.execute("reset session authorization")
        await schema.upgrade(connection)
        assert await owners(connection) == ["second"]

    # A superuser respects an owner that was chosen, and hands over what is a superuser's.
    async with session(with_database(bare_server, "prepared")) as connection:
        await connection.execute("create schema messages authorization plain")
        await schema.install(connection)
        assert await owners(connection) == ["plain"]
    async with session(with_database(bare_server, "handed")) as connection:
        await install(connection)
        assert await owners(connection) == ["notifyq_owner"]
        name = await connection.fetchval("select current_user")
        await connection.execute(
            f"alter schema messages owner to {name}; reassign owned by notifyq_owner to {name}"
        )
        await schema.upgrade(connection)
        assert await owners(connection) == ["notifyq_owner"]
        await works(connection)
