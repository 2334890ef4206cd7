"""A schema that is replaced below running workers: they go on if it serves them, else they stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from notifyq import App, schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import SchemaError, SchemaTooNewError
from notifyq.telemetry import MaintenanceDone, MessageFinished
from support.database import ROOT, publish, session, until
from support.running import Events, working
from upgrade.programs import APP, running
from upgrade.second import NEXT, write_second

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.database import Connection

CLAIM = "messages.claim(text[], integer, interval, text, jsonpath, boolean, integer[], jsonpath[])"
GONE = (
    CLAIM.replace(")", ", text)"),
    "messages.finish_many(bigint[], bigint[], messages.message_status[], text[], jsonb[])",
)
REFUSED = (
    f"version {NEXT} of the schema is installed, which works with packages for schema {NEXT} or "
    f"later; this one is for {SCHEMA_VERSION}: upgrade the package"
)


def replace(root: Path, *, serves: int, drops: str = "") -> None:
    """Make the files of the next version; its contract step may drop a function."""
    write_second(root, serves=serves)
    if drops:
        (root / "init/98z_contract.sql").write_text(f"drop function {drops};\n")


async def upgrade(connection: Connection, root: Path) -> None:
    assert (await schema.upgrade(connection, root)).version == NEXT


async def count(connection: Connection) -> tuple[int, int]:
    row = await connection.fetchrow(
        "select (select count(*) from messages.message), "
        "(select count(*) from messages.message_archive where status = 'success')"
    )
    assert row
    return row[0], row[1]


@pytest.fixture
async def replaced(empty_database: str) -> AsyncIterator[Connection]:
    """Give the owner's session in a database whose schema the test replaces."""
    async with session(empty_database) as connection:
        await schema.install(connection)
        yield connection


@pytest.fixture
async def app(empty_database: str, replaced: Connection) -> AsyncIterator[App]:
    """Give an App on that database."""
    assert replaced
    app = App(empty_database, retry_for=30)
    yield app
    await app.close()


async def test_a_worker_goes_on_with_a_later_schema_that_serves_it(
    replaced: Connection, root: Path, app: App
) -> None:
    app.handler("q")(lambda: None)
    events = Events()
    await app.create_queues()
    replace(root, serves=SCHEMA_VERSION)
    async with working(app, events, maintenance=0.05):
        await publish(replaced, 5, "q")
        await upgrade(replaced, root)
        before = len(events.of(MaintenanceDone))
        await publish(replaced, 5, "q")
        await events.wait(MessageFinished, 10)
        await events.wait(MaintenanceDone, before + 2)
    # And another one starts: this package was rolled back.
    async with working(app, events, maintenance=0.05):
        await publish(replaced, 1, "q")
        await events.wait(MessageFinished, 11)
    assert await count(replaced) == (0, 11)


async def test_a_worker_stops_when_the_schema_serves_it_no_more(
    replaced: Connection, root: Path, app: App
) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    @app.handler("q")
    async def handle(_: object) -> None:
        begun.set()
        await free.wait()

    await app.create_queues()
    await publish(replaced, 3, "q")
    replace(root, serves=NEXT)
    worker = app.worker(telemetry=Events(), concurrency=1, maintenance=0.05, poll=60)
    work = asyncio.create_task(app.work(worker))
    await begun.wait()
    await upgrade(replaced, root)

    async def has_stopped() -> bool:
        return bool(worker._stops)

    await until(has_stopped, "the worker stops")
    # The handler that runs comes to its end, and nothing else is begun.
    free.set()
    with pytest.raises(SchemaTooNewError, match=f"^{REFUSED}$"):
        await work
    assert await count(replaced) == (2, 1)
    assert not await replaced.fetch("select from messages.message where state <> 'waiting'")
    with pytest.raises(SchemaTooNewError, match=f"^{REFUSED}$"):
        await app.work()


@pytest.mark.parametrize("gone", GONE)
async def test_a_call_that_the_schema_does_not_know_any_more_ends_the_worker_and_loses_nothing(
    replaced: Connection, root: Path, app: App, gone: str
) -> None:
    begun, free = asyncio.Event(), asyncio.Event()

    @app.handler("q")
    async def handle(_: object) -> None:
        begun.set()
        await free.wait()

    await app.create_queues()
    await publish(replaced, 1, "q")
    replace(root, serves=NEXT, drops=gone)
    # Without maintenance nothing else reports it.
    worker = app.worker(telemetry=Events(), maintenance=60, poll=60, grace=5)
    work = asyncio.create_task(app.work(worker))
    await begun.wait()
    await upgrade(replaced, root)
    await publish(replaced, 1, "q")
    free.set()
    with pytest.raises(SchemaTooNewError, match=f"^{REFUSED}$"):
        async with asyncio.timeout(20):
            await work
    assert sum(await count(replaced)) == 2


async def test_an_error_names_what_is_missing_if_the_versions_fit(
    replaced: Connection, app: App
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    await replaced.execute(f"drop function {CLAIM}")
    with pytest.raises(SchemaError, match=r"(?s)messages.claim.* does not exist.*do not fit"):
        async with asyncio.timeout(20):
            await app.work(app.worker(telemetry=Events()))


async def test_the_command_reports_the_error_in_one_line(
    replaced: Connection, empty_database: str, root: Path, app: App, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP)
    replace(root, serves=NEXT)
    with running(tmp_path, ROOT / "src", empty_database, "worker", "shop:app") as worker:
        await worker.expect(" has started")
        await upgrade(replaced, root)
        assert await worker.ended() == 1
        assert worker.output.splitlines()[-1] == f"notifyq: {REFUSED}"
        assert "Traceback" not in worker.output
