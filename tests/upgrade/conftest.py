"""Databases as version 1 left them, and roles that may do less than the superuser of the tests."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.database import ROOT, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HERE = Path(__file__).parent


@pytest.fixture
async def version_1(empty_database: str) -> str:
    """Give the address of a database with version 1 of the schema and messages in it."""
    async with session(empty_database) as connection:
        for name in ("baseline_0001.sql", "baseline_0001_data.sql"):
            await connection.execute((HERE / name).read_text(encoding="utf-8"))
    return empty_database


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a copy of the SQL files, to be changed by the test."""
    for folder in ("init", "migrations"):
        shutil.copytree(ROOT / "db" / folder, tmp_path / "db" / folder)
    return tmp_path / "db"


@pytest.fixture
async def role(server: str, empty_database: str) -> AsyncIterator[str]:
    """Give a role without any right; it goes with all that it has in the database of the test."""
    name = f"test_role_{os.getpid()}"
    async with session(server) as admin:
        await admin.execute(f"create role {name}")
    yield name
    async with session(empty_database) as connection:
        await connection.execute(f"drop owned by {name} cascade")
        await connection.execute(f"drop role {name}")
