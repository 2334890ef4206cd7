"""Importing from procrastinate, pgqueuer and pgmq: which rows arrive, and which stay."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from integrations.sources import (
    enqueue,
    install_pgmq,
    install_pgqueuer,
    install_procrastinate,
    send,
)
from notifyq.database.pool import Database, connect
from notifyq.errors import AccessDeniedError, ConfigurationError
from notifyq.importing import SYSTEMS, Census, Summary, Transfer
from support.database import Connect, Connection, session, value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import procrastinate


@asynccontextmanager
async def closing(connection: Any) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await connection.close()


async def imported(
    system: str,
    source: str,
    destination: str,
    *,
    table: str | None = None,
    create: bool = True,
    **options: Any,
) -> Summary:
    """Import everything."""
    reader = await connect(source)
    async with closing(reader), Database(destination) as database:
        transfer = Transfer(reader, database, await SYSTEMS[system](reader, table), **options)
        census = await transfer.census()
        if create:
            async with session(destination) as connection:
                for name in await transfer.missing(census):
                    await value(connection, "create_queue", name=name)
        return await transfer.run(census)


async def live(connection: Connection) -> list[asyncpg.Record]:
    return await connection.fetch("select * from messages.message order by id")


ENDED = "succeeded", "failed", "cancelled", "aborting", "aborted"
"""The statuses of procrastinate beside `todo` and `doing`, in the order of its type."""


async def defer(app: procrastinate.App, task: str, *, queue: str = "mail", **options: Any) -> None:
    args = options.pop("args", {})
    await app.configure_task(task, queue=queue, **options).defer_async(**args)


async def test_procrastinate_from_another_database(
    database: str, empty_database: str, connection: Connection
) -> None:
    app = await install_procrastinate(empty_database)
    due = datetime(2050, 1, 1, 12, tzinfo=UTC)
    async with app.open_async():
        await defer(app, "send", args={"to": "you", "n": 1})
        await defer(
            app,
            "send",
            args={"n": 2},
            priority=5,
            lock="customer-7",
            queueing_lock="once",
            schedule_at=due,
        )
        await defer(app, "sum", queue="math", args={"big": 10**40})
        await defer(app, "send", args={"n": 3})
    async with session(empty_database) as source:
        await source.execute("""
            update procrastinate_jobs set status = 'doing', attempts = 1 where id = 4;
            insert into procrastinate_jobs (queue_name, task_name, status)
            select 'mail', 'send', s
            from unnest(enum_range(null::procrastinate_job_status)) as s
            where s not in ('todo', 'doing')
        """)
    assert (await imported("procrastinate", empty_database, database)).published == 3

    first, second, third = await live(connection)
    names = "queue", "type", "message", "priority", "dedup_key", "key", "state"
    assert [first[name] for name in names] == [
        "mail", "send", {"to": "you", "n": 1}, 0, None, None, "waiting",
    ]  # fmt: skip
    assert [second[name] for name in names] == [
        "mail", "send", {"n": 2}, 5, "once", "customer-7", "scheduled",
    ]  # fmt: skip
    assert second["available_at"] == due
    assert second["headers"] == {
        "procrastinate": {
            "id": 2, "attempts": 0, "lock": "customer-7", "queueing_lock": "once",
        }
    }  # fmt: skip
    assert third["queue"] == "math"
    assert third["message"] == {"big": 10**40}
    async with session(empty_database) as source:
        left = await source.fetch("select status::text, args from procrastinate_jobs order by id")
        assert [(row["status"], row["args"]) for row in left] == [
            ("doing", {"n": 3}),
            *((status, {}) for status in ENDED),
        ]
    assert await imported("procrastinate", empty_database, database) == Summary()


async def test_pgqueuer_from_the_same_database(database: str, connection: Connection) -> None:
    await install_pgqueuer(database)
    payloads = [b'{"a": 1.50}', b"text", b"\xff\x00", None, b'"\\u0000"', b'"\xc3\xa9"']
    await enqueue(
        database,
        "fetch",
        payloads,
        priority=[0, 1, 2, 3, 4, 5],
        dedupe_key=["d", *[None] * 5],
        headers=[{"trace": "x"}, *[None] * 5],
    )
    await enqueue(database, "later", [b"1"], execute_after=timedelta(hours=1))
    # Of all statuses only `queued` waits; from 2.0 on a cancelled one holds its key for a while.
    await connection.execute("""
        insert into pgqueuer (priority, status, entrypoint, dedupe_key)
        select 0, s, 'fetch', s::text
        from unnest(enum_range(null::pgqueuer_status)) as s
        where s <> 'queued'
    """)
    async with Database(database) as own:
        reader = await connect(database)
        transfer = Transfer(reader, own, await SYSTEMS["pgqueuer"](reader, None))
        assert await transfer.census() == [
            Census(queue="fetch", waiting=6, scheduled=0, running=1),
            Census(queue="later", waiting=0, scheduled=1, running=0),
        ]
        await reader.close()
    assert (await imported("pgqueuer", database, database)).published == 7

    messages = await live(connection)
    assert [message["message"] for message in messages] == [
        {"a": 1.5},
        {"base64": "dGV4dA=="},
        {"base64": "/wA="},
        None,
        {"base64": "Ilx1MDAwMCI="},
        "é",
        1,
    ]
    assert [message["priority"] for message in messages] == [0, 1, 2, 3, 4, 5, 0]
    first, later = messages[0], messages[-1]
    assert (first["queue"], first["type"], first["dedup_key"]) == ("fetch", "fetch", "d")
    assert first["headers"]["trace"] == "x"
    assert first["headers"]["pgqueuer"].keys() == {"id", "attempts", "created"}
    assert later["state"] == "scheduled"
    assert timedelta(minutes=50) < later["available_at"] - datetime.now(UTC) < timedelta(hours=1)
    left = await connection.fetch("select status::text from pgqueuer")
    assert {row["status"] for row in left} == {
        "picked", "successful", "exception", "canceled", "deleted", "failed",
    }  # fmt: skip


async def test_pgqueuer_with_a_prefix_in_another_schema(
    database: str, connection: Connection
) -> None:
    await install_pgqueuer(database, prefix="shop_", db_schema="jobs")
    await connection.execute(
        "insert into jobs.shop_pgqueuer (priority, status, entrypoint) values (0, 'queued', 'a')"
    )
    found = await imported("pgqueuer", database, database, table="jobs.shop_pgqueuer")
    assert found.published == 1
    assert not await connection.fetchval("select count(*) from jobs.shop_pgqueuer")


async def test_pgmq_has_a_table_for_each_queue(database: str, connection: Connection) -> None:
    await install_pgmq(connection, "Orders", 'it"s', "empty")
    running = await send(connection, "Orders", {"n": 0})
    await connection.execute("select pgmq.read('Orders', 30, 1)")
    await send(connection, "Orders", {"n": 1})
    for _ in range(2):
        await connection.execute("select pgmq.read('Orders', 0, 1)")
    last = await send(connection, "Orders", {"n": 2}, headers={"x-pgmq-group": "g", "h": 1})
    await send(connection, "Orders", {"n": 3}, delay=3600)
    await send(connection, 'it"s', None)
    assert (await imported("pgmq", database, database, names={"Orders": "orders"})).published == 4

    messages = await live(connection)
    assert [(message["queue"], message["message"]) for message in messages] == [
        ("orders", {"n": 1}),
        ("orders", {"n": 2}),
        ("orders", {"n": 3}),
        ('it"s', None),
    ]
    assert [message["state"] for message in messages] == [*["waiting"] * 2, "scheduled", "waiting"]
    assert messages[0]["headers"]["pgmq"]["read_ct"] == 2
    assert messages[1]["key"] == "g"
    assert messages[1]["headers"]["h"] == 1
    assert messages[1]["headers"]["pgmq"]["msg_id"] == last
    left = await connection.fetch('select msg_id from pgmq."q_orders"')
    assert [row["msg_id"] for row in left] == [running]


async def test_only_some_queues_under_other_names(database: str, connection: Connection) -> None:
    await install_pgqueuer(database)
    for name in ("a", "b", "c"):
        await enqueue(database, name, [b"1", b"2"])
    await imported("pgqueuer", database, database, queues=["a", "b"], names={"b": "a", "c": "d"})
    assert [message["queue"] for message in await live(connection)] == ["a"] * 4
    assert await connection.fetchval("select count(*) from pgqueuer") == 2
    assert not await connection.fetchval("select count(*) from messages.queue where name = 'd'")


async def test_a_missing_queue_stops_the_import_before_it_starts(
    database: str, connection: Connection
) -> None:
    await install_pgqueuer(database)
    await enqueue(database, "default", [b"1"])
    await enqueue(database, "zebra", [b"1"])
    with pytest.raises(ConfigurationError, match=r"no queue 'zebra'.*--create-queues"):
        await imported("pgqueuer", database, database, create=False)
    assert not await live(connection)


async def test_a_copy_leaves_the_source_and_is_made_once(
    database: str, connection: Connection
) -> None:
    await install_pgqueuer(database)
    await enqueue(database, "default", [b"1", b"2"])
    assert (await imported("pgqueuer", database, database, keep=True)).published == 2
    await enqueue(database, "default", [b"3"])
    again = await imported("pgqueuer", database, database, keep=True)
    assert (again.published, again.known) == (1, 2)
    # And then the source is given up.
    last = await imported("pgqueuer", database, database)
    assert (last.published, last.known) == (0, 3)
    assert len(await live(connection)) == 3
    assert not await connection.fetchval("select count(*) from pgqueuer")


async def test_ids_reused_after_a_truncate_are_other_messages(
    database: str, connection: Connection
) -> None:
    await install_pgqueuer(database)
    for _ in range(2):
        await enqueue(database, "default", [b"1", b"2"])
        assert (await imported("pgqueuer", database, database)).published == 2
        await connection.execute("truncate pgqueuer restart identity")
    assert len(await live(connection)) == 4


async def test_rows_that_break_the_policy_of_the_queue_stay(
    database: str, connection: Connection
) -> None:
    await install_pgqueuer(database)
    await connection.execute(
        """select messages.alter_queue('default', payload_schema => '{"type": "integer"}')"""
    )
    await enqueue(database, "default", [b"1", b'"text"', b"2"])
    await value(connection, "create_queue", name="typed", payload_type="text")
    await enqueue(database, "typed", [b"5", b'"text"'])
    summary = await imported("pgqueuer", database, database)
    assert summary.published == 3
    assert [refusal.id for refusal in summary.refused] == [2, 4]
    assert "does not take this message" in summary.refused[0].reason


async def test_rows_that_cannot_be_messages_stay(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.importing.transfer._MOST", 4)
    await install_pgqueuer(database)
    large = b'"' + b"x" * 2_000_000 + b'"'
    await enqueue(database, "default", [b"1", large, b"2", large, b"3", b"4"])
    await enqueue(database, "n" * 201, [b"5"])
    summary = await imported("pgqueuer", database, database, names={"n" * 201: "default"})
    assert summary.published == 4
    assert [refusal.id for refusal in summary.refused] == [2, 4, 7]
    reasons = [refusal.reason for refusal in summary.refused]
    assert "takes 1048576" in reasons[0]
    assert reasons[2] == "type has more than 200 bytes"
    assert [message["message"] for message in await live(connection)] == [1, 2, 3, 4]
    assert await connection.fetchval("select count(*) from pgqueuer") == 3


async def test_a_key_that_is_live_merges(database: str, connection: Connection) -> None:
    await value(connection, "publish", queue="default", message=0, dedup_key="d")
    await install_pgqueuer(database)
    await enqueue(database, "default", [b"1"], dedupe_key=["d"])
    summary = await imported("pgqueuer", database, database)
    assert (summary.published, summary.merged) == (0, 1)
    assert [message["message"] for message in await live(connection)] == [0]


async def test_rows_that_a_worker_has_locked_are_left(
    database: str, connection: Connection, connect: Connect
) -> None:
    await install_pgqueuer(database)
    await enqueue(database, "default", [b"1", b"2", b"3"])
    worker = await connect()
    async with worker.transaction():
        await worker.execute("select from pgqueuer where id = 2 for update")
        assert (await imported("pgqueuer", database, database)).published == 2
    assert [message["message"] for message in await live(connection)] == [1, 3]
    assert (await imported("pgqueuer", database, database)).published == 1


async def test_the_right_to_select_is_enough_for_a_copy(
    database: str, connection: Connection
) -> None:
    await install_pgqueuer(database)
    await enqueue(database, "default", [b"1"])
    await connection.execute("grant select on pgqueuer to notifyq_reader")
    reader = await connect(database)
    await reader.execute("set role notifyq_reader")
    async with Database(database) as own:
        tables = await SYSTEMS["pgqueuer"](reader, None)
        transfer = Transfer(reader, own, tables)
        with pytest.raises(AccessDeniedError, match="select, update and delete"):
            await transfer.run(await transfer.census())
        copy = Transfer(reader, own, tables, keep=True)
        assert (await copy.run(await copy.census())).published == 1
    await reader.close()


async def test_a_missing_source_is_an_error(database: str) -> None:
    for system in SYSTEMS:
        reader = await connect(database)
        with pytest.raises(ConfigurationError, match=f"{system}.*this database"):
            await SYSTEMS[system](reader, None)
        await reader.close()


async def test_a_table_of_another_name(database: str, connection: Connection) -> None:
    await install_procrastinate(database)
    await connection.execute("""
        create schema "Old";
        alter table procrastinate_jobs set schema "Old";
        alter table procrastinate_events set schema "Old";
        set search_path = "Old", public;
        insert into "Old".procrastinate_jobs (queue_name, task_name) values ('default', 't');
    """)
    table = '"Old".procrastinate_jobs'
    assert (await imported("procrastinate", database, database, table=table)).published == 1
