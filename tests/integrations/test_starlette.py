"""Starlette and FastAPI: the App of a web application, and events for browsers."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route

from notifyq import App, ConfigurationError, emit
from notifyq.contrib import starlette
from notifyq.models.payload import Json
from notifyq.operations.dashboard.serve import bind
from support.database import ROOT, Connection, until_equal
from support.running import Events, working


@asynccontextmanager
async def serving(web: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve it with uvicorn; give a client of it."""
    config = uvicorn.Config(web, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    listener = bind("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=address, timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def shop(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Give the sample, on the database of the test."""
    await connection.execute("create table orders (customer text primary key)")
    await connection.execute("select messages.create_queue('orders', max_attempts => 1)")
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    monkeypatch.syspath_prepend(str(ROOT / "workers/fastapi_shop"))
    api = importlib.import_module("api")
    yield api
    await api.engine.dispose()
    await api.app.close()
    del sys.modules["api"]


@pytest.fixture
async def client(shop: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(shop.web) as client:
        yield client


class Reader:
    """Reads events as a browser does."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.id = ""
        """The last id, which a browser sends when it connects again."""

    async def next(self) -> tuple[str, Any]:
        """The name and the data of the next event."""
        name, data = "message", None
        async with asyncio.timeout(20):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "id":
                    self.id = value
                elif field == "event":
                    name = value
                elif field == "data":
                    data = json.loads(value, parse_constant=pytest.fail)
                elif not line and data is not None:
                    return name, data
                elif not line:
                    name = "message"
        raise EOFError

    async def until_id(self) -> str:
        """The id that follows the last event."""
        self.id = ""
        async with asyncio.timeout(20):
            async for _ in self._lines:
                if _.startswith("id: "):
                    return _[4:]
        raise EOFError


@asynccontextmanager
async def reading(
    client: httpx.AsyncClient, path: str, last: str | None = None
) -> AsyncIterator[Reader]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with client.stream("GET", path, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Reader(response.aiter_lines())


ORDER = {"customer": "Ada", "items": ["tea", "milk"]}


async def test_an_order_is_published_if_it_is_stored(
    client: httpx.AsyncClient, connection: Connection
) -> None:
    accepted = await client.post("/orders", json=ORDER)
    assert accepted.status_code == 202
    with pytest.raises(AssertionError):  # the key is taken: the transaction fails
        assert (await client.post("/orders", json=ORDER)).status_code == 202
    published = await connection.fetchval("select array_agg(id) from messages.message")
    assert published == [accepted.json()["message"]]


async def test_a_browser_gets_what_a_handler_emits(
    shop: Any, client: httpx.AsyncClient, events: Events
) -> None:
    message = (await client.post("/orders", json=ORDER)).json()["message"]
    async with reading(client, f"/orders/{message}/events") as reader:
        async with working(shop.app, events):
            assert await reader.next() == ("message", {"packed": "tea"})
            first = reader.id
            assert await reader.next() == ("message", {"packed": "milk"})
            assert await reader.next() == ("end", {"status": "success"})
        with pytest.raises(EOFError):
            await reader.next()
    async with reading(client, f"/orders/{message}/events", first) as again:
        assert await again.next() == ("message", {"packed": "milk"})


async def test_a_browser_gets_the_events_of_a_stream_and_continues(
    client: httpx.AsyncClient, app: App
) -> None:
    await app.streams.create("news")
    async with reading(client, "/news") as reader:
        start = await reader.until_id()
        first = await app.publish("news", {"title": "☃\n"}, type="a\nb", key="k")
        name, data = await reader.next()
        assert name == "message"
        assert data.pop("created_at")
        assert data == {"id": first, "type": "a\nb", "key": "k", "message": {"title": "☃\n"}}
        position = await reader.until_id()
    second = await app.publish("news", Json(f"[{'9' * 400}.5]"))
    async with reading(client, "/news", position) as reader:
        _, data = await reader.next()
        assert (data["id"], data["message"]) == (second, [float("inf")])
    async with reading(client, "/news", start) as reader:
        assert [(await reader.next())[1]["id"] for _ in range(2)] == [first, second]


async def test_numbers_that_browsers_cannot_read_are_null(app: App, events: Events) -> None:
    @app.handler("big")
    async def handle() -> None:
        await emit(Json(f"[{'9' * 400}.5]"))

    async def output(request: Request) -> Response:
        return await starlette.output_events(request, 1)

    web = Starlette(routes=[Route("/output", output)], lifespan=starlette.lifespan(app))
    await app.create_queues()
    assert await app.publish("big", None) == 1
    async with serving(web) as client, working(app, events), reading(client, "/output") as reader:
        assert await reader.next() == ("message", [None])


async def test_a_head_request_reads_no_events() -> None:
    async def endless() -> AsyncGenerator[str, None]:
        await asyncio.Event().wait()
        yield ""

    transport = httpx.ASGITransport(starlette.EventStream(endless()))
    async with asyncio.timeout(20), httpx.AsyncClient(transport=transport) as client:
        answer = await client.head("http://localhost/")
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_events_can_be_filtered(app: App) -> None:
    await app.streams.create("news")

    async def mine(request: Request) -> Response:
        return await starlette.stream_events(request, "news", only=lambda it: it.key == "me")

    web = Starlette(routes=[Route("/mine", mine)], lifespan=starlette.lifespan(app))
    async with serving(web) as client, reading(client, "/mine") as reader:
        await reader.until_id()
        await app.publish("news", 1, key="you")
        wanted = await app.publish("news", 2, key="me")
        assert (await reader.next())[1]["id"] == wanted


@pytest.mark.parametrize(
    ("path", "last", "status"),
    [
        ("/orders/99/events", None, 404),
        ("/orders/99/events", "x", 400),
        ("/orders/99/events", "9" * 30, 400),
        ("/news", None, 404),
    ],
)
async def test_what_is_unknown_is_answered_with_a_status(
    client: httpx.AsyncClient, path: str, last: str | None, status: int
) -> None:
    headers = {} if last is None else {"Last-Event-ID": last}
    assert (await client.get(path, headers=headers)).status_code == status


@pytest.mark.parametrize("last", ["x", "1:1:1:1/x", "1:1:1:1/1:1:"])
async def test_a_position_of_another_server_is_refused(
    client: httpx.AsyncClient, app: App, last: str
) -> None:
    await app.streams.create("news")
    assert (await client.get("/news", headers={"Last-Event-ID": last})).status_code == 400


async def test_a_closed_browser_leaves_nothing_behind(
    shop: Any, client: httpx.AsyncClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starlette, "_KEEP_ALIVE", 0.05)
    await shop.app.streams.create("news")

    async def listening() -> int:
        return int(
            await connection.fetchval(
                "select count(*) from pg_stat_activity "
                "where datname = current_database() and application_name = 'notifyq stream tail'"
            )
        )

    async with reading(client, "/news"):
        await until_equal(listening, 1, "the stream is read")
    await until_equal(listening, 0, "the listening session is closed")


async def test_an_idle_connection_is_kept_alive(
    client: httpx.AsyncClient, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starlette, "_KEEP_ALIVE", 0.05)
    await app.streams.create("news")
    async with asyncio.timeout(20), client.stream("GET", "/news") as response:
        async for line in response.aiter_lines():
            if line == ": keep-alive":
                break
        else:
            raise AssertionError("no comment came")


async def test_the_lifespan_runs_another_one_inside(app: App) -> None:
    order: list[Any] = []

    @asynccontextmanager
    async def inner(web: Any) -> AsyncIterator[dict[str, int]]:
        order.append((web, await app.archive.live()))
        yield {"own": 1}
        order.append("closed")

    web = Starlette(lifespan=starlette.lifespan(app, inner))
    mounted = Starlette()
    web.mount("/part", mounted)
    seen: list[Any] = []

    async def note(scope: Any, receive: Any, send: Any) -> None:
        connection = HTTPConnection(scope)
        seen.extend([starlette.get_app(connection), connection.state.own])
        await Response()(scope, receive, send)

    mounted.mount("/", note)
    async with serving(web) as client:
        assert (await client.get("/part/x")).status_code == 200
    assert seen == [app, 1]
    assert order == [(web, []), "closed"]


def test_an_application_without_the_lifespan_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"lifespan=notifyq\.contrib\.starlette"):
        starlette.get_app(HTTPConnection({"type": "http"}))
