"""Servers of a test's own, one of which follows the other."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from database.pairs import Pair
from notifyq import schema
from notifyq.chaos.server import Server, programs


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    if not (programs() / "pg_basebackup").exists():
        pytest.skip("there is no pg_basebackup")
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # the server is another user's
        primary = Server(folder / "primary", programs())
        primary.create()
        try:
            await primary.start()
            async with primary.connection() as connection:
                await schema.install(connection)
            yield Pair(primary, await primary.add_standby(folder / "standby"))
        finally:
            await primary.close()
