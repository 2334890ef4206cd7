"""Connections of other libraries to the database of the test, and a watcher of the result."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from integrations.connections import Watcher, django, url

BLOCKING = [
    "psycopg",
    "psycopg with other rows and cursors",
    "connection of SQLAlchemy",
    "session of SQLAlchemy",
    "scoped session of SQLAlchemy",
    "Django",
]
ASYNC = [
    "psycopg",
    "connection of SQLAlchemy over asyncpg",
    "session of SQLAlchemy over asyncpg",
    "session of SQLAlchemy over psycopg",
    "scoped session of SQLAlchemy over asyncpg",
]


@pytest.fixture
def watcher(database: str) -> Iterator[Watcher]:
    """Give a session of its own."""
    watcher = Watcher(database)
    yield watcher
    watcher.close()


@pytest.fixture(params=BLOCKING)
def blocking(request: pytest.FixtureRequest, database: str) -> Iterator[Any]:
    """Give a connection that blocks, its transaction to be committed or rolled back."""
    with ExitStack() as stack:
        engine = create_engine(url(database, "psycopg"))
        stack.callback(engine.dispose)
        match request.param:
            case "psycopg":
                yield stack.enter_context(psycopg.connect(database))
            case "psycopg with other rows and cursors":
                yield stack.enter_context(
                    psycopg.connect(
                        database, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
                    )
                )
            case "connection of SQLAlchemy":
                yield stack.enter_context(engine.connect())
            case "session of SQLAlchemy":
                yield stack.enter_context(Session(engine))
            case "scoped session of SQLAlchemy":
                scoped = scoped_session(sessionmaker(engine))
                stack.callback(scoped.remove)
                yield scoped
            case _:
                yield django(database, stack, autocommit=False)


@pytest.fixture(params=ASYNC)
async def awaited(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Any]:
    """Give a connection of asyncio, in a transaction."""
    async with AsyncExitStack() as stack:
        driver = "psycopg" if "over psycopg" in request.param else "asyncpg"
        engine = create_async_engine(url(database, driver))
        stack.push_async_callback(engine.dispose)
        match request.param.partition(" over ")[0]:
            case "psycopg":
                yield await stack.enter_async_context(
                    await psycopg.AsyncConnection.connect(database)
                )
            case "connection of SQLAlchemy":
                yield await stack.enter_async_context(engine.connect())
            case "session of SQLAlchemy":
                yield await stack.enter_async_context(AsyncSession(engine))
            case _:
                scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
                stack.push_async_callback(scoped.remove)
                yield scoped
