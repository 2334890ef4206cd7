"""Pages while the database is away, slow, or refuses a statement, and live values."""

from __future__ import annotations

import asyncio
import json
import time

import asyncpg
import pytest
from starlette.routing import Route

from notifyq.database.pool import Database
from notifyq.dsn import with_database
from notifyq.errors import DatabaseUnavailableError
from notifyq.operations.dashboard import create_app
from notifyq.operations.dashboard.live import Live
from operations.dashboard.conftest import Browser, Open, make_dead
from support.database import Connect, Connection, end_sessions, publish, session, until


async def test_pages_report_that_the_database_is_away_and_recover(
    reader: Browser, database: str, server: str
) -> None:
    name = database.rpartition("/")[2]
    assert await reader.text("/queues")
    async with session(server) as admin:
        await admin.execute(f'alter database "{name}" allow_connections false')
        try:
            await end_sessions(admin, name)
            reader.app.state.dashboard.cache.forget()
            for path in ("/queues", "/audit"):
                answer = await reader.get(path)
                assert answer.status_code == 503
                assert answer.headers["refresh"] == "5"
                assert "The database is away" in answer.text
                # Nothing of how to get in.
                assert database.split("@")[0] not in answer.text
        finally:
            await admin.execute(f'alter database "{name}" allow_connections true')
    assert "default" in await reader.text("/queues")
    assert with_database(server, name) == database


async def test_a_slow_page_is_cancelled_and_does_not_block_others(
    open_dashboard: Open, connect: Connect
) -> None:
    browser = await open_dashboard(timeout=0.5)
    await browser.text("/queues")
    blocker = await connect()
    async with blocker.transaction():
        await blocker.execute("lock table messages.queue in access exclusive mode")
        slow = [asyncio.create_task(browser.get("/queue?name=default")) for _ in range(3)]
        assert "Audit" in await browser.text("/audit")
        for answer in await asyncio.gather(*slow):
            assert answer.status_code == 503
            assert "This takes too long" in answer.text
    await browser.text("/queue?name=default")


async def test_an_error_names_the_missing_role(
    database: str, connection: Connection, open_dashboard: Open
) -> None:
    role = "notifyq_dashboard_test"
    await connection.execute(
        f"create role {role} login password 'x'; grant notifyq_reader to {role}"
    )
    try:
        dsn = f"postgresql://{role}:x@{database.split('@')[1]}"
        browser = await open_dashboard(dsn=dsn, allow_writes=True)
        # What it may see it sees.
        for path in ("/", "/queues", "/queue?name=default", "/health", "/audit"):
            await browser.text(path)
        answer = await browser.send("/queues/pause", name="default")
        assert answer.status_code == 403
        assert "notifyq_admin" in answer.text
        desk = browser.app.state.dashboard
        await desk.writer.close()
        await desk.database.close()
    finally:
        await connection.execute(f"drop owned by {role}; drop role {role}")
    assert not await connection.fetchval("select paused from messages.queue")


@pytest.mark.parametrize("is_cause", [False, True])
async def test_a_full_disk_is_reported(
    reader: Browser, monkeypatch: pytest.MonkeyPatch, *, is_cause: bool
) -> None:
    async def full(*_: object) -> None:
        error = asyncpg.DiskFullError("could not write init file")
        if is_cause:
            raise DatabaseUnavailableError("cannot connect: could not write init file") from error
        raise error

    monkeypatch.setattr(reader.app.state.dashboard.database, "fetch", full)
    answer = await reader.get("/audit")
    assert answer.status_code == 503
    assert "The disk of the server is full" in answer.text
    assert "ould not write init file. Free or add disk space" in answer.text


async def test_internal_errors_are_logged_and_not_shown(
    reader: Browser, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(reader.app.state.dashboard.database, "fetch", broken)
    answer = await reader.get("/audit")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret of the house" in caplog.text


async def test_the_stream_sends_values_and_reports_that_the_database_is_away() -> None:
    seen = asyncio.Semaphore(0)
    answers: list[dict[str, str] | Exception] = [
        {"a": "1"}, {"a": "1"}, DatabaseUnavailableError("no connection"), {"a": "2"},
    ]  # fmt: skip

    async def read(_: Database) -> dict[str, object]:
        seen.release()
        if not answers:
            await asyncio.Event().wait()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"figures": answer}

    live = Live(None, read, 0.0)  # type: ignore[arg-type]
    received: list[dict[str, object]] = []
    async with live.listen() as fast, live.listen() as slow:
        assert live.listeners == 2
        while len(received) < 3:
            received.append(json.loads(await fast.get()))
        # A slow listener has the latest values, and nothing piles up.
        assert json.loads(slow.get_nowait()) == received[-1]
        assert slow.empty()
    assert [it["is_away"] for it in received] == [False, True, False]
    assert [it["revision"] for it in received] == [1, 2, 3]
    assert received[1]["reason"] == "no connection"
    # Without listeners nothing is read.
    assert live.listeners == 0
    assert live._task is None


async def test_a_stream_ends_with_the_server() -> None:
    async def read(_: Database) -> dict[str, object]:
        return {}

    live = Live(None, read, 0.0)  # type: ignore[arg-type]
    stream = live.stream()
    assert await anext(stream) == "retry: 3000\n\n"
    assert (await anext(stream)).startswith("data: ")
    live.close()
    rest = [text async for text in stream]
    assert len(rest) <= 1


async def until_listening(connection: Connection, *, but: int | None = None) -> int | None:
    """Wait until a session of the dashboard listens, another one than `but`; give its pid."""
    found: list[int] = []

    async def is_there() -> bool:
        found[:] = [
            row["pid"]
            for row in await connection.fetch(
                "select pid from pg_stat_activity "
                "where datname = current_database() and application_name = $1",
                "notifyq dashboard notification",
            )
        ]
        return len(found) == 1 and found[0] != but

    await until(is_there, "one session listens", 20)
    return found[0]


async def test_a_notification_updates_all_pages(database: str, connection: Connection) -> None:
    app = create_app(database, open_to_all=True, interval=60)
    live = app.state.dashboard.live
    async with (
        app.router.lifespan_context(app),
        asyncio.timeout(30),
        live.listen() as one,
        live.listen() as other,
    ):
        for viewer in (one, other):
            await receive(viewer, waiting="0")
        listener = await until_listening(connection)
        await publish(connection, 1)
        for viewer in (one, other):
            await receive(viewer, waiting="1")
        # A lost session is replaced without an error.
        await connection.execute("select pg_terminate_backend($1)", listener)
        await until_listening(connection, but=listener)
        await make_dead(connection, 1)
        for viewer in (one, other):
            await receive(viewer, dead="1")

    async def are_gone() -> bool:
        left = "select count(*) from pg_stat_activity where application_name ^@ 'notifyq dashboard'"
        return not await connection.fetchval(f"{left} and datname = current_database()")

    await until(are_gone, "its sessions are gone")


async def receive(viewer: asyncio.Queue[str], **figures: str) -> None:
    """Wait until a viewer receives these values."""
    while True:
        values = json.loads(await viewer.get())["figures"]
        if {name: values[name] for name in figures} == figures:
            return


async def test_many_notifications_cause_few_reads(database: str, connection: Connection) -> None:
    reads = 0

    async def read(_: Database) -> dict[str, object]:
        nonlocal reads
        reads += 1
        return {}

    async def has_read() -> bool:
        await publish(connection, 1)
        return reads > 2  # the second is that after it has begun to listen

    async with Database(database) as ours:
        live = Live(ours, read, 60, listens=True)
        began = time.monotonic()
        async with live.listen():
            for _ in range(300):
                await publish(connection, 1)
            await until(has_read, "a notification has woken it", 40)
        took = time.monotonic() - began
        await live.end()
    assert reads <= 1 + took / 0.4


async def test_without_notifications_values_are_read_regularly(
    database: str, connection: Connection
) -> None:
    app = create_app(
        database, open_to_all=True, interval=0.2, listen_dsn="postgresql://127.0.0.1:1/none"
    )
    live = app.state.dashboard.live
    async with app.router.lifespan_context(app), asyncio.timeout(30), live.listen() as viewer:
        await receive(viewer, waiting="0")
        await publish(connection, 1)
        await receive(viewer, waiting="1")


def test_each_route_is_unique() -> None:
    app = create_app("postgresql://127.0.0.1/none", open_to_all=True)
    routes = [it for it in app.routes if isinstance(it, Route)]
    names = [it.name for it in routes]
    assert len(names) == len(set(names))
    positions = [(it.path, method) for it in routes for method in it.methods or ()]
    assert len(positions) == len(set(positions))
    sections = [it for it in app.state.dashboard.sections if it.title]
    keys = [it.key for it in sections]
    assert len(keys) == len(set(keys))
    # What the navigation leads to is there.
    assert {it.name for it in sections} <= set(names)
