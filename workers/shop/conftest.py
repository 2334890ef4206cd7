"""Each test gets the shop on a database of its own."""

from collections.abc import AsyncIterator

import pytest_asyncio

from notifyq.testing import Sandbox
from shop import app

pytest_plugins = ["notifyq.testing.plugin"]


@pytest_asyncio.fixture
async def sandbox(notifyq_dsn: str) -> AsyncIterator[Sandbox]:
    """Give the database in which the shop publishes."""
    async with Sandbox(app, notifyq_dsn) as sandbox:
        yield sandbox
