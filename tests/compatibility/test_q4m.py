"""Guarantees M1 to M26: Q4M, a queue for MySQL; docs/coming-from/q4m.md has the deviations."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import asyncpg
import pytest

from compatibility.conditions import CONDITIONS, evaluate
from compatibility.conftest import Mortal
from notifyq.errors import InvalidArgumentError, NothingOwnedError, QueueNotFoundError
from support.database import (
    Connect,
    Connection,
    Notifications,
    alive,
    archived,
    live,
    lock_of,
    one_row,
    publish,
    rows,
    terminate,
    until,
    until_blocked,
    value,
)

NOTHING = timedelta(0)
until_waiting = partial(until_blocked, event="PgSleep")
"""Wait until each session sleeps between two polls."""


async def wait(
    connection: Connection,
    *queues: str,
    timeout: timedelta | float | None = NOTHING,
    filters: Sequence[str | None] | None = None,
) -> asyncpg.Record:
    """Call the procedure and return its answer."""
    limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
    return await one_row(
        connection,
        "call messages.wait($1, $2, $3::text[]::jsonpath[])",
        list(queues or ["default"]),
        limit,
        filters,
    )


async def owned(connection: Connection) -> int | None:
    """Return the id of what a session owns."""
    found: int | None = await connection.fetchval("select id from messages.owned()")
    return found


async def create(connection: Connection, *queues: str) -> None:
    for queue in queues:
        await value(connection, "create_queue", name=queue)


async def test_m1_an_insert_sends_and_the_table_can_be_read_in_its_order(
    connection: Connection,
) -> None:
    await create(connection, "a", "b")
    await connection.execute(
        "insert into messages.message (queue, message) values ('a', '1'), ('b', '2'), ('a', '3')"
    )
    sent = await connection.fetch(
        "select message from messages.message where queue = 'a' order by id limit 9"
    )
    assert [row["message"] for row in sent] == [1, 3]
    await connection.execute("delete from messages.message where message = '1'")
    assert [row["message"] for row in await rows(connection, "take", queue="a")] == [3]
    await connection.execute("truncate messages.message")
    assert (await wait(connection, "b"))["index"] == 0


async def test_m2_wait_distinguishes_a_message_a_timeout_and_an_unknown_queue(
    connection: Connection,
) -> None:
    [id_] = await publish(connection, 1)
    found = await wait(connection)
    assert (found["index"], found["id"], found["queue"], found["message"]) == (1, id_, "default", 0)
    began = time.monotonic()
    nothing = await wait(connection, timeout=0.1)
    assert time.monotonic() - began >= 0.1
    assert (nothing["index"], nothing["id"], nothing["message"]) == (0, None, None)
    with pytest.raises(QueueNotFoundError):
        await wait(connection, "nowhere")
    signature = await connection.fetchval(
        "select pg_get_function_arguments('messages.wait'::regproc)"
    )
    assert "timeout interval DEFAULT '00:01:00'::interval" in signature


async def test_m3_a_session_owns_one_message_that_no_other_gets(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    first, second = await publish(connection, 2)
    await wait(connection)
    assert [row["id"] for row in await rows(connection, "owned")] == [first]
    assert (await wait(other))["id"] == second
    assert await rows(other, "claim", quantity=9) == []
    assert await rows(other, "take", queue="default", quantity=9) == []
    # No clock ends it.
    await connection.execute("select messages.reap()")
    assert await owned(connection) == first


async def test_m4_after_a_timeout_a_session_owns_nothing_whatever_comes(
    connection: Connection,
) -> None:
    await wait(connection)
    await publish(connection, 1)
    assert await owned(connection) is None
    assert await value(connection, "finish_owned") is False
    with pytest.raises(NothingOwnedError):
        await owned(connection)


async def test_m5_the_next_wait_finishes_what_was_owned_and_so_does_the_end(
    connection: Connection, connect: Connect
) -> None:
    first, second = await publish(connection, 2)
    await wait(connection)
    assert (await wait(connection))["id"] == second
    assert [row["status"] for row in await archived(await connect(), first)] == ["success"]
    assert await value(connection, "finish_owned", status="failed", details="no")
    assert [row["status"] for row in await archived(connection, second)] == ["failed"]
    with pytest.raises(NothingOwnedError):
        await value(connection, "finish_owned")


async def test_m6_a_release_restores_the_position_and_wakes_a_waiting_session(
    connection: Connection, connect: Connect, notifications: Notifications
) -> None:
    first, second = await publish(connection, 2)
    other = await connect()
    await wait(connection)
    await notifications.received()
    waiter = asyncio.create_task(wait(other, filters=["$ == 0"], timeout=5))
    await until_waiting(connection, other)
    assert await value(connection, "release_owned")
    assert (await waiter)["id"] == first
    assert await notifications.ids() == [[first]]
    await value(other, "release_owned")
    assert (await wait(connection))["id"] == first
    row = await alive(connection, second)
    assert row["attempts"] == 0
    with pytest.raises(NothingOwnedError):
        await value(other, "release_owned")


@pytest.mark.parametrize("way", ["killed client", "terminated", "closed", "reset by a pool"])
async def test_m7_a_message_is_back_when_its_owner_is_gone(
    connection: Connection, connect: Connect, way: str
) -> None:
    [id_] = await publish(connection, 1)
    doomed, waiter = await connect(), await connect()
    assert (await wait(doomed))["id"] == id_
    waiting = asyncio.create_task(wait(waiter, timeout=10))
    await until_waiting(connection, waiter)
    gone = time.monotonic()
    if way == "terminated":
        await terminate(connection, doomed)
    elif way == "killed client":
        doomed._transport.abort()  # type: ignore[attr-defined]
    elif way == "closed":
        await doomed.close()
    else:
        await doomed.reset()
    found = await waiting
    assert (found["id"], time.monotonic() - gone < 2) == (id_, True)
    row = await alive(connection, id_)
    assert row["attempts"] == 1
    assert await connection.fetchval("select count(*) from notifyq.owner_session") == 1


async def test_m7_maintenance_puts_back_messages_of_an_owner_that_left(
    connection: Connection, connect: Connect
) -> None:
    ids = await publish(connection, 3)
    alive, doomed = await connect(), await connect()
    assert [(await wait(it))["id"] for it in (alive, doomed)] == ids[:2]
    await rows(connection, "maintain")
    assert await rows(connection, "take", queue="default", quantity=1) != []
    await terminate(connection, doomed)
    await rows(connection, "maintain")
    assert [row["id"] for row in await rows(connection, "claim", quantity=9)] == [ids[1]]
    assert await owned(alive) == ids[0]


async def test_m7_what_ends_its_owners_is_dead_where_attempts_are_counted(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="q", max_attempts=2)
    [first] = await publish(connection, 1, "q")
    for left in (1, 0):
        doomed = await connect()
        assert (await wait(doomed, "q"))["id"] == first
        [_] = await publish(connection, 1, "q")
        await terminate(connection, doomed)
        assert await value(connection, "notifyq.return_owned", quantity=10) == 1
        # Back in its old position, before later messages.
        found = await connection.fetch("select id from messages.message order by id limit $1", left)
        assert [row["id"] for row in found] == [first][:left]
    [dead] = await archived(connection, first)
    assert (dead["status"], dead["attempts"]) == ("lock_expired", 2)
    assert dead["details"] == "the session that owned it has ended"


@pytest.mark.parametrize("by", ["delete", "finish"])
async def test_m8_what_the_owner_has_deleted_stays_deleted(
    connection: Connection, connect: Connect, by: str
) -> None:
    first, second, third = await publish(connection, 3)

    async def remove(found: asyncpg.Record) -> None:
        if by == "delete":
            await connection.execute("delete from messages.message where id = $1", found["id"])
        else:
            assert await value(connection, "finish", **lock_of(found))

    async def left() -> list[int]:
        return sorted(row["id"] for row in await rows(connection, "message_list"))

    # An abort does not bring it back.
    found = await wait(connection)
    assert found["id"] == first
    await remove(found)
    assert await rows(connection, "owned") == []
    assert await value(connection, "release_owned") is False
    assert await left() == [second, third]
    assert await rows(await connect(), "claim_id", id=first) == []
    # The end removes no other one, neither what waits nor what has come since.
    found = await wait(connection)
    assert found["id"] == second
    await remove(found)
    [new] = await publish(connection, 1)
    assert await value(connection, "finish_owned") is False
    assert await left() == [third, new]
    # Nor does the next wait, which finishes what is owned.
    found = await wait(connection)
    assert found["id"] == third
    await remove(found)
    assert (await wait(connection))["id"] == new
    assert await left() == [new]
    ended = await rows(connection, "archive_list", quantity=10)
    assert sorted(row["id"] for row in ended) == ([first, second, third] if by == "finish" else [])


async def test_m9_several_queues_are_read_in_their_order(connection: Connection) -> None:
    await create(connection, "high", "low")
    lows = await publish(connection, 2, "low")
    highs = await publish(connection, 2, "high")
    seen = []
    for _ in range(5):
        found = await wait(connection, "high", "low")
        seen.append((found["index"], found["id"], found["queue"]))
        # Of the other queue the owner sees nothing.
        owned_ids = [row["id"] for row in await rows(connection, "owned")]
        assert owned_ids == ([found["id"]] if found["index"] else [])
    assert seen == [
        *((1, id_, "high") for id_ in highs),
        *((2, id_, "low") for id_ in lows),
        (0, None, None),
    ]


async def test_m10_a_session_that_waits_for_several_queues_wakes_for_each(
    connection: Connection, connect: Connect
) -> None:
    await create(connection, "a", "b")
    waiter = await connect()
    for position, queue in ((2, "b"), (1, "a")):
        waiting = asyncio.create_task(wait(waiter, "a", "b", timeout=5))
        await until_waiting(connection, waiter)
        [id_] = await publish(connection, 1, queue)
        found = await waiting
        assert (found["index"], found["id"]) == (position, id_)


async def test_m11_a_condition_leaves_other_messages_and_a_waiting_session_ignores_them(
    connection: Connection, connect: Connect
) -> None:
    ids = await publish(connection, 5)
    waiter = await connect()
    assert (await wait(waiter, filters=["$ >= 3"]))["id"] == ids[3]
    waiting = asyncio.create_task(wait(waiter, filters=["$ >= 10"], timeout=5))
    await until_waiting(connection, waiter)
    await publish(connection, 3)
    await until_waiting(connection, waiter)
    assert not waiting.done()
    await connection.execute("select messages.publish('default', '11')")
    assert (await waiting)["message"] == 11
    assert len(await rows(connection, "message_list", state="waiting")) == 7


async def test_m12_conditions_compute_as_a_reference_does(connection: Connection) -> None:
    a_b = [(a, b) for a in range(-3, 4) for b in range(-2, 3)]
    await rows(
        connection, "publish_many", queue="default", messages=[{"a": a, "b": b} for a, b in a_b]
    )
    for theirs, ours, reference in CONDITIONS:
        found = await connection.fetch(
            "select message from messages.message where message @@ $1::text::jsonpath", ours
        )
        assert sorted((row[0]["a"], row[0]["b"]) for row in found) == [
            (a, b) for a, b in a_b if evaluate(reference, a, b)
        ], theirs
    assert len(CONDITIONS) >= 40


@pytest.mark.parametrize(
    "bad", ["$.v = 1); drop table x--", "v = 1", "", "$.v == $other", "$.v ? (@ > 1)"]
)
async def test_m13_a_bad_condition_is_an_error_and_never_sql(
    connection: Connection, bad: str
) -> None:
    await connection.execute("create table x ()")
    await publish(connection, 1)
    with pytest.raises((asyncpg.PostgresSyntaxError, asyncpg.DataError, InvalidArgumentError)):
        await wait(connection, filters=[bad])
    await connection.execute("drop table x")
    assert (await wait(connection))["index"] == 1


async def test_m13_what_cannot_be_computed_is_no_match(connection: Connection) -> None:
    ids = await publish(connection, 2)
    await connection.execute("select messages.publish('default', '\"text\"')")
    found = await wait(connection, filters=["6 / $ == 6"])
    assert (found["id"], found["message"]) == (ids[1], 1)


async def test_m14_one_queue_with_two_conditions_has_two_priorities(connection: Connection) -> None:
    ids = await publish(connection, 4)
    found = [
        await wait(connection, "default", "default", filters=["$ >= 2", None]) for _ in range(5)
    ]
    assert [(row["index"], row["id"]) for row in found] == [
        (1, ids[2]), (1, ids[3]), (2, ids[0]), (2, ids[1]), (0, None)
    ]  # fmt: skip


async def test_m15_many_waiting_sessions_each_get_a_message_soon(
    connection: Connection, connect: Connect
) -> None:
    waiters = [await connect() for _ in range(8)]
    waiting = [asyncio.create_task(wait(it, timeout=10)) for it in waiters]
    await until_waiting(connection, *waiters)
    ids = await publish(connection, 8)
    found = await asyncio.gather(*waiting)
    assert sorted(row["id"] for row in found) == ids


async def test_m16_the_row_that_is_owned_has_an_id(connection: Connection) -> None:
    with pytest.raises(NothingOwnedError):
        await owned(connection)
    await wait(connection)
    assert await owned(connection) is None
    ids = await publish(connection, 1)
    await wait(connection)
    assert [await owned(connection)] == ids


async def test_m17_a_position_is_received_once_for_each_source(connection: Connection) -> None:
    sent = [{"position": "1", "queue": "default", "message": 1}]
    for source, published in (("a", 1), ("a", 0), ("b", 1)):
        report = await one_row(
            connection,
            "select * from messages.receive($1, $2::text::jsonb)",
            source,
            json.dumps(sent),
        )
        assert (report["published"], report["known"]) == (published, 1 - published)
    assert len(await rows(connection, "message_list")) == 2
    # Only received messages count: other publishers need no position.
    await publish(connection, 1)
    assert len(await rows(connection, "message_list")) == 3
    with pytest.raises(InvalidArgumentError):
        await connection.fetchval("select messages.receive('', $1::text::jsonb)", json.dumps(sent))
    with pytest.raises(InvalidArgumentError, match="must have a position"):
        await connection.fetchval(
            "select messages.receive('a', $1::text::jsonb)",
            json.dumps([{**sent[0], "position": None}]),
        )


@pytest.mark.parametrize("before", ["it waits", "it is taken"])
async def test_m18_the_mark_of_what_was_received_outlives_a_restart(
    mortal: Mortal, before: str
) -> None:
    connection = await mortal.connect()
    await create(connection, "target")
    receive = "select (messages.receive($1, $2::text::jsonb)).published"

    def sent(position: int) -> str:
        return json.dumps([{"position": str(position), "queue": "target", "message": position}])

    for source in ("a", "b"):
        assert await connection.fetchval(receive, source, sent(1)) == 1
    left = 2
    if before == "it is taken":
        left -= len(await rows(connection, "take", queue="target", quantity=2))
    await mortal.crash()
    connection = await mortal.connect()
    # Each source has its own mark, of this position and of no other.
    for source in ("a", "b"):
        assert await connection.fetchval(receive, source, sent(1)) == 0
    assert len(await rows(connection, "message_list", queue="target")) == left
    assert await connection.fetchval(receive, "c", sent(1)) == 1
    assert await connection.fetchval(receive, "a", sent(2)) == 1


POINTS = ["owned", "received", "removed", "committed"]


@pytest.mark.parametrize("point", POINTS)
async def test_m19_a_message_moves_once_wherever_its_relay_is_cut_off(
    connection: Connection, connect: Connect, point: str
) -> None:
    """The processes themselves are killed in tests/relay/test_killed.py."""
    fields = {"priority": 7, "type": "order", "key": "k", "headers": {"h": [1]}}
    await create(connection, "target")
    id_ = await value(connection, "publish", queue="default", message={"n": 1.50}, **fields)

    async def is_there(queue: str) -> int:
        return len(await rows(connection, "message_list", queue=queue))

    async def move(relay: Connection, cut: str | None) -> None:
        """Take the steps of a relay up to that point, behind which it is cut off."""
        found = await wait(relay)
        if found["id"] is None:
            return
        if cut == "owned":
            return
        [row] = await rows(relay, "owned")
        sent = {"position": str(id_), "queue": "target", "message": row["message"]}
        sent |= {name: row[name] for name in fields}
        await connection.fetch(
            "select messages.receive('here', $1::text::jsonb)", json.dumps([sent])
        )
        # It is removed here only after the other side has accepted it.
        assert (await is_there("default"), await is_there("target")) == (1, 1)
        if cut == "received":
            return
        if cut == "removed":
            await relay.execute("begin")
        assert await value(relay, "finish_owned")

    relay = await connect()
    await move(relay, point)
    await terminate(connection, relay)
    await connection.execute("select notifyq.return_owned(9)")
    assert await is_there("default") == (0 if point == "committed" else 1)
    await move(await connect(), None)
    assert await is_there("default") == 0
    [row] = await rows(connection, "message_list", queue="target")
    [received] = await rows(connection, "claim", queues=["target"])
    assert received["id"] == row["id"]
    assert received["message"] == {"n": 1.5}
    assert {name: received[name] for name in fields} == fields


async def test_m20_large_payloads_are_intact(connection: Connection) -> None:
    await create(connection, "target")
    for queue in ("default", "target"):
        await value(connection, "alter_queue", name=queue, max_bytes=1_000_000)
    for size in (16_000, 480_000):
        text = "x\u00e9\u4e2d" * (size // 3)
        await value(connection, "publish", queue="default", message={"t": text})
        found = await wait(connection)
        assert found["message"] == {"t": text}
        # And through what a relay does.
        sent = [{"position": str(size), "queue": "target", "message": found["message"]}]
        await connection.execute(
            "select messages.receive('here', $1::text::jsonb)", json.dumps(sent)
        )
        assert (await wait(connection, "target"))["message"] == {"t": text}


async def test_m21_a_truncated_message_is_gone_for_its_owner(connection: Connection) -> None:
    for end in ("finish_owned", "release_owned"):
        await publish(connection, 1)
        await wait(connection)
        await connection.execute("truncate messages.message")
        [new] = await publish(connection, 1)
        assert await owned(connection) is None
        assert await value(connection, end) is False
        assert (await live(connection, new)) is not None
        await connection.execute("truncate messages.message")


@pytest.mark.parametrize("queues", [["q"], ["q", "p"]])
async def test_m22_a_drop_waits_for_no_session(
    connection: Connection, connect: Connect, queues: list[str]
) -> None:
    await create(connection, "q", "p")
    owner, waiter = await connect(), await connect()
    await publish(connection, 1, "q")
    await wait(owner, "q")
    began = time.monotonic()
    waiting = asyncio.create_task(wait(waiter, *queues, timeout=2))
    await until_waiting(connection, waiter)
    await value(connection, "drop_queue", name="q", force=True)
    assert not waiting.done()
    assert (await waiting)["index"] == 0
    assert time.monotonic() - began >= 2
    assert await owned(owner) is None
    assert await value(owner, "finish_owned") is False


async def test_m22_a_queue_that_is_made_again_is_waited_for(
    connection: Connection, connect: Connect
) -> None:
    await create(connection, "q")
    waiter = await connect()
    waiting = asyncio.create_task(wait(waiter, "q", timeout=5))
    await until_waiting(connection, waiter)
    await value(connection, "drop_queue", name="q")
    await create(connection, "q")
    [id_] = await publish(connection, 1, "q")
    assert (await waiting)["id"] == id_


async def test_m23_after_a_crash_what_was_owned_is_free_again(mortal: Mortal) -> None:
    connection = await mortal.connect()
    ids = await publish(connection, 2)
    await wait(connection)
    await mortal.crash()
    again = await mortal.connect()
    # The pid of the owner may be another's by now.
    await again.execute("select notifyq.return_owned(9)")
    assert [row["id"] for row in await rows(again, "claim", quantity=9)] == ids


async def test_m24_a_wait_with_an_error_has_finished_what_was_owned(
    connection: Connection, connect: Connect
) -> None:
    [id_] = await publish(connection, 1)
    await wait(connection)
    with pytest.raises(QueueNotFoundError):
        await wait(connection, "nowhere")
    assert [row["status"] for row in await archived(await connect(), id_)] == ["success"]
    with pytest.raises(NothingOwnedError):
        await owned(connection)


async def test_m25_a_queue_is_counted(connection: Connection) -> None:
    await create(connection, "other")

    async def counts(queue: str) -> tuple[int, int, int]:
        [info] = await rows(connection, "queue_info", queue=queue)
        summary = await rows(connection, "archive_summary", queue=queue)
        return info["waiting"], info["locked"], summary[-1]["messages"] if summary else 0

    await publish(connection, 3)
    assert await counts("default") == (3, 0, 0)
    await wait(connection)
    await wait(connection)
    assert await counts("default") == (1, 1, 1)
    # What an abort has restored waits again.
    await value(connection, "release_owned")
    assert await counts("default") == (2, 0, 1)
    assert await counts("other") == (0, 0, 0)


async def test_m26_a_queue_for_each_subscriber(connection: Connection) -> None:
    await create(connection, "a", "b", "c")
    async with connection.transaction():
        for queue in "abc":
            await value(connection, "publish", queue=queue, message="news")
    for queue in "abc":
        assert (await wait(connection, queue))["message"] == "news"


async def test_a_wait_holds_no_snapshot_and_no_transaction(
    connection: Connection, connect: Connect
) -> None:
    waiter = await connect()
    waiting: asyncio.Task[Any] = asyncio.create_task(wait(waiter, timeout=5))
    await until_waiting(connection, waiter)
    began = await connection.fetchval("select pg_current_xact_id()::text::bigint")
    for _ in range(10):
        await connection.execute("select pg_current_xact_id()")

    async def is_past() -> bool:
        oldest = await connection.fetchval(
            "select backend_xmin::text::bigint from pg_stat_activity where pid = $1",
            waiter.get_server_pid(),
        )
        return oldest is None or bool(oldest > began)

    await until(is_past, "the snapshot is a new one", 0.5)
    await terminate(connection, waiter)
    with pytest.raises(asyncpg.PostgresError):
        await waiting
