"""A second database, to which the one of the test is relayed."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import pytest

from notifyq.dsn import with_database
from support.database import create_clone, drop_database, open_session, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

_numbers = itertools.count(1)


@pytest.fixture
async def far(server: str, template: str) -> AsyncIterator[str]:
    """Give the address of another database with the schema, gone after the test."""
    name = f"notifyq_test_{os.getpid()}_far_{next(_numbers)}"
    async with session(server) as admin:
        await create_clone(admin, name, template)
        yield with_database(server, name)
        await drop_database(admin, name)


@pytest.fixture
async def there(far: str) -> AsyncIterator[Connection]:
    """Give a session in the other database."""
    connection = await open_session(far)
    yield connection
    await connection.close(timeout=10)
