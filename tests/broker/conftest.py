"""One database for all tests of a module: every test defines procedures, so none is left clean."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from notifyq.testing.plugin import cloned
from support.database import end_sessions, session

_numbers = itertools.count(1)

_CLEAN = """
select messages.drop_stream(s.name, true) from messages.stream as s;
drop schema if exists app cascade;
truncate messages.message_archive, notifyq.broker;
"""


@pytest.fixture(scope="module")
def shared_database(server: str, template: str) -> Iterator[str]:
    with cloned(server, template, f"notifyq_test_{os.getpid()}_broker_{next(_numbers)}") as dsn:
        yield dsn


@pytest.fixture
async def database(server: str, shared_database: str) -> AsyncIterator[str]:
    """Give the database without streams, procedures and dead events of other tests."""
    yield shared_database
    async with session(server) as admin:
        await end_sessions(admin, shared_database.rpartition("/")[2])
    async with session(shared_database) as connection:
        await connection.execute(f"set client_min_messages = error; {_CLEAN}")
