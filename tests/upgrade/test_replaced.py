"""A schema that is replaced below a running worker and serves it no more: nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from notifyq import App, schema
from notifyq.database.statements import SCHEMA_VERSION
from notifyq.errors import SchemaError, SchemaTooNewError
from support.database import Connection, publish, session, until
from support.running import Events
from upgrade.second import NEXT, write_second

CLAIM = "messages.claim(text[], integer, interval, text, jsonpath, boolean, integer[], jsonpath[])"
GONE = (
    CLAIM.replace(")", ", text)"),
    "messages.finish_many(bigint[], bigint[], messages.message_status[], text[], jsonb[])",
)
REFUSED = (
    f"^version {NEXT} of the schema is installed, which works with packages for schema {NEXT} or "
    f"later; this one is for {SCHEMA_VERSION}: upgrade the package$"
)


class Held:
    """An App with a handler that waits until it is let go."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, retry_for=30)
        self.begun, self.free = asyncio.Event(), asyncio.Event()
        self.app.handler("q")(self._handle)

    async def _handle(self, _: object) -> None:
        self.begun.set()
        await self.free.wait()


@pytest.fixture
async def replaced(empty_database: str) -> AsyncIterator[Connection]:
    """Give the owner's session in a database whose schema the test replaces."""
    async with session(empty_database) as connection:
        await schema.install(connection)
        yield connection


@pytest.fixture
async def held(empty_database: str, replaced: Connection) -> AsyncIterator[Held]:
    """Give an App on that database with its queue."""
    assert replaced
    held = Held(empty_database)
    await held.app.create_queues()
    yield held
    await held.app.close()


async def upgrade(connection: Connection, root: Path, drops: str = "") -> None:
    """Upgrade to a version that serves only its own packages; it may have dropped a function."""
    write_second(root, serves=NEXT)
    if drops:
        (root / "init/98z_contract.sql").write_text(f"drop function {drops};\n")
    assert (await schema.upgrade(connection, root)).version == NEXT


async def count(connection: Connection) -> dict[str, int]:
    """Count messages by their state, or by the status in the archive."""
    rows = await connection.fetch(
        "select state::text, count(*) from messages.message group by 1 "
        "union all select status::text, count(*) from messages.message_archive group by 1"
    )
    return {row[0]: row[1] for row in rows}


async def test_a_worker_stops_when_the_schema_serves_it_no_more(
    replaced: Connection, root: Path, held: Held
) -> None:
    await publish(replaced, 3, "q")
    worker = held.app.worker(telemetry=Events(), concurrency=1, maintenance=0.05, poll=60)
    work = asyncio.create_task(held.app.work(worker))
    await held.begun.wait()
    await upgrade(replaced, root)
    await until(lambda: worker._stops, "the worker stops")
    # The handler that runs comes to its end, and nothing else is begun.
    held.free.set()
    with pytest.raises(SchemaTooNewError, match=REFUSED):
        await work
    assert await count(replaced) == {"waiting": 2, "success": 1}
    with pytest.raises(SchemaTooNewError, match=REFUSED):
        await held.app.work()


@pytest.mark.parametrize("gone", GONE)
async def test_a_call_that_the_schema_does_not_know_any_more_ends_the_worker_and_loses_nothing(
    replaced: Connection, root: Path, held: Held, gone: str
) -> None:
    await publish(replaced, 1, "q")
    # Without maintenance nothing else reports it.
    worker = held.app.worker(telemetry=Events(), maintenance=60, poll=60, grace=5)
    work = asyncio.create_task(held.app.work(worker))
    await held.begun.wait()
    await upgrade(replaced, root, gone)
    await publish(replaced, 1, "q")
    held.free.set()
    with pytest.raises(SchemaTooNewError, match=REFUSED):
        async with asyncio.timeout(20):
            await work
    found = await count(replaced)
    assert found.keys() <= {"waiting", "locked", "success"}
    assert sum(found.values()) == 2


async def test_an_error_names_what_is_missing_if_the_versions_fit(
    replaced: Connection, held: Held
) -> None:
    await replaced.execute(f"drop function {CLAIM}")
    with pytest.raises(SchemaError, match=r"(?s)messages.claim.* does not exist.*do not fit"):
        async with asyncio.timeout(20):
            await held.app.work(held.app.worker(telemetry=Events()))
