"""Guarantees P1 to P30: PgQ as version 3.5 behaves; docs/coming-from/pgq.md has the deviations."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from compatibility.conftest import Mortal
from notifyq.errors import (
    BatchNotFoundError,
    EventNotFoundError,
    InvalidArgumentError,
    QueueNotFoundError,
    StreamInUseError,
    StreamNotFoundError,
    StreamPausedError,
    SubscriptionNotFoundError,
)
from support.database import Connect, Connection, Notices, rows, terminate, until_blocked, value

A, B, C = "ann", "bob", "cem"
HOUR = timedelta(hours=1)


async def put(connection: Connection, *messages: Any) -> list[int]:
    published = await rows(connection, "publish_many", queue="s", messages=list(messages))
    return [row[0] for row in published]


async def next_batch(connection: Connection, subscriber: str = A, **options: Any) -> int:
    batch = await value(connection, "next_batch", stream="s", subscriber=subscriber, **options)
    assert batch is not None
    return int(batch)


async def nothing(connection: Connection, subscriber: str = A) -> bool:
    return await value(connection, "next_batch", stream="s", subscriber=subscriber) is None


async def batch_events(connection: Connection, batch: int) -> list[asyncpg.Record]:
    return await rows(connection, "batch_events", batch=batch)


async def seen(connection: Connection, batch: int) -> list[Any]:
    return [event["message"] for event in await batch_events(connection, batch)]


async def finish(connection: Connection, batch: int) -> bool:
    return bool(await value(connection, "finish_batch", batch=batch))


async def read(connection: Connection, subscriber: str = A) -> list[Any]:
    """Read one batch and finish it; an empty list where there is none."""
    batch = await value(connection, "next_batch", stream="s", subscriber=subscriber)
    if batch is None:
        return []
    found = await seen(connection, batch)
    assert await finish(connection, batch)
    return found


async def drain(connection: Connection, subscriber: str = A) -> list[Any]:
    found: list[Any] = []
    while more := await read(connection, subscriber):
        found += more
    return found


async def tick(connection: Connection) -> int:
    return int(await value(connection, "tick", stream="s"))


async def subscribe(connection: Connection, *names: str) -> None:
    for name in names:
        assert await value(connection, "subscribe", stream="s", subscriber=name)


async def retry(connection: Connection, batch: int, event: int, **options: Any) -> bool:
    return bool(await value(connection, "retry_event", batch=batch, event=event, **options))


async def info(connection: Connection, subscriber: str = A) -> asyncpg.Record:
    [row] = await rows(connection, "subscription_info", stream="s", subscriber=subscriber)
    return row


@pytest.fixture
async def s(connection: Connection) -> Connection:
    """Give a session in a database with the stream `s`, to which `ann` is subscribed."""
    assert await value(connection, "create_stream", name="s")
    await subscribe(connection, A)
    return connection


async def test_p1_a_stream_is_created_once(connection: Connection) -> None:
    assert await value(connection, "create_stream", name="s") is True
    assert await value(connection, "create_stream", name="s") is False
    with pytest.raises(InvalidArgumentError):
        await value(connection, "create_stream", name=None)


async def test_p2_a_subscription_is_made_and_ended_once(s: Connection) -> None:
    assert await value(s, "subscribe", stream="s", subscriber=A) is False
    with pytest.raises(StreamNotFoundError, match="there is no stream 'nope'"):
        await value(s, "subscribe", stream="nope", subscriber=A)
    assert await value(s, "subscribe", stream="s", subscriber=B) is True
    assert await value(s, "subscribe", stream="s", subscriber=B) is False
    assert await value(s, "unsubscribe", stream="s", subscriber=A) is True
    assert await value(s, "unsubscribe", stream="s", subscriber=A) is False
    # For unsubscribing an unknown stream is no error.
    assert await value(s, "unsubscribe", stream="nope", subscriber=A) is False
    assert [row["subscriber"] for row in await rows(s, "subscription_info")] == [B]


async def test_p3_a_new_subscriber_starts_at_the_last_tick(s: Connection) -> None:
    await put(s, "before")
    await tick(s)
    await put(s, "since")
    await subscribe(s, B)
    await put(s, "after")
    assert await read(s, B) == ["since", "after"]
    await tick(s)
    await subscribe(s, C)
    assert await nothing(s, C)
    await put(s, "later")
    await tick(s)
    assert await read(s, C) == ["later"]


async def test_p4_no_events_are_null_and_no_subscription_is_an_error(s: Connection) -> None:
    assert await nothing(s)
    with pytest.raises(SubscriptionNotFoundError):
        await value(s, "next_batch", stream="s", subscriber="nobody")
    with pytest.raises(StreamNotFoundError):
        await value(s, "next_batch", stream="nope", subscriber=A)


async def test_p5_a_batch_repeats_until_it_is_finished_in_any_session(
    s: Connection, connect: Connect
) -> None:
    await put(s, 1)
    other = await connect()
    batch = await next_batch(s)
    await put(s, 2)
    assert await next_batch(other) == batch == await next_batch(s)
    assert await seen(other, batch) == [1]
    assert await finish(other, batch)
    assert await read(s) == [2]


async def test_p6_an_empty_batch_must_be_finished_too(s: Connection) -> None:
    await tick(s)
    await tick(s)
    batch = await next_batch(s)
    assert await batch_events(s, batch) == []
    assert await next_batch(s) == batch
    assert await finish(s, batch)


async def test_p7_an_unknown_batch_is_an_error(s: Connection) -> None:
    for call in (
        value(s, "finish_batch", batch=-1),
        rows(s, "batch_events", batch=-1),
        value(s, "retry_event", batch=-1, event=1),
        value(s, "fail_event", batch=-1, event=1),
        rows(s, "batch_info", batch=-1),
    ):
        with pytest.raises(BatchNotFoundError):
            await call


async def test_p8_events_go_back_with_their_transaction_or_savepoint(s: Connection) -> None:
    await undone(s, put(s, "gone"))
    async with s.transaction():
        await put(s, "before")
        await undone(s, put(s, "inner"))
        await put(s, "after")
    assert await read(s) == ["before", "after"]
    assert await nothing(s)
    # The ids of what was undone are not given again.
    [first] = await put(s, 1)
    await undone(s, put(s, 2))
    [third] = await put(s, 3)
    assert third >= first + 2


async def undone(connection: Connection, call: Coroutine[Any, Any, Any]) -> None:
    """Roll a call back, with its transaction or, inside of one, to a savepoint."""
    transaction = connection.transaction()
    await transaction.start()
    await call
    await transaction.rollback()


async def test_p9_a_late_commit_is_neither_lost_nor_doubled_nor_in_the_way(
    s: Connection, connect: Connect
) -> None:
    late, other = await connect(), await connect()
    async with late.transaction():
        await put(late, 1)
        await put(other, 2)
        assert await read(s) == [2]
        await put(other, 3)
        assert await read(s) == [3]
    assert await read(s) == [1]
    assert await nothing(s)


@pytest.mark.parametrize("quantity", [1, 4, 5, 6, 7, 8])
async def test_p9c_late_commits_of_many_events_come_in_batches_that_are_not_too_large(
    s: Connection, connect: Connect, quantity: int
) -> None:
    late, other = await connect(), await connect()
    async with late.transaction():
        for number in range(5):
            await put(late, number)
        await put(other, 5)
        assert await read(s) == [5]
        await put(other, 6)
    found: list[int] = []
    while batch := await value(s, "next_batch", stream="s", subscriber=A, quantity=quantity):
        part = await seen(s, batch)
        assert 0 < len(part) <= quantity
        found += part
        assert await finish(s, batch)
    assert sorted(found) == [0, 1, 2, 3, 4, 6]


async def test_p9b_a_commit_between_a_batch_and_its_reading_is_of_the_next(
    s: Connection, connect: Connect
) -> None:
    late = await connect()
    async with late.transaction():
        await put(late, 1)
        await put(s, 2)
        batch = await next_batch(s)
    assert await seen(s, batch) == [2]
    assert await next_batch(s) == batch
    assert await finish(s, batch)
    assert await read(s) == [1]
    assert await nothing(s)


async def test_p10_a_prepared_transaction_is_in_progress(mortal: Mortal) -> None:
    connection = await mortal.connect()
    # PostgreSQL prepares no transaction that has sent a NOTIFY.
    await value(connection, "create_stream", name="s", notify="off")
    await subscribe(connection, A)
    await connection.execute("begin; select messages.publish('s', '1')")
    await connection.execute("prepare transaction 'late'")
    await put(connection, 2)
    assert await read(connection) == [2]
    assert await nothing(connection)
    await mortal.crash()
    connection = await mortal.connect()
    assert await nothing(connection)
    await connection.execute("commit prepared 'late'")
    assert await read(connection) == [1]
    assert await nothing(connection)


async def test_p11_what_a_transaction_publishes_is_not_in_its_own_batch(s: Connection) -> None:
    async with s.transaction():
        await put(s, 1)
        await tick(s)
        found = await value(s, "next_batch", stream="s", subscriber=A)
        if found is not None:
            assert await seen(s, found) == []
            assert await finish(s, found)
    assert await read(s) == [1]
    assert await nothing(s)


async def test_p12_order_is_the_id_in_a_batch_and_the_commit_across(
    s: Connection, connect: Connect
) -> None:
    late, other = await connect(), await connect()
    async with late.transaction():
        [first] = await put(late, "early id")
        await put(other, "x")
        assert await read(s) == ["x"]
        ids = await put(other, "y", "z")
    events = await batch_events(s, await next_batch(s))
    assert [event["id"] for event in events] == [first, *ids]
    assert [event["message"] for event in events] == ["early id", "y", "z"]


async def test_p13_an_event_is_put_off_once_and_only_while_its_batch_is_open(s: Connection) -> None:
    [id_] = await put(s, 1)
    batch = await next_batch(s)
    assert await retry(s, batch, id_) is True
    assert await retry(s, batch, id_) is False
    with pytest.raises(EventNotFoundError):
        await retry(s, batch, id_ + 1)
    assert await finish(s, batch)
    with pytest.raises(BatchNotFoundError):
        await retry(s, batch, id_)


async def test_p14_a_retried_event_is_the_same_and_of_that_subscriber_alone(s: Connection) -> None:
    await subscribe(s, B)
    [id_] = await put(s, 1)
    batch = await next_batch(s)
    [first] = await batch_events(s, batch)
    assert first["retries"] is None
    assert await retry(s, batch, id_, delay=HOUR, reason="busy")
    assert await finish(s, batch)
    assert await nothing(s)
    for count in (1, 2):
        assert await nothing(s)
        await make_due(s)
        batch = await next_batch(s)
        [again] = await batch_events(s, batch)
        assert (again["id"], again["created_at"]) == (id_, first["created_at"])
        assert (again["retries"], again["reason"]) == (count, "busy")
        await retry(s, batch, id_, delay=HOUR, reason="busy")
        assert await finish(s, batch)
    batch = await next_batch(s, B)
    [event] = await batch_events(s, batch)
    assert (event["id"], event["retries"]) == (id_, None)
    assert await finish(s, batch)
    await make_due(s)
    assert await nothing(s, B)


async def make_due(connection: Connection) -> None:
    await connection.execute("update notifyq.event_retry set due_at = now() - interval '1 second'")


async def test_p15_all_events_that_are_due_come_back(s: Connection) -> None:
    await put(s, *range(25))
    batch = await next_batch(s)
    for event in await batch_events(s, batch):
        assert await retry(s, batch, event["id"])
    assert await finish(s, batch)
    assert await drain(s) == [*range(25)]
    assert await nothing(s)
    assert (await info(s))["retries"] == 0


async def test_p16_a_whole_batch_can_be_put_off(s: Connection) -> None:
    ids = await put(s, *range(7))
    batch = await next_batch(s)
    assert await value(s, "retry_batch", batch=batch, delay=HOUR, reason="busy") == 7
    assert await value(s, "retry_batch", batch=batch) == 0
    assert await finish(s, batch)
    assert await nothing(s)
    await make_due(s)
    batch = await next_batch(s)
    events = await batch_events(s, batch)
    assert [event["id"] for event in events] == ids
    assert {(event["retries"], event["reason"]) for event in events} == {(1, "busy")}
    # Only those without an outcome count.
    assert await retry(s, batch, ids[0], delay=HOUR)
    assert await value(s, "fail_event", batch=batch, event=ids[1])
    assert await value(s, "retry_batch", batch=batch) == 5
    assert await finish(s, batch)
    assert await read(s) == [*range(2, 7)]
    assert await nothing(s)


async def test_p17_a_failed_event_is_kept_for_its_subscriber(s: Connection) -> None:
    await subscribe(s, B)
    ids = await put(s, "bad", "good", "worse")
    batch = await next_batch(s)
    for id_ in (ids[0], ids[2]):
        event = {"batch": batch, "event": id_}
        with pytest.raises(InvalidArgumentError, match="status"):
            await value(s, "fail_event", **event, status="success")
        assert await value(s, "fail_event", **event, reason="no such order") is True
        assert await value(s, "fail_event", **event, reason="again") is False
        assert await value(s, "retry_event", **event) is False
    assert await finish(s, batch)
    count = {"queue": "s", "subscriber": A}
    assert await value(s, "dead_count", **count) == 2
    assert await value(s, "dead_count", queue="s", subscriber=B) == 0
    # A list by count and offset.
    dead = await rows(s, "dead_list", **count, quantity=2, skip=0)
    assert {row["event_id"] for row in dead} == {ids[0], ids[2]}
    assert {(row["status"], row["details"]) for row in dead} == {("failed", "no such order")}
    assert await rows(s, "dead_list", **count, quantity=1, skip=0) == dead[:1]
    assert await rows(s, "dead_list", **count, quantity=2, skip=1) == dead[1:]
    assert await rows(s, "dead_list", **count, quantity=2, skip=2) == []
    assert await rows(s, "dead_list", queue="s", subscriber=B) == []
    # It is kept, and not processed.
    assert await nothing(s)
    # Retried, it comes once more, to its subscriber alone; the second time does nothing.
    first, second = sorted(dead, key=lambda row: int(row["event_id"]))
    assert await dead_retry(s, first["id"]) == [ids[0]]
    assert await dead_retry(s, first["id"]) == []
    assert await value(s, "dead_count", **count) == 1
    batch = await next_batch(s)
    [again] = await batch_events(s, batch)
    assert (again["id"], again["message"], again["retries"]) == (ids[0], "bad", 1)
    assert await finish(s, batch)
    assert await nothing(s)
    # Deleted, it is gone for good.
    assert await s.fetchval("select messages.dead_delete($1)", second["id"]) == 1
    assert await s.fetchval("select messages.dead_delete($1)", second["id"]) == 0
    assert await dead_retry(s, second["id"]) == []
    assert await value(s, "dead_count", **count) == 0
    assert await nothing(s)
    assert await read(s, B) == ["bad", "good", "worse"]
    assert await nothing(s, B)


async def dead_retry(connection: Connection, id_: int) -> list[int]:
    return [row[0] for row in await connection.fetch("select messages.dead_retry($1)", id_)]


async def test_p18_a_batch_is_finished_once(s: Connection, notices: Notices) -> None:
    [id_] = await put(s, 1)
    batch = await next_batch(s)
    assert await finish(s, batch) is True
    assert await notices.received("WARNING") == []
    assert await finish(s, batch) is False
    assert await notices.received("WARNING") == [f"batch {batch} was finished before"]
    for operation in (
        value(s, "retry_event", batch=batch, event=id_),
        value(s, "retry_batch", batch=batch),
        value(s, "fail_event", batch=batch, event=id_),
        rows(s, "batch_events", batch=batch),
    ):
        with pytest.raises(BatchNotFoundError):
            await operation
    assert await nothing(s)
    assert await value(s, "dead_count", queue="s") == 0


async def test_p19_a_rollback_undoes_batch_and_finish_with_the_effect(s: Connection) -> None:
    await s.execute("create table public.effect (n jsonb)")
    await put(s, 1, 2)
    batch = await next_batch(s)
    for is_undone in (True, False):
        transaction = s.transaction()
        await transaction.start()
        await s.execute(
            "insert into public.effect select message from messages.batch_events($1)", batch
        )
        assert await finish(s, batch)
        await (transaction.rollback() if is_undone else transaction.commit())
        if is_undone:
            assert await next_batch(s) == batch
    effects = await s.fetch("select n from public.effect order by n")
    assert [row["n"] for row in effects] == [1, 2]
    assert await nothing(s)
    await put(s, 3)
    await undone(s, next_batch(s))
    assert (await info(s))["current_batch"] is None
    assert await read(s) == [3]


async def test_p20_unsubscribing_deletes_events_that_were_put_off(s: Connection) -> None:
    [id_] = await put(s, 1)
    batch = await next_batch(s)
    assert await retry(s, batch, id_, delay=HOUR)
    assert await finish(s, batch)
    assert (await info(s))["retries"] == 1
    assert await value(s, "unsubscribe", stream="s", subscriber=A)
    await subscribe(s, A)
    assert (await info(s))["retries"] == 0
    assert await s.fetchval("select count(*) from notifyq.event_retry") == 0


async def test_p21_a_stream_with_subscribers_is_dropped_by_force(s: Connection) -> None:
    await put(s, 1)
    with pytest.raises(StreamInUseError):
        await value(s, "drop_stream", name="s")
    assert await read(s) == [1]
    await put(s, 2, 3)
    assert await value(s, "drop_stream", name="s", force=True) == 1
    with pytest.raises(StreamNotFoundError):
        await value(s, "drop_stream", name="s", force=True)
    assert await value(s, "create_stream", name="s")
    await subscribe(s, A)
    assert await nothing(s)


async def test_p22_ticks_are_cut_by_hand_for_one_stream_or_for_all(s: Connection) -> None:
    await put(s, 1)
    first = await tick(s)
    await put(s, 2)
    assert await tick(s) > first
    with pytest.raises(StreamNotFoundError):
        await value(s, "tick", stream="nope")
    await value(s, "create_stream", name="t")
    await put(s, 3)
    # Of all streams, and how many those are.
    assert await s.fetchval("select messages.tick()") == 2
    assert await s.fetchval("select array_agg(distinct stream) from notifyq.tick") == (
        await s.fetchval("select array_agg(id order by id) from messages.stream")
    )
    assert [await read(s), await read(s), await read(s)] == [[1], [2], [3]]


@pytest.mark.parametrize(
    "changes", [{"notify": "loud"}, {"max_events": -1}, {"retention": -HOUR}, {"max_bytes": 0}]
)
async def test_p23_a_setting_that_makes_no_sense_is_an_error(
    s: Connection, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError):
        await value(s, "alter_stream", name="s", **changes)
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await value(s, "alter_stream", name="s", colour="red")
    with pytest.raises(asyncpg.InvalidTextRepresentationError) as error:
        await s.execute("select messages.alter_stream('s', max_events => 'many')")
    assert error.value.sqlstate == "22P02"


async def test_p24_publishing_can_be_refused(s: Connection) -> None:
    with pytest.raises(QueueNotFoundError):
        await value(s, "publish", queue="nope", message=1)
    with pytest.raises(InvalidArgumentError, match="queue must not be null"):
        await value(s, "publish", queue=None, message=1)
    await s.fetchval("select messages.publish('s', 'null', type => null)")
    assert await value(s, "pause_stream", name="s") is True
    with pytest.raises(StreamPausedError):
        await put(s, 1)
    # But for replication.
    async with s.transaction():
        await s.execute("set local session_replication_role = replica")
        await put(s, "copied")
    with pytest.raises(StreamPausedError):
        await put(s, 1)
    assert await value(s, "resume_stream", name="s") is True
    await put(s, 2)
    assert await read(s) == [None, "copied", 2]


async def rotate(connection: Connection) -> None:
    """Let a day pass, in which the segment is closed, sealed, and emptied if it can be."""
    for _ in range(4):
        await connection.execute(
            "update notifyq.segment set opened_at = opened_at - interval '1 day'"
        )
        await rows(connection, "maintain")


async def stored(connection: Connection) -> int:
    count: int = await connection.fetchval("select count(*) from messages.event")
    return count


async def test_p25_events_that_a_subscriber_needs_stay(s: Connection) -> None:
    await value(s, "alter_stream", name="s", retention=timedelta(0))
    await subscribe(s, B)
    for n in range(5):
        await put(s, n)
        assert await read(s) == [n]
        await rotate(s)
    # The slow one keeps all of them.
    assert await stored(s) == 5
    slow: list[int] = []
    while found := await read(s, B):
        slow += found
        await rotate(s)
    assert slow == [*range(5)]
    await rotate(s)
    assert await stored(s) == 0


async def test_p26_two_sessions_at_once_get_one_batch(s: Connection, connect: Connect) -> None:
    await put(s, *range(10))
    sessions = [await connect() for _ in range(8)]
    batches = await asyncio.gather(*(next_batch(session) for session in sessions))
    assert len(set(batches)) == 1
    finished = await asyncio.gather(*(finish(session, batches[0]) for session in sessions))
    assert sorted(finished) == [*[False] * 7, True]
    await put(s, "more")
    first, second = sessions[:2]
    async with first.transaction():
        batch = await next_batch(first)
        asking = asyncio.create_task(next_batch(second))
        await until_blocked(s, second)
    assert await asking == batch


async def test_p27_the_state_can_be_seen(s: Connection) -> None:
    await put(s, 1, 2, 3)
    batch = await next_batch(s)
    await put(s, 4)
    row = await info(s)
    assert (row["stream"], row["subscriber"], row["current_batch"]) == ("s", A, batch)
    assert row["pending"] == 4
    assert row["lag"] > timedelta(0)
    assert (row["retries"], row["dead"]) == (0, 0)
    assert {"last_seen_at", "last_tick", "next_tick", "members"} <= {*row.keys()}
    [about] = await rows(s, "batch_info", batch=batch)
    assert (about["stream"], about["subscriber"]) == ("s", A)
    assert about["first_id"] <= about["last_id"]
    [about] = await rows(s, "stream_info", stream="s")
    assert about["name" if "name" in about else "stream"] == "s"
    assert await finish(s, batch)
    assert await read(s) == [4]
    row = await info(s)
    assert (row["current_batch"], row["pending"]) == (None, 0)


async def test_p27_a_batch_reports_its_ticks_and_its_lag(s: Connection) -> None:
    await put(s, 1)
    asked = await tick(s)
    await put(s, 2)
    first = await next_batch(s)
    assert await seen(s, first) == [1]
    before = await s.fetchval("select clock_timestamp()")
    [about] = await rows(s, "batch_info", batch=first)
    now = await s.fetchval("select clock_timestamp()")
    assert about["previous_tick"] < about["tick"] == asked
    # It was cut at the tick, so it is as far behind as that.
    assert about["opened_at"] > about["tick_at"]
    assert before <= about["tick_at"] + about["lag"] <= now
    assert await finish(s, first)
    second = await next_batch(s)
    assert await seen(s, second) == [2]
    [about] = await rows(s, "batch_info", batch=second)
    assert (about["previous_tick"], about["tick"]) == (asked, asked)
    assert about["previous_tick_at"] == about["tick_at"]
    now = await s.fetchval("select clock_timestamp()")
    assert timedelta(0) < about["lag"] <= now - about["opened_at"]


async def test_p28_a_crash_leaves_events_ticks_and_the_open_batch(mortal: Mortal) -> None:
    connection = await mortal.connect()
    await value(connection, "create_stream", name="s")
    await subscribe(connection, A, B)
    await put(connection, 1, 2)
    batch = await next_batch(connection)
    await put(connection, 3)
    last = await tick(connection)
    await mortal.crash()
    connection = await mortal.connect()
    assert await next_batch(connection) == batch
    assert await seen(connection, batch) == [1, 2]
    assert await finish(connection, batch)
    assert await read(connection) == [3]
    assert await tick(connection) > last
    assert await drain(connection, B) == [1, 2, 3]


async def test_p29_an_unfinished_batch_comes_again(s: Connection, connect: Connect) -> None:
    await put(s, 1)
    victim = await connect()
    batch = await next_batch(victim)
    assert await seen(victim, batch) == [1]
    await terminate(s, victim)
    assert await next_batch(s) == batch
    assert await read(s) == [1]


async def test_p30_subscribers_do_not_disturb_one_another(s: Connection, connect: Connect) -> None:
    await subscribe(s, B, C)
    slow = await connect()
    async with slow.transaction():
        await put(s, 0)
        held = await next_batch(slow, C)
        for n in range(1, 4):
            assert await read(s) == [n - 1]
            await put(s, n)
        assert await seen(slow, held) == [0]
        assert await finish(slow, held)
    assert await drain(s, A) == [3]
    assert await drain(s, B) == [0, 1, 2, 3]
    assert await drain(s, C) == [1, 2, 3]
