"""A second database, to which the one of the test is relayed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from support.database import Connection, session
from support.databases import Databases


@pytest.fixture
def far(databases: Databases) -> Iterator[str]:
    """Give the address of another database with the schema."""
    with databases.lend() as dsn:
        yield dsn


@pytest.fixture
async def there(far: str) -> AsyncIterator[Connection]:
    """Give a session in the other database."""
    async with session(far) as connection:
        yield connection
