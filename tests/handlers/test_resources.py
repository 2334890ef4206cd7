"""What handlers share, and what runs around them."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NewType

import pytest

from notifyq import App, ConfigurationError, Message, Reject, ResourceError
from notifyq.telemetry import MessageFinished
from notifyq.testing import Sandbox
from support.database import Connection, publish, rows, value
from support.running import Events, working


class Pool:
    """A resource."""

    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Client:
    """A resource that needs another one."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool


Replica = NewType("Replica", Pool)
Number = NewType("Number", int)


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def shared(app: App, log: list[str]) -> App:
    @app.resource
    async def pool() -> AsyncIterator[Pool]:
        log.append("open pool")
        yield Pool()
        log.append("close pool")

    @app.resource
    def replica() -> Iterator[Replica]:
        log.append("open replica")
        yield Replica(Pool("replica"))
        log.append("close replica")

    @app.resource
    async def client(pool: Pool) -> AsyncIterator[Client]:
        log.append("open client")
        yield Client(pool)
        log.append("close client")

    @app.resource
    async def number() -> Number:
        log.append("open number")
        return Number(7)

    return app


async def test_a_worker_opens_what_its_handlers_need_and_closes_it_in_reverse(
    shared: App, events: Events, connection: Connection, log: list[str]
) -> None:
    @shared.handler("q")
    async def handle(client: Client, payload: int, replica: Replica, message: Message) -> str:
        log.append(f"handle {payload}")
        return f"{client.pool.name} {replica.name} {message.id}"

    @shared.handler("sync")
    def handle_in_a_thread(payload: int, *, client: Client) -> str:
        return client.pool.name

    async with working(shared, events):
        (first,) = await publish(connection, 1, "q")
        (second,) = await publish(connection, 1, "sync")
        await events.wait(MessageFinished, 2)
    results = {row["id"]: row["result"] for row in await rows(connection, "archive_list")}
    assert results == {first: f"pool replica {first}", second: "pool"}
    assert log == [
        "open pool",
        "open replica",
        "open client",
        f"handle {log[3].split()[1]}",
        "close client",
        "close replica",
        "close pool",
    ]


async def test_handlers_of_other_queues_open_nothing(
    shared: App, events: Events, log: list[str]
) -> None:
    @shared.handler("q")
    async def handle(payload: int, client: Client) -> None: ...

    @shared.handler("other")
    async def other(payload: int, number: Number) -> None: ...

    async with working(shared, events, queues=["other"]):
        pass
    assert log == ["open number"]


async def test_a_resource_that_cannot_be_opened_ends_the_worker_and_closes_the_others(
    shared: App, log: list[str]
) -> None:
    @shared.resource
    async def broken(client: Client) -> AsyncIterator[bytes]:
        if client.pool.name == "pool":
            raise OSError("no route")
        yield b""

    @shared.handler("q")
    async def handle(payload: int, broken: bytes) -> None: ...

    worker = shared.worker()
    with pytest.raises(ResourceError, match=r"broken could not be opened: OSError: no route"):
        await shared.work(worker)
    assert log == ["open pool", "open client", "close client", "close pool"]


def test_a_resource_without_a_type_or_a_value_is_refused(shared: App) -> None:
    with pytest.raises(ConfigurationError, match="needs a return annotation"):
        shared.resource(lambda: 1)
    with pytest.raises(ConfigurationError, match=r"pool already makes Pool.*NewType"):

        @shared.resource
        def another() -> Pool:
            return Pool()

    with pytest.raises(ConfigurationError, match=r"'session' of .*needy has no value"):

        @shared.resource
        def needy(session: str) -> dict[str, int]:
            return {}

    with pytest.raises(ConfigurationError, match="'other' has no value"):

        @shared.handler("q")
        async def handle(payload: int, other: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match="'pool' has no value"):

        @shared.handler("q")
        async def positional(pool: Pool, /) -> None: ...


async def test_middleware_runs_around_handlers_the_first_outermost(
    app: App, events: Events, connection: Connection, log: list[str]
) -> None:
    @app.middleware
    async def outer(message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        log.append(f"begin {message.queue}")
        try:
            return {"outer": await call()}
        finally:
            log.append("end")

    @app.middleware
    async def inner(message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        if message.payload() == "bad":
            raise Reject("bad")
        return {"inner": await call()}

    @app.handler("q")
    def handle(payload: str) -> str:
        log.append(payload)
        return payload

    async with working(app, events, concurrency=1):
        good = await value(connection, "publish", queue="q", message="good")
        await events.wait(MessageFinished, 1)
        bad = await value(connection, "publish", queue="q", message="bad")
        await events.wait(MessageFinished, 2)
    archived = {row["id"]: row for row in await rows(connection, "archive_list")}
    assert archived[good]["result"] == {"outer": {"inner": "good"}}
    assert (archived[bad]["status"], archived[bad]["details"]) == ("rejected", "bad")
    assert log == ["begin q", "good", "end", "begin q", "end"]


async def test_a_timeout_stops_a_handler_within_middleware(
    app: App, events: Events, connection: Connection
) -> None:
    @app.middleware
    async def around(_message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    let_go = threading.Event()

    @app.handler("q", timeout=0.05)
    def handle() -> None:
        let_go.wait(20)

    async with working(app, events):
        await publish(connection, 1, "q")
        (finished,) = await events.wait(MessageFinished)
        let_go.set()
    assert finished.status == "failed"
    assert "longer than its timeout" in str(finished.details)


async def test_a_sandbox_passes_the_resources_of_the_test(
    shared: App, database: str, log: list[str]
) -> None:
    @shared.handler("q")
    async def handle(payload: int, client: Client, number: Number) -> str:
        return f"{client.pool.name} {number}"

    async with Sandbox(shared, database, resources={Client: Client(Pool("fake"))}) as sandbox:
        await shared.publish("q", 1)
        (done,) = await sandbox.drain()
        assert done.result == '"fake 7"'
    assert log == ["open number"]
