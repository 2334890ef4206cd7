"""Monitor: what metrics, dashboard and doctor read, at a cost that does not grow."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from notifyq.models.message import Status
from notifyq.operations import monitor
from support.database import (
    Connect,
    Connection,
    claim_one,
    expire,
    lock_of,
    one_row,
    publish,
    rows,
    until,
    until_blocked,
    until_equal,
    value,
)


async def backlog(connection: Connection, **arguments: object) -> dict[str, asyncpg.Record]:
    return {row["queue"]: row for row in await rows(connection, "backlog", **arguments)}


async def archive(
    connection: Connection, at: datetime, *, status: str = "success", quantity: int = 1
) -> None:
    """Put messages into the archive that waited 2 s and ran 3 s, and ended at a given time."""
    await connection.execute(
        """
        insert into messages.message_archive (
          id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts,
          status, queue, message, headers
        )
        select nextval('messages.message_id_seq'), $1::timestamptz - interval '5 s',
          $1::timestamptz - interval '5 s', $1::timestamptz - interval '3 s', $1, 1, 0, 1,
          $2::text::messages.message_status, 'default', '1', '{}'
        from generate_series(1, $3::integer)
        """,
        at,
        status,
        quantity,
    )


async def test_a_backlog_is_counted(connection: Connection) -> None:
    await value(connection, "create_queue", name="busy")
    ids = await publish(connection, 5, "busy")
    await value(connection, "publish", queue="busy", message=1, delay=timedelta(hours=1))
    await claim_one(connection)
    await claim_one(connection)
    await expire(connection, ids[0])
    await value(connection, "pause_queue", name="busy")
    found = await backlog(connection)
    assert list(found) == ["busy", "default"]
    busy = found["busy"]
    names = ("paused", "waiting", "scheduled", "locked", "expired", "dead", "is_exact")
    assert [busy[name] for name in names] == [True, 3, 1, 2, 1, 0, True]
    assert busy["oldest_waiting_at"] == await connection.fetchval(
        "select available_at from messages.message where id = $1", ids[2]
    )
    assert busy["oldest_expired_at"] < datetime.now(UTC) < busy["next_due_at"]
    empty = found["default"]
    assert [empty[name] for name in names] == [False, 0, 0, 0, 0, 0, True]
    assert list(await backlog(connection, queue="busy")) == ["busy"]


async def test_parked_messages_are_counted_apart(connection: Connection) -> None:
    await publish(connection, 3)
    for number in range(2):
        lock = lock_of((await rows(connection, "claim", quantity=1))[0])
        await rows(connection, "await_signal", **lock, name="wait", signal=f"s{number}")
    row = (await backlog(connection))["default"]
    assert (row["waiting"], row["scheduled"], row["parked"]) == (1, 0, 2)
    await value(connection, "signal", name="s1")
    row = (await backlog(connection))["default"]
    assert (row["waiting"], row["scheduled"], row["parked"]) == (2, 0, 1)


async def test_a_queue_without_a_worker_is_unserved_when_messages_wait_for_a_minute(
    connection: Connection,
) -> None:
    async def is_unserved() -> bool:
        found: bool = (await backlog(connection))["default"]["is_unserved"]
        return found

    assert not await is_unserved()
    await publish(connection, 2)
    assert not await is_unserved()
    await connection.execute("update messages.message set available_at = now() - interval '61 s'")
    assert await is_unserved()
    await connection.execute("select notifyq.worker_heartbeat('w', queues => '{other}')")
    assert await is_unserved()
    await connection.execute("select notifyq.worker_heartbeat('w', queues => '{other,default}')")
    assert not await is_unserved()
    await connection.execute("update notifyq.worker set seen_at = now() - interval '31 s'")
    assert await is_unserved()
    await value(connection, "pause_queue", name="default")
    assert not await is_unserved()
    await value(connection, "resume_queue", name="default")
    # A client that calls the functions itself reports nothing, but has a message locked.
    await claim_one(connection)
    assert not await is_unserved()


async def test_a_starving_message_of_low_priority_is_the_oldest(connection: Connection) -> None:
    [old] = await publish(connection, 1)
    await connection.execute(
        "update messages.message set priority = -3, available_at = now() - interval '1 day'"
    )
    await publish(connection, 3)
    found = (await backlog(connection))["default"]
    assert found["oldest_waiting_at"] == await connection.fetchval(
        "select available_at from messages.message where id = $1", old
    )


async def test_dead_messages_of_a_day_are_counted_until_they_are_redriven(
    connection: Connection,
) -> None:
    now = datetime.now(UTC)
    await archive(connection, now - timedelta(hours=1), status="failed", quantity=3)
    await archive(connection, now - timedelta(hours=30), status="failed")
    await archive(connection, now)
    assert (await backlog(connection))["default"]["dead"] == 3
    assert (await backlog(connection))["default"]["dead_recently"] == 0
    await archive(connection, now, status="failed")
    assert (await backlog(connection))["default"]["dead_recently"] == 1
    await connection.execute("select messages.redrive(quantity => 2)")
    # The latest are taken last, and the one of the day before counts no more.
    found = (await backlog(connection))["default"]
    assert (found["dead"], found["dead_recently"]) == (3, 1)


async def test_a_number_beyond_the_limit_is_estimated_and_marked(connection: Connection) -> None:
    await value(connection, "create_queue", name="busy")
    await publish(connection, 3000)
    await publish(connection, 1000, "busy")
    for analyzed in (False, True):
        if analyzed:
            await connection.execute("vacuum analyze messages.message")
        found = await backlog(connection, most=500)
        for queue, counted in (("default", 3000), ("busy", 1000)):
            assert not found[queue]["is_exact"]
            least, most = (0.9 * counted, 1.1 * counted) if analyzed else (500, 1e9)
            assert least <= found[queue]["waiting"] <= most
    with pytest.raises(asyncpg.PostgresError, match="quantity"):
        await backlog(connection, most=0)


async def test_throughput_by_status_and_step(connection: Connection) -> None:
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=10)
    await archive(connection, begin + timedelta(seconds=5), quantity=3)
    await archive(connection, begin + timedelta(seconds=6), status="failed")
    await archive(connection, begin + timedelta(minutes=3), quantity=2)
    found = await monitor.throughput(
        connection, since=begin, until=begin + timedelta(minutes=9), step=timedelta(minutes=1)
    )
    assert found.read_from_at is None
    assert [(it.bucket_at - begin, it.status, it.finished) for it in found.points] == [
        (timedelta(0), None, 4),
        (timedelta(0), Status.FAILED, 1),
        (timedelta(0), Status.SUCCESS, 3),
        (timedelta(minutes=3), None, 2),
        (timedelta(minutes=3), Status.SUCCESS, 2),
    ]
    times = {(it.wait_p50, it.wait_p99, it.run_p50, it.run_p95) for it in found.points}
    assert times == {(timedelta(seconds=2),) * 2 + (timedelta(seconds=3),) * 2}
    assert {(it.queue, it.source) for it in found.points} == {(None, "archive")}
    by_queue = await monitor.throughput(connection, queue="default", by_queue=True)
    assert {it.queue for it in by_queue.points} == {"default"}
    assert sum(it.finished for it in by_queue.points if it.status is None) == 6
    assert (await monitor.throughput(connection, queue="other")).points == ()


async def test_a_message_that_was_never_claimed_has_no_times(connection: Connection) -> None:
    [cancelled] = await publish(connection, 1)
    assert await value(connection, "cancel", id=cancelled)
    found = await monitor.throughput(connection)
    assert {(it.finished, it.wait_p50, it.run_p99) for it in found.points} == {(1, None, None)}


async def test_throughput_reports_from_when_on_it_read(connection: Connection) -> None:
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    for minute in range(50):
        await archive(connection, begin + timedelta(minutes=minute), quantity=10)
    whole = await monitor.throughput(connection, since=begin, step=timedelta(minutes=1))
    assert sum(it.finished for it in whole.points if it.status is None) == 500
    part = await monitor.throughput(connection, since=begin, step=timedelta(minutes=1), most=100)
    assert part.read_from_at is not None
    assert part.read_from_at >= begin + timedelta(minutes=40)
    counted = [it.finished for it in part.points if it.status is None]
    assert counted
    assert set(counted) == {10}
    assert min(it.bucket_at for it in part.points) >= part.read_from_at


async def test_throughput_refuses_what_makes_no_chart(connection: Connection) -> None:
    for arguments in (
        {"since": datetime(2026, 1, 2, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)},
        {"step": timedelta(0)},
        {"step": timedelta(seconds=1), "since": datetime(2026, 1, 1, tzinfo=UTC)},
        {"most": 0},
    ):
        with pytest.raises(asyncpg.PostgresError) as error:
            await rows(connection, "throughput", **arguments)
        assert error.value.sqlstate == "NQ003"


async def test_workers_report_themselves(connection: Connection, connect: Connect) -> None:
    session = await connect(server_settings={"application_name": "notifyq worker"})
    await publish(connection, 3)
    await session.execute(
        "select notifyq.worker_heartbeat('one', queues => '{default}', concurrency => 4, host "
        "=> 'h', "
        "pid => 7, version => '1.2')"
    )

    async def states() -> dict[str, str]:
        return {it.name: it.state for it in await monitor.workers(connection)}

    assert await states() == {"one": "idle"}
    held = await rows(connection, "claim", quantity=2, worker="one")
    await rows(connection, "claim", worker="psql")
    assert await states() == {"one": "working", "psql": "unknown"}
    one, psql = await monitor.workers(connection, most=1)
    assert (one.host, one.pid, one.version, one.concurrency) == ("h", 7, "1.2", 4)
    assert (one.queues, one.streams, one.held, one.expired) == (("default",), (), 2, 0)
    assert (one.session_pid, one.is_connected) == (session.get_server_pid(), True)
    assert [(it.id, it.queue, it.attempts) for it in one.messages] == [
        (held[0]["id"], "default", 1)
    ]
    assert (psql.held, psql.is_connected, psql.seen_at) == (1, None, None)
    await session.execute("select notifyq.worker_heartbeat('one', is_stopping => true)")
    assert (await states())["one"] == "stopping"
    await session.execute(
        "select notifyq.worker_heartbeat('one', is_stopping => true, blocked_for => '2 s')"
    )
    [one] = [it for it in await monitor.workers(connection) if it.name == "one"]
    assert one.state == "blocked"
    assert one.blocked_at is not None
    assert one.seen_at is not None
    assert one.seen_at - one.blocked_at >= timedelta(seconds=2)
    await connection.execute("update notifyq.worker set seen_at = now() - interval '1 minute'")
    assert (await states())["one"] == "unresponsive"
    await session.close()
    await connection.fetchval("select pg_stat_clear_snapshot()")
    await gone(connection, one.session_pid)
    assert (await states())["one"] == "gone"
    assert await value(connection, "notifyq.remove_worker", worker="one")
    assert await states() == {"one": "unknown", "psql": "unknown"}


async def gone(connection: Connection, pid: int | None) -> None:
    await until_equal(
        lambda: connection.fetchval(
            "select exists (select from pg_stat_activity where pid = $1)", pid
        ),
        False,
        f"session {pid} is gone",
    )


async def test_a_worker_without_heartbeats_for_an_hour_is_forgotten(connection: Connection) -> None:
    for name in ("old", "new"):
        await connection.execute("select notifyq.worker_heartbeat($1)", name)
    await connection.execute(
        "update notifyq.worker set seen_at = now() - interval '2 hours' where name = 'old'"
    )
    assert await connection.fetchval("select notifyq.forget_workers(10)") == 1
    assert [it.name for it in await monitor.workers(connection)] == ["new"]


async def test_a_worker_may_not_write_long_texts(connection: Connection) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("select notifyq.worker_heartbeat(repeat('x', 501))")


async def test_a_heartbeat_is_a_hot_update(connection: Connection) -> None:
    for _ in range(5):
        await connection.execute("select notifyq.worker_heartbeat('one')")
    await connection.execute("select pg_stat_force_next_flush()")
    row = await one_row(
        connection,
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables "
        "where relid = 'notifyq.worker'::regclass",
    )
    assert row["n_tup_upd"] == row["n_tup_hot_upd"] >= 4


async def test_activity_reports_snapshot_holders_and_lock_waits(
    connection: Connection, connect: Connect
) -> None:
    holder, waiter = await connect(), await connect()
    await holder.execute("begin isolation level repeatable read; select 1")
    await holder.execute("lock table messages.queue in access exclusive mode")
    async with asyncio.timeout(30):
        waiting = waiter.execute("select count(*) from messages.queue")
        task = asyncio.create_task(waiting)
        await until_blocked(connection, waiter)
        held = {it.pid: it for it in await monitor.holders(connection)}
        mine = held[holder.get_server_pid()]
        assert (mine.cause, mine.state) == ("session", "idle in transaction")
        assert mine.advice == f"select pg_terminate_backend({mine.pid})"
        assert "lock table" in (mine.query or "")
        seen = {it.pid: it for it in await monitor.activity(connection)}
        assert seen[holder.get_server_pid()].cause == "idle"
        blocked = seen[waiter.get_server_pid()]
        assert blocked.cause == "lock"
        assert blocked.blocked_by == (holder.get_server_pid(),)
        assert blocked.waits_for == "AccessShareLock of relation queue"
        # What is advised is what ends it.
        await connection.execute(mine.advice)
        await task

        async def is_free() -> bool:
            holding = {it.pid for it in await monitor.holders(connection)}
            return mine.pid not in holding

        await until(is_free, "the snapshot is let go")


async def test_health_has_all_figures(connection: Connection) -> None:
    await publish(connection, 3)
    await connection.execute("analyze messages.message")
    found = await monitor.health(connection)
    assert found.get("partitions_ahead", "message_archive") == 3
    assert found.get("partitions", "attempt") == 4
    assert (found.get("table_bytes", "message") or 0) > 0
    assert found.get("missing") == 0
    assert found.get("notify_queue") == 0
    assert (found.get("connections") or 0) >= 1
    most = "current_setting('max_connections')::integer"
    reserved = "current_setting('superuser_reserved_connections')::integer"
    assert found.get("connections_most") == await connection.fetchval(f"select {most} - {reserved}")
    assert "session" in found.by_subject("xmin_age") or found.by_subject("xmin_age") == {}
    assert found.get("nothing") is None
    keys = [(it.name, it.subject) for it in found.figures]
    assert len(keys) == len(set(keys))


async def test_a_wait_that_begins_during_health_has_no_negative_length(
    connection: Connection,
) -> None:
    await connection.execute("""
        create or replace function messages.activity(
          most integer default 50, holding boolean default false
        )
          returns setof messages.session_report language sql stable as $$
          select r.*
          from unnest('{lock,idle,transaction}'::text[]) as c (cause)
          cross join jsonb_populate_record(
            null::messages.session_report,
            jsonb_build_object('cause', c.cause, 'since_at', now() + interval '1 hour')
          ) as r
          $$""")
    found = await monitor.health(connection)
    assert found.get("lock_waits") == 1
    for name in ("longest_lock_wait", "longest_idle_in_transaction", "longest_transaction"):
        assert found.get(name) == 0


async def test_notifications_and_published_messages_are_counted(
    connection: Connection, connect: Connect
) -> None:
    async def counted() -> dict[tuple[str, str], float]:
        return {
            (it["name"], it["subject"]): it["value"]
            for it in await rows(connection, "notifyq.notification_counters")
        }

    await connection.execute("select messages.create_stream('s')")
    before = await counted()
    assert set(before.values()) == {0}
    await connection.execute("select messages.publish('default', '1')")
    # One notification for all messages of a statement.
    await publish(connection, 10)
    await connection.execute("select messages.publish('s', '1')")
    assert await counted() == {
        ("notifications_sent", "new_message"): 2,
        ("published", "new_message"): 11,
        ("notifications_sent", "new_event"): 1,
        ("published", "new_event"): 1,
    }
    # While a worker suppresses notifications, publishers send none.
    assert await value(await connect(), "notifyq.suppress", queue="default")
    await connection.execute("select messages.publish('default', '1')")
    after = await counted()
    assert after["notifications_sent", "new_message"] == 2
    assert after["published", "new_message"] == 12
