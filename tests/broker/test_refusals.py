"""The broker when the server refuses a call: it tries again, or lacks rights and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from broker.procedures import prepare, register, send, until_seen
from notifyq.broker import Broker
from notifyq.config import BrokerSettings
from notifyq.errors import AccessDeniedError, NotifyqError, SchemaMissingError
from notifyq.telemetry import BrokerLost, TelemetryEvent
from support.database import Connection, until
from support.refusing import LIMITED, OF_ALL, refusing

CALLS = ["messages.run_broker", "messages.status_broker", "messages.stop_broker"]


@pytest.fixture
async def app(connection: Connection) -> Connection:
    await prepare(connection, "s")
    await register(connection, "a")
    return connection


@pytest.fixture
async def events() -> list[TelemetryEvent]:
    return []


@pytest.fixture
async def broker(
    app: Connection, database: str, events: list[TelemetryEvent]
) -> AsyncIterator[tuple[Broker, asyncio.Task[None]]]:
    """Give a broker that has begun, and its task."""
    settings = BrokerSettings.load(poll=0.1)
    async with Broker(database, settings=settings, telemetry=events.append) as broker:
        task = asyncio.create_task(broker.serve())
        await send(app, "first")
        await until_seen(app, "first")
        yield broker, task
        broker.stop()
        async with asyncio.timeout(30):
            await asyncio.wait({task})


@pytest.mark.parametrize("state", LIMITED)
async def test_a_refused_run_is_tried_again(
    broker: tuple[Broker, asyncio.Task[None]],
    app: Connection,
    events: list[TelemetryEvent],
    state: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def is_reported() -> bool:
        lost = [it.error for it in events if isinstance(it, BrokerLost)]
        return "refused for a test" in caplog.text + str(lost)

    async with refusing(app, CALLS[0], state):
        await until(is_reported, "the refusal is reported", 30)
        await send(app, "second")
    await until_seen(app, "second")
    assert not broker[1].done()
    logged = [it for it in caplog.records if it.levelno >= logging.ERROR]
    assert len(logged) == (state in {"55000", "XX000"})
    # Its session is not lost, and not reported so.
    if logged:
        assert not any(isinstance(it, BrokerLost) for it in events)
        # The call that has handled the event is still to return.
        await until(
            lambda: "it works again" in caplog.text, "the end of the refusals is logged", 30
        )


@pytest.mark.parametrize("state", OF_ALL)
async def test_without_a_right_or_the_schema_it_ends(
    broker: tuple[Broker, asyncio.Task[None]], app: Connection, state: str
) -> None:
    expected = AccessDeniedError if state == "42501" else SchemaMissingError
    async with refusing(app, CALLS[0], state), asyncio.timeout(30):
        with pytest.raises(expected, match="refused for a test"):
            await broker[1]


@pytest.mark.parametrize("state", [*OF_ALL, *LIMITED])
async def test_a_lost_session_is_replaced_though_its_status_is_refused(
    broker: tuple[Broker, asyncio.Task[None]],
    app: Connection,
    state: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pid = await app.fetchval("select pid from messages.status_broker()")
    async with refusing(app, CALLS[1], state):
        await app.execute("select pg_terminate_backend($1)", pid)
        if state in {"57014", "40001", "53300"}:
            await until(lambda: "refused for a test" in caplog.text, "it is refused")
        else:
            await send(app, "second")
            await until_seen(app, "second")
    await send(app, "third")
    await until_seen(app, "third")
    assert not broker[1].done()


@pytest.mark.parametrize("state", ["42501", "57014", "XX000"])
async def test_it_stops_though_that_is_refused(
    broker: tuple[Broker, asyncio.Task[None]], app: Connection, state: str
) -> None:
    async with refusing(app, CALLS[2], state), asyncio.timeout(30):
        broker[0].stop()
        await broker[1]


@pytest.mark.parametrize("state", [*OF_ALL, "55000", "XX000"])
async def test_a_refused_start_is_an_error(app: Connection, database: str, state: str) -> None:
    async with refusing(app, "notifyq.want_broker", state), asyncio.timeout(30):
        with pytest.raises(Exception, match="refused for a test") as caught:
            async with Broker(database):
                pass
    assert isinstance(caught.value, NotifyqError) == (state in OF_ALL)
