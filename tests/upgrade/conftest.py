"""Databases with messages in them, files of a second version, and roles with few rights."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.database import ROOT, session
from upgrade.second import write_second

HERE = Path(__file__).parent


@pytest.fixture
async def filled(database: str) -> str:
    """Give the address of a database with the schema, and messages in every state."""
    async with session(database) as connection:
        await connection.execute((HERE / "data.sql").read_text(encoding="utf-8"))
    return database


@pytest.fixture
async def full(filled: str) -> str:
    """Give that database with a queue that is not durable and a stream besides."""
    async with session(filled) as connection:
        await connection.execute((HERE / "more_data.sql").read_text(encoding="utf-8"))
    return filled


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give a copy of the SQL files, to be changed by the test."""
    for folder in ("init", "migrations"):
        shutil.copytree(ROOT / "db" / folder, tmp_path / "db" / folder)
    return tmp_path / "db"


@pytest.fixture
def second(root: Path) -> Path:
    """Give the SQL files of the second version, which only the tests have."""
    write_second(root)
    return root


@pytest.fixture
def second_package(second: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the files of the second version be those that belong to this code."""
    monkeypatch.setattr("notifyq.schema.files.sql_root", lambda: second)
    return second


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
