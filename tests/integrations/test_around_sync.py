"""What runs around sync handlers, and Django's connections there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
from django.db import connections

from integrations.connections import django
from notifyq import App, Event, MessageFailedError, Steps
from support.database import Connection, until
from support.running import statuses, working


@pytest.fixture
def _django(database: str) -> Iterator[None]:
    with ExitStack() as stack:
        django(database, stack)
        connections.settings["other"]["CONN_MAX_AGE"] = None
        connections.settings["other"]["CONN_HEALTH_CHECKS"] = False
        yield


@pytest.mark.usefixtures("_django")
async def test_handlers_go_on_after_the_server_has_ended_the_connections_of_django(
    app: App, connection: Connection
) -> None:
    @app.handler("q", max_attempts=2, backoff=0)
    def query(number: int) -> int:
        with connections["other"].cursor() as cursor:
            cursor.execute("select pg_backend_pid()")
            pid = int(cursor.fetchone()[0])
        if number == 5:
            connections["other"].close()  # only its thread can
        return pid

    async with working(app, concurrency=1):
        pid = await (await query.publish(0)).result(timeout=30)
        assert await (await query.publish(1)).result(timeout=30) == pid
        assert await connection.fetchval("select pg_terminate_backend($1, 5000)", pid)
        for number in range(2, 6):
            assert await (await query.publish(number)).result(timeout=30) != pid
    assert await statuses(connection, "q") == {"success": 6}


async def test_context_managers_run_around_each_sync_function(
    app: App,
) -> None:
    seen: list[str] = []

    @app.around_sync
    @contextmanager
    def outer() -> Iterator[None]:
        seen.append("outer")
        yield
        seen.append("outer ends")

    @app.around_sync
    @contextmanager
    def inner() -> Iterator[None]:
        seen.append("inner")
        yield
        seen.append("inner ends")

    @app.handler("sync")
    def sync(payload: Any) -> None:
        seen.append("sync")

    @app.handler("async")
    async def in_loop(payload: Any) -> None:
        seen.append("async")

    @app.handler("steps", max_attempts=2)
    async def with_steps(payload: Any, steps: Steps) -> None:
        await steps.run("one", seen.append, "step")

    @app.subscriber("news", "reader")
    def read(event: Event) -> None:
        seen.append("event")

    def inside(what: str) -> list[str]:
        return ["outer", "inner", what, "inner ends", "outer ends"]

    async with working(app):
        await (await sync.publish(1)).result(timeout=30)
        await (await in_loop.publish(1)).result(timeout=30)
        await (await with_steps.publish(1)).result(timeout=30)
        assert seen == [*inside("sync"), "async", *inside("step")]
        seen.clear()
        await app.publish("news", 1)
        await until(lambda: seen == inside("event"), "the event is handled", 30)


async def test_an_error_of_a_context_manager_is_one_of_the_handler(
    app: App, connection: Connection
) -> None:
    @app.around_sync
    def broken() -> nullcontext[None]:
        raise RuntimeError("no session")

    @app.handler("sync", max_attempts=1)
    def sync(payload: Any) -> None: ...

    async with working(app):
        with pytest.raises(MessageFailedError, match="no session"):
            await (await sync.publish(1)).result(timeout=30)
