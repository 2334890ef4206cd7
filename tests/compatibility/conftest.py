"""Fixtures of the guarantees: a server that may crash, and a database on it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from notifyq.dsn import with_database
from notifyq.server import Server
from notifyq.testing.plugin import cloned
from support.database import (
    Connection,
    create_clone,
    drop_database,
    install,
    open_session,
    session,
    until,
)
from support.servers import kept_server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def own_server() -> Iterator[Server]:
    """Give a server that may crash, that prepares transactions, and has the schema installed."""
    with kept_server(max_prepared_transactions="20") as server:
        asyncio.run(_make_template(with_database(server.start(), "postgres")))
        yield server


async def _make_template(admin_dsn: str) -> None:
    # Not the database of the server: pg_cron is connected to that.
    async with session(admin_dsn) as admin:
        await admin.execute("create database family template template0")
    async with session(with_database(admin_dsn, "family")) as connection:
        await install(connection)


class Mortal:
    """A database of a server that the test may kill."""

    def __init__(self, server: Server, dsn: str, stack: AsyncExitStack) -> None:
        self._server = server
        self._stack = stack
        self.dsn = dsn

    async def connect(self) -> Connection:
        """Open a session, which is closed with the test, unless a crash came before."""
        connection = await open_session(self.dsn)
        self._stack.callback(connection.terminate)
        return connection

    async def crash(self) -> None:
        """End all processes of the server at once, as `pg_ctl -m immediate` does, and start it."""
        pid = self._server.running
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)
        await until(lambda: self._server.running is None, "the server is gone")
        await asyncio.to_thread(self._server.start)


@pytest.fixture
async def mortal(own_server: Server) -> AsyncIterator[Mortal]:
    """Give a fresh database of a server that may crash and that prepares transactions."""
    name = f"mortal_{next(_numbers)}"
    admin_dsn = with_database(own_server.dsn, "postgres")
    async with session(admin_dsn) as admin:
        await create_clone(admin, name, "family")
    async with AsyncExitStack() as stack:
        yield Mortal(own_server, with_database(own_server.dsn, name), stack)
    async with session(admin_dsn) as admin:
        left = await admin.fetch("select gid from pg_prepared_xacts where database = $1", name)
        assert not left, "prepared transactions are left"
        await drop_database(admin, name)


@pytest.fixture
def second_database(server: str, template: str) -> Iterator[str]:
    """Give another database of the same server, to compare with."""
    with cloned(server, template, f"notifyq_test_{os.getpid()}_beside") as dsn:
        yield dsn
