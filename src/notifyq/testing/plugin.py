"""Fixtures for pytest: a server for the session, and for each test a fresh database.

In the conftest.py at the root: `pytest_plugins = ["notifyq.testing.plugin"]`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from notifyq.config import with_database
from notifyq.schema import install
from notifyq.server import Server
from notifyq.server.signals import unwinding

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_PREFIX = f"notifyq_test_{os.getpid()}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a server be chosen that is there already."""
    parser.addoption(
        "--notifyq-dsn",
        metavar="DSN",
        default=os.environ.get("NOTIFYQ_TEST_DSN"),
        help="A server in which tests may create databases; else a private one is started.",
    )


@pytest.fixture(scope="session")
def notifyq_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the DSN of the server: that of --notifyq-dsn or NOTIFYQ_TEST_DSN, else a private one."""
    given = request.config.getoption("--notifyq-dsn")
    if given:
        yield given
        return
    with private_server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def notifyq_template(notifyq_server: str) -> Iterator[str]:
    """Give the name of a database that has the schema, to make others from."""
    name = f"{_PREFIX}_template"

    async def create() -> None:
        async with _session(notifyq_server) as admin:
            await admin.execute(f'create database "{name}" template template0')
        async with _session(with_database(notifyq_server, name)) as connection:
            await install(connection)

    asyncio.run(create())
    yield name
    asyncio.run(_drop(notifyq_server, name))


@pytest.fixture
def notifyq_dsn(notifyq_server: str, notifyq_template: str) -> Iterator[str]:
    """Give the DSN of a database of this test's own, with the schema and nothing else in it."""
    with cloned(notifyq_server, notifyq_template, f"{_PREFIX}_{os.urandom(4).hex()}") as dsn:
        yield dsn


@contextmanager
def private_server(binaries: Path | None = None) -> Iterator[str]:
    """Give the DSN of a server of one's own, without fsync; it is deleted in the end."""
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        # Run by root, the server is another user's and must be able to enter.
        Path(folder).chmod(0o711)
        # pytest itself leaves SIGTERM as it is, which would leave the server's files behind.
        with unwinding(), Server(Path(folder) / "server", binaries=binaries, throwaway=True) as it:
            yield it.dsn


@contextmanager
def cloned(server: str, template: str, name: str) -> Iterator[str]:
    """Give the DSN of a database that is made from another one, and dropped in the end."""

    async def create() -> None:
        async with _session(server) as admin:
            # The other strategy waits for a checkpoint of the whole server.
            await admin.execute(f'create database "{name}" template "{template}" strategy wal_log')

    asyncio.run(create())
    try:
        yield with_database(server, name)
    finally:
        asyncio.run(_drop(server, name))


async def _drop(server: str, name: str) -> None:
    async with _session(server) as admin:
        await admin.execute(f'drop database "{name}" with (force)')


@asynccontextmanager
async def _session(dsn: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(dsn, timeout=20)
    try:
        yield connection
    finally:
        await connection.close(timeout=10)
