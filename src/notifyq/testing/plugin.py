"""Fixtures for pytest: a server for the session, and a new database for each test.

In the conftest.py at the root: `pytest_plugins = ["notifyq.testing.plugin"]`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import pytest

from notifyq.dsn import with_database
from notifyq.schema import install
from notifyq.server import Server
from notifyq.signals import unwinding

_PREFIX = f"notifyq_test_{os.getpid()}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --notifyq-dsn, which selects an existing server."""
    parser.addoption(
        "--notifyq-dsn",
        metavar="DSN",
        default=os.environ.get("NOTIFYQ_TEST_DSN"),
        help="A server where tests may create databases; by default a private one is started.",
    )


@pytest.fixture(scope="session")
def notifyq_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of the server: --notifyq-dsn or NOTIFYQ_TEST_DSN, else a private server."""
    given = request.config.getoption("--notifyq-dsn")
    if given:
        yield given
        return
    with private_server() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def notifyq_template(notifyq_server: str) -> Iterator[str]:
    """The name of a database with the schema, the template of the others."""
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
    """The DSN of a new database for this test, which has the schema only."""
    with cloned(notifyq_server, notifyq_template, f"{_PREFIX}_{os.urandom(4).hex()}") as dsn:
        yield dsn


@contextmanager
def private_server(binaries: Path | None = None) -> Iterator[str]:
    """Run a private server without fsync, yield its DSN, and delete it."""
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        # Started by root, the server runs as another user and must be able to enter.
        Path(folder).chmod(0o711)
        # pytest does not handle SIGTERM: the server's files would stay.
        with unwinding(), Server(Path(folder) / "server", binaries=binaries, throwaway=True) as it:
            yield it.dsn


@contextmanager
def cloned(server: str, template: str, name: str) -> Iterator[str]:
    """Create a database from a template, yield its DSN, and drop it."""

    async def create() -> None:
        async with _session(server) as admin:
            # The other strategy forces a checkpoint of the whole server.
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
