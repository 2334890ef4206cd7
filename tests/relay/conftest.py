"""A second database, to which the one of the test is relayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.database import session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from support.database import Connection
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
