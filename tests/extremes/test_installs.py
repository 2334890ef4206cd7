"""An App, a worker and the commands with an install of another name, where there is no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.programs import Notifyq, Result, Running
from cli.test_refusals import with_login
from extremes.reading import read_metrics, read_pages, run_commands
from notifyq import (
    AccessDeniedError,
    App,
    NotifyqError,
    Reject,
    Steps,
    Transaction,
    emit,
    progress,
    schema,
    within,
)
from notifyq.database.pool import connect
from notifyq.operations.doctor import Level, examine
from support.database import Connection, session, until
from support.running import working

NAME = "zebra"
NOTE = "insert into messages.note values ($1)"


class Zebra(Notifyq):
    """The command line with the variable that chooses the install."""

    def __call__(self, *args: Any, **options: Any) -> Result:
        return super().__call__(*args, **options, env={"NOTIFYQ_SCHEMA": NAME})


@pytest.fixture
async def dsn(empty_database: str) -> AsyncIterator[str]:
    """Give a database with this install alone: what is not renamed fails."""
    connection = await connect(empty_database, schema=NAME)
    await schema.install(connection)
    yield empty_database
    await connection.close(timeout=10)


@pytest.fixture
async def ours(dsn: str) -> AsyncIterator[Connection]:
    """Give a session that sends our statements to this install."""
    connection = await connect(dsn, schema=NAME)
    yield connection
    await connection.close(timeout=10)


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    app = App(dsn, schema=NAME, retry_for=30)
    yield app
    await app.close()


@asynccontextmanager
async def noting(dsn: str) -> AsyncIterator[Callable[[], Awaitable[set[str]]]]:
    """Make a table of the user in the schema that is named as the default install is."""
    async with session(dsn) as own:
        await own.execute("create schema messages; create table messages.note (text text)")

        async def notes() -> set[str]:
            return {row["text"] for row in await own.fetch("select text from messages.note")}

        yield notes


async def test_handlers_and_their_own_statements(app: App, dsn: str) -> None:
    seen: list[Any] = []
    started = asyncio.Event()

    @app.handler("plain")
    async def plain(payload: Any) -> Any:
        await progress(0.5, "half")
        await emit("a chunk")
        return payload

    @app.handler("together", batch=2)
    async def together(payloads: list[Any]) -> None:
        seen.extend(payloads)

    @app.handler("transactional", transactional=True)
    async def transactional(payload: Any, connection: Transaction) -> None:
        await connection.execute(NOTE, payload)
        await app.publish("plain", "from a transaction", connection=connection)

    @app.handler("endless")
    async def endless(_: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    async with noting(dsn) as notes, working(app):
        handle = await app.publish("plain", {"n": 1})
        assert await handle.result(timeout=20) == {"n": 1}
        assert [it.value async for it in handle.output()] == ["a chunk"]
        await app.publish_many("together", ["a", "b"])
        await (await app.publish("transactional", "x")).result(timeout=20)
        assert await notes() == {"x"}
        stuck = await app.publish("endless", None)
        async with asyncio.timeout(20):
            await started.wait()
        await app.archive.cancel(stuck, running=True)
        await until(lambda: {"a", "b"} <= set(seen), "the batch is handled", 20)
        async with session(dsn) as own:
            names = await own.fetch(
                "select distinct split_part(application_name, ' ', 1) from pg_stat_activity "
                "where datname = current_database() and application_name like 'notifyq%'"
            )
        assert [row[0] for row in names] == [f"notifyq_{NAME}"]


async def test_durable_handlers(app: App, dsn: str) -> None:
    @app.handler("durable", max_attempts=2)
    async def durable(payload: Any, steps: Steps) -> Any:
        first = await steps.run("first", lambda: payload)
        async with steps.transaction("second") as tx:
            await tx.execute(NOTE, "step")
        return [first, await steps.wait_for("third", signal="go")]

    async with noting(dsn) as notes, working(app):
        waiting = await app.publish("durable", 1)

        async def is_parked() -> bool:
            return bool(await app.archive.parked())

        await until(is_parked, "it waits for the signal", 20)
        await app.signal("go", "now")
        assert await waiting.result(timeout=20) == [1, "now"]
        assert await notes() == {"step"}


async def test_subscribers_and_their_own_statements(app: App, dsn: str) -> None:
    seen: list[Any] = []

    @app.subscriber("orders", "mailer", members=2)
    async def mailer(order: Any) -> None:
        seen.append(order)

    @app.subscriber("orders", "accounts", transactional=True)
    async def accounts(order: Any, connection: Transaction) -> None:
        await connection.execute(NOTE, order)
        if order == "bad":
            raise Reject("it is bad")

    await app.create()
    async with noting(dsn) as notes, working(app):
        await app.publish("orders", "event")
        await app.publish("orders", "bad")

        async def is_done() -> bool:
            dead = {it.queue for it in await app.archive.dead()}
            return set(seen) == {"event", "bad"} and await notes() == {"event"} and bool(dead)

        await until(is_done, "both subscribers are done", 20)


async def test_streams_are_read_and_exported(app: App, ours: Connection, tmp_path: Path) -> None:
    await app.streams.create("orders")
    await app.streams.subscribe("orders", "reader")
    for number in range(3):
        await app.publish("orders", number)
    await ours.execute("select messages.tick('orders')")
    subscription = app.subscription("orders", "reader")
    async with subscription.transaction() as (connection, batch):
        assert batch is not None
        assert await connection.fetchval("select 1") == 1
        assert [event.message async for event in batch] == ["0", "1", "2"]
        event = batch.events[0]
        assert await batch.fail(event, "no")
    assert [it.details for it in await app.archive.dead()] == ["no"]
    exported = await app.archive.export(tmp_path / "all.jsonl")
    assert exported.rows == 1


async def test_publishing_on_connections_of_the_caller(app: App, dsn: str) -> None:
    async with session(dsn) as own:
        await app.publish("default", 1, connection=own)
        await within.publish(own, "default", 2, schema=NAME)
    with psycopg.connect(dsn) as blocking:
        within.publish_many(blocking, "default", [3, 4], schema=NAME)
    # Never into another install: here there is none.
    with psycopg.connect(dsn) as blocking, pytest.raises(NotifyqError, match="messages"):
        within.publish(blocking, "default", 5)
    async with app.database.transaction() as calls:
        await app.publish("default", 6, connection=calls.connection)
    assert [it.payload() for it in await app.archive.live("default")] == [1, 2, 3, 4, 6]


async def test_every_command_page_and_metric_reads_it(
    app: App, dsn: str, ours: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mail", "nightly"):
        await app.admin.create_queue(name)
    await ours.execute("select messages.schedule('nightly', '@daily', 'mail')")
    id_ = int(await app.publish("mail", {"a": 1}))
    dead = int(await app.publish("mail", {"a": 2}))
    await app.archive.cancel(dead)
    monkeypatch.setenv("NOTIFYQ_SCHEMA", NAME)
    broken = await read_pages(dsn, ours, [id_, dead])
    broken += await asyncio.to_thread(read_metrics, dsn)
    with Zebra(dsn) as notifyq:
        broken += await asyncio.to_thread(run_commands, notifyq, tmp_path, [id_, dead])
    assert not broken, "\n".join(broken)


async def test_the_doctor_finds_nothing_wrong(
    dsn: str, ours: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_SCHEMA", NAME)
    found = {name: finding async for name, finding in examine(dsn)}
    assert [name for name, it in found.items() if it.level is Level.FAIL] == []
    assert found["functions"].level is Level.OK
    assert found["owner"].found == f"the owner is notifyq_{NAME}_owner, who cannot log in"
    await ours.execute("drop function messages.reap(integer)")
    found = {name: finding async for name, finding in examine(dsn, only=["functions"])}
    assert found["functions"].found == "missing: reap"
    assert found["functions"].advice == (
        f"run `notifyq init` as the owner of schemas {NAME} and notifyq_{NAME}"
    )


async def test_commands_change_it(dsn: str, ours: Connection, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from notifyq import App\n"
        f"app = App(schema={NAME!r})\n"
        "@app.handler('mail')\n"
        "async def mail(payload): return payload\n"
    )
    with Notifyq(dsn) as notifyq:
        notifyq.good("--schema", NAME, "queues", "create", "mail")
        printed = notifyq.good("publish", "mail", '{"a": 1}', "--schema", NAME).out
        options = ("--metrics-port", "0", "--schema", NAME)
        with Running(dsn, "worker", "shop:app", *options, cwd=tmp_path):
            await until(
                lambda: ours.fetchval("select count(*) from messages.message_archive"), "handled"
            )
        shown = notifyq.good("show", printed.strip(), "--json", f"--schema={NAME}").data
        assert shown[0]["status"] == "success"
        assert "version 1 already installed" in notifyq("init", "--schema", NAME).out
        assert f"create schema {NAME};" in notifyq.good("init", "--sql", "--schema", NAME).out
        both = notifyq.refused("worker", "shop:app", "--schema", "mail", folder=tmp_path)
        assert both == (
            f"notifyq: --schema is 'mail', and shop:app has the schema {NAME!r}: leave one out\n"
        )


async def test_what_knows_the_default_install_only_is_refused(dsn: str) -> None:
    with Notifyq(dsn) as notifyq:
        for command in ("demo", "bench", "chaos"):
            refused = notifyq.refused(command, "--schema", NAME)
            assert refused.startswith(f"notifyq: `notifyq {command}` can use the schema messages")
        assert "reserved" in notifyq.refused("ls", "--schema", "notifyq")
        assert "missing" in notifyq.refused("ls", "--schema", "missing")


async def test_a_role_that_lacks_a_right_gets_the_name_of_the_role_of_this_install(
    dsn: str, ours: Connection
) -> None:
    await ours.execute("create role zebra_reader login password 'x' in role notifyq_reader")
    try:
        app = App(with_login(dsn, "zebra_reader:x"), schema=NAME)
        assert await app.archive.live("default") == []
        with pytest.raises(AccessDeniedError, match=f"ask the owner for the role notifyq_{NAME}_"):
            await app.admin.pause_queue("default")
        await app.close()
    finally:
        await ours.execute("drop role zebra_reader")


async def test_a_login_is_made_for_one_install(dsn: str, ours: Connection) -> None:
    given = {"NOTIFYQ_SCHEMA": NAME, "NOTIFYQ_READER_PASSWORD": "secret"}
    create = ("roles", "create", "reader", "--prefix", "zoo")
    try:
        with Notifyq(dsn) as notifyq:
            printed = notifyq.good(*create, env=given)
            assert printed.out == f"created zoo_reader, a member of notifyq_{NAME}_reader\n"
            listed = notifyq.good("roles", "--json", env={"NOTIFYQ_SCHEMA": NAME}).data
            assert {"name": "zoo_reader", "duties": ["reader"], "superuser": False} in listed
            # One of another install gets no right in this one.
            await ours.execute("create role notifyq_lion_reader role zoo_reader")
            assert "may do more than a reader" in notifyq.refused(*create, env=given)
    finally:
        await ours.execute("drop role if exists notifyq_lion_reader, zoo_reader")
