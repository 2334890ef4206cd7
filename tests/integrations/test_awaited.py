"""Publishing on connections of asyncio: asyncpg, psycopg, SQLAlchemy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import asyncpg
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from integrations.connections import Watcher, url
from notifyq import App, ConfigurationError, Published, QueueNotFoundError, within


async def test_a_message_is_published_if_the_transaction_commits(
    awaited: Any, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    await within.publish(awaited, "default", "never")
    await awaited.rollback()
    first = await within.publish(
        awaited,
        "default",
        {"a": 1},
        priority=7,
        type="t",
        headers={"h": 1},
        dedup_key="d",
        key="k",
        max_attempts=3,
        available_at=datetime(2050, 1, 1, tzinfo=UTC),
    )
    rest = await within.publish_many(
        awaited, "default", range(3), key=str, delay=timedelta(hours=1)
    )
    monkeypatch.setattr("notifyq.queues.publisher._LARGEST", 2)
    with pytest.raises(ConfigurationError, match="at position 4"):
        await within.publish_many(awaited, "default", [2, 3, 4, "\x00", 5])
    # Of that nothing is left, and the transaction goes on.
    last = await within.publish(awaited, "default", 9)
    assert not watcher.messages()
    assert not watcher.notifications()

    await awaited.commit()
    assert watcher.ids() == [first, *rest, last]
    assert watcher.notifications() == 1
    message, delayed, *_ = watcher.messages()
    names = "priority", "type", "headers", "dedup_key", "key", "max_attempts"
    assert [message[name] for name in names] == [7, "t", {"h": 1}, "d", "k", 3]
    assert message["available_at"] == datetime(2050, 1, 1, tzinfo=UTC)
    assert delayed["available_at"] - delayed["created_at"] > timedelta(minutes=59)


async def test_errors_are_those_of_notifyq(awaited: Any, watcher: Watcher) -> None:
    refused: list[tuple[str, Any, dict[str, Any], type[Exception]]] = [
        ("absent", 1, {}, QueueNotFoundError),
        ("default", "a\x00b", {}, ConfigurationError),
        ("default", 1, {"type": "a\x00"}, ConfigurationError),
        ("default", 1, {"priority": 2**31}, ConfigurationError),
    ]
    for queue, payload, options, error in refused:
        with pytest.raises(error):
            await within.publish(awaited, queue, payload, **options)
        await awaited.rollback()
        with pytest.raises(error):
            await within.publish_many(awaited, queue, [payload], **options)
        await awaited.rollback()
        await within.publish(awaited, "default", "after")
        await awaited.commit()
    assert [message["message"] for message in watcher.messages()] == ["after"] * len(refused)


async def test_a_connection_of_asyncpg_publishes(database: str, watcher: Watcher) -> None:
    async with asyncpg.create_pool(database, min_size=1) as pool, pool.acquire() as connection:
        async with connection.transaction():
            first = assert_type(await within.publish(connection, "default", 1), Published)
            assert not watcher.ids()
        assert watcher.ids() == [first]
    own = await asyncpg.connect(database)
    second = assert_type(await within.publish_many(own, "default", [2]), list[Published])
    await own.close()
    assert watcher.ids() == [first, *second]


async def test_an_app_and_a_handler_publish_on_a_session(database: str, watcher: Watcher) -> None:
    app = App(database)

    @app.handler("default")
    async def handle(number: int) -> None:
        raise AssertionError(number)

    engine = create_async_engine(url(database, "asyncpg"))
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(text("create table bill (number int)"))
        ids = [
            await app.publish("default", 1, connection=session),
            await handle.publish(2, connection=session),
            *await app.publish_many("default", [3, 4], connection=session),
        ]
        assert_type(await within.publish(session, handle, 5), Published)
        await session.rollback()
    assert not watcher.ids()
    async with AsyncSession(engine) as session, session.begin():
        ids = await app.publish_many("default", [3, 4], connection=session)
    await engine.dispose()
    await app.close()
    assert watcher.ids() == ids


async def test_an_app_refuses_a_connection_that_blocks(database: str) -> None:
    app = App(database)
    with psycopg.connect(database) as connection:
        for call in (
            app.publish("default", 1, connection=connection),  # type: ignore[arg-type]
            app.publish_many("default", [1], connection=connection),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigurationError, match=r"notifyq\.within\.publish"):
                await call
