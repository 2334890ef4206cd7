"""Conditions of gates, each in the state where no other condition protects what it protects.

A gate decides which session gets or ends a message or an event. Most of its conditions are covered
by the tests of its file; here are those whose loss no other test sees.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import LostReceiptsError, QueueFullError
from support.database import (
    Connect,
    Connection,
    alive,
    archived,
    claim_one,
    let_fail,
    lock_of,
    publish,
    rows,
    terminate,
    value,
)

HOUR = timedelta(hours=1)


async def next_batch(connection: Connection, subscriber: str, **options: Any) -> int | None:
    batch: int | None = await value(
        connection, "next_batch", stream="s", subscriber=subscriber, **options
    )
    return batch


async def read(connection: Connection, subscriber: str, **options: Any) -> list[Any]:
    """Return the payloads of the next batch, and finish it."""
    batch = await next_batch(connection, subscriber, **options)
    if batch is None:
        return []
    events = await rows(connection, "batch_events", batch=batch)
    assert await value(connection, "finish_batch", batch=batch)
    return [event["message"] for event in events]


@pytest.fixture
async def stream(connection: Connection) -> None:
    await value(connection, "create_stream", name="s")
    for subscriber in ("ann", "bob"):
        await value(connection, "subscribe", stream="s", subscriber=subscriber)


@pytest.mark.parametrize("takeover", [None, timedelta(microseconds=1)])
@pytest.mark.usefixtures("stream")
async def test_a_member_holds_no_batch_of_another_subscription(
    connection: Connection, takeover: timedelta | None
) -> None:
    await publish(connection, 1, "s")
    of_ann = await next_batch(connection, "ann", member="m")
    of_bob = await next_batch(connection, "bob", member="m", takeover=takeover)
    assert of_bob != of_ann
    [about] = await rows(connection, "batch_info", batch=of_bob)
    assert about["subscriber"] == "bob"


@pytest.mark.parametrize("settle", ["retry_event", "fail_event"])
@pytest.mark.usefixtures("stream")
async def test_the_outcome_of_another_subscriber_is_ignored(
    connection: Connection, settle: str
) -> None:
    [event] = await publish(connection, 1, "s")
    for subscriber in ("ann", "bob"):
        batch = await next_batch(connection, subscriber)
        assert await value(connection, settle, batch=batch, event=event) is True
        assert await value(connection, settle, batch=batch, event=event) is False


@pytest.mark.usefixtures("stream")
async def test_a_tick_of_another_stream_ends_no_batch(connection: Connection) -> None:
    await value(connection, "create_stream", name="t")
    await publish(connection, 1, "s")
    await value(connection, "tick", stream="t")
    await publish(connection, 1, "s")
    await value(connection, "tick", stream="s")
    assert await read(connection, "ann") == [0, 0]


@pytest.mark.usefixtures("stream")
async def test_a_late_tick_moves_no_subscriber_back(
    connection: Connection, connect: Connect
) -> None:
    late = await connect()
    async with late.transaction():
        await value(late, "tick", stream="s")
        await publish(connection, 2, "s")
        assert await read(connection, "ann") == [0, 1]
    # The tick is older than what ann has seen: nothing is behind it for her, and no lock is needed.
    async with connection.transaction():
        assert await next_batch(connection, "ann") is None
        assert await connection.fetchval("select pg_current_xact_id_if_assigned() is null")
    await connection.execute("select messages.publish('s', '2')")
    assert await read(connection, "ann") == [2]
    assert await next_batch(connection, "ann") is None


@pytest.mark.usefixtures("stream")
async def test_a_forward_leaves_retries_of_others(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    await value(connection, "forward", stream="s", subscriber="carl", queue="q")
    [event] = await publish(connection, 1, "s")
    batch = await next_batch(connection, "ann")
    assert await value(connection, "retry_event", batch=batch, event=event, delay=HOUR)
    assert await value(connection, "finish_batch", batch=batch)
    assert await value(connection, "notifyq.forward_pending") == 1
    [info] = await rows(connection, "subscription_info", stream="s", subscriber="ann")
    assert info["retries"] == 1


@pytest.mark.usefixtures("stream")
async def test_skipped_events_are_not_retried(connection: Connection) -> None:
    await value(connection, "alter_stream", name="s", max_events=1)
    await publish(connection, 3, "s")
    await rows(connection, "maintain")
    skipped = await rows(connection, "dead_list", queue="s")
    assert skipped
    for row in skipped:
        assert row["event_id"] is None
        assert await connection.fetch("select messages.dead_retry($1)", row["id"]) == []
    assert await rows(connection, "message_list") == []
    assert await connection.fetchval("select count(*) from notifyq.redrive") == 0


async def test_a_dedup_key_is_taken_in_its_queue_alone(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    ids = [
        await value(connection, "publish", queue=queue, message=1, dedup_key="k", dedup_window=HOUR)
        for queue in ("default", "other", "default", "other")
    ]
    assert len(set(ids)) == 2
    assert ids[:2] == ids[2:]


async def test_a_received_message_is_merged_within_its_queue_only(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    await value(connection, "publish", queue="other", message=1, dedup_key="k")
    await value(connection, "publish", queue="default", message=1, dedup_key="another")
    sent = [
        {"position": str(number), "queue": "default", "message": 1, "dedup_key": "k"}
        for number in range(2)
    ]
    reports = [
        await connection.fetchrow("select * from messages.receive('a', $1)", [each])
        for each in sent
    ]
    assert [(row["published"], row["merged"]) for row in reports if row] == [(1, 0), (0, 1)]


async def test_messages_of_other_queues_take_no_room(connection: Connection) -> None:
    await publish(connection, 20)
    await rows(connection, "claim", quantity=5)
    await value(connection, "publish", queue="default", message=1, delay=HOUR)
    await value(connection, "create_queue", name="small", capacity=3)
    for _ in range(3):
        await publish(connection, 1, "small")
    with pytest.raises(QueueFullError):
        await publish(connection, 1, "small")
    await rows(connection, "take", queue="small")
    await publish(connection, 1, "small")
    with pytest.raises(QueueFullError):
        await publish(connection, 1, "small")


async def test_a_message_listed_twice_ends_once_by_its_own_token(connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    token = (await claim_one(connection))["lock_token"]
    ended = await connection.fetch(
        "select messages.finish_many($1, $2, $3::text[]::messages.message_status[])",
        [id_] * 3,
        [token - 1, token, token],
        ["failed", "success", "success"],
    )
    assert [row[0] for row in ended] == [id_]
    assert [row["status"] for row in await archived(connection, id_)] == ["success"]


async def test_a_session_that_lost_its_message_owns_none(
    connection: Connection, connect: Connect
) -> None:
    owner = await connect()
    [id_] = await publish(connection, 1)
    await owner.fetch("call messages.wait(array['default'], '0')")
    [own] = await rows(owner, "owned")
    assert await value(connection, "release", id=id_, lock_token=own["lock_token"])
    assert (await claim_one(connection))["id"] == id_
    assert await rows(owner, "owned") == []


async def test_an_ended_session_returns_no_message_claimed_by_a_worker(
    connection: Connection, connect: Connect
) -> None:
    first, second = await publish(connection, 2)
    doomed = await connect()
    await doomed.fetch("call messages.wait(array['default'], '0')")
    [claimed] = await rows(connection, "claim")
    assert claimed["id"] == second
    await terminate(connection, doomed)
    assert await value(connection, "notifyq.return_owned", quantity=10) == 1
    for id_, state in ((first, "waiting"), (second, "locked")):
        row = await alive(connection, id_)
        assert row["state"] == state
    assert await value(connection, "finish", id=second, lock_token=claimed["lock_token"])


async def test_a_message_claimed_after_the_index_search_is_not_returned(
    connection: Connection,
) -> None:
    first, second = await publish(connection, 2)
    await connection.execute("create index on messages.message using gin (message)")
    assert (await claim_one(connection))["id"] == first
    # As if it had been claimed between the index search and the lock of the row.
    await connection.execute(
        "create or replace function notifyq.find_by_index"
        "(queue text, quantity integer, filter jsonpath) returns bigint[] language sql "
        f"as 'select array[{first}, {second}]::bigint[]'"
    )
    found = await connection.fetch("select * from messages.claim(filter => '$.a == 1')")
    assert [row["id"] for row in found] == [second]
    found = await connection.fetch("select * from messages.claim(filter => '$.a == 1')")
    assert found == []


async def test_each_condition_of_a_redrive_excludes_messages(
    connection: Connection, stream: None
) -> None:
    await value(connection, "create_queue", name="other")
    await let_fail(connection)
    for queue in ("default", "other"):
        await publish(connection, 1, queue)
        [row] = await rows(connection, "claim", queues=[queue])
        await value(connection, "finish", **lock_of(row), status="rejected")
    [event] = await publish(connection, 1, "s")
    for subscriber in ("ann", "bob"):
        batch = await next_batch(connection, subscriber)
        assert await value(connection, "fail_event", batch=batch, event=event)
        assert await value(connection, "finish_batch", batch=batch)
    old = "update messages.message_archive set archived_at = archived_at - interval '1 hour' "
    await connection.execute(old + "where queue = 'other'")
    half = await connection.fetchval("select now() - interval '30 minutes'")
    transaction = connection.transaction
    for conditions, quantity in (
        ({}, 5),
        ({"queue": "default"}, 2),
        ({"queue": "default", "status": "failed"}, 1),
        ({"status": "rejected"}, 2),
        ({"status": "rejected", "since": half}, 1),
        ({"status": "rejected", "until": half}, 1),
        ({"queue": "s"}, 2),
        ({"queue": "s", "subscriber": "ann"}, 1),
        ({"subscriber": "bob"}, 1),
    ):
        undo = transaction()
        await undo.start()
        assert await value(connection, "redrive", **conditions) == quantity, conditions
        assert await value(connection, "redrive", **conditions) == 0
        await undo.rollback()


async def test_receipts_of_another_source_do_not_replace_lost_ones(connection: Connection) -> None:
    await connection.execute(
        "insert into notifyq.relay_receipt (role, source, position) "
        "values ('r', 'a', '1'), ('r', 'b', '2'), ('other', 'a', '3')"
    )
    check = "select notifyq.check_receipts('r', $1, $2)"
    await connection.execute(check, "a", ["1"])
    for source, positions in (("a", ["2"]), ("b", ["1"]), ("a", ["3"]), ("a", ["1", "2"])):
        with pytest.raises(LostReceiptsError):
            await connection.execute(check, source, positions)


@pytest.mark.parametrize(
    ("scope", "is_released"), [("live", False), ("waiting", False), ("waiting", True)]
)
async def test_a_newer_message_does_not_replace_one_without_its_key(
    connection: Connection, scope: str, is_released: bool
) -> None:
    """As if it had been claimed between the query for the key and the lock of the row."""
    id_ = await value(
        connection, "publish", queue="default", message=1, dedup_key="k", dedup_scope=scope
    )
    held = await claim_one(connection)
    if is_released:
        assert await value(connection, "release", **lock_of(held))
    renewed = await connection.fetchval(
        "select notifyq.replace_message(m.id, m, '2', 'replace', null) from messages.message as m"
    )
    assert renewed == (id_ if scope == "live" else None)
    row = await alive(connection, id_)
    assert row["message"] == 1


@pytest.mark.parametrize("state", ["waiting", "scheduled"])
async def test_a_full_queue_drops_its_own_oldest_message_of_the_lowest_priority(
    connection: Connection, state: str
) -> None:
    """Not an older one of another queue, nor an older one that is more important."""
    delay = HOUR if state == "scheduled" else None
    older = [
        await value(connection, "publish", queue="default", message=1, priority=-5, delay=after)
        for after in (None, HOUR)
    ]
    await value(connection, "create_queue", name="ring", capacity=3, overflow="drop_oldest")
    # A scheduled one goes by its instant, whatever its priority.
    ids = [
        await value(
            connection,
            "publish",
            queue="ring",
            message=1,
            priority=priority,
            delay=delay and delay * (2 if number == 0 else 1),
        )
        for number, priority in enumerate((1, 0, 0))
    ]
    newest = await value(
        connection, "publish", queue="ring", message=1, priority=1, delay=delay and delay * 3
    )
    left = sorted(row["id"] for row in await rows(connection, "message_list"))
    assert left == sorted([*older, ids[0], ids[2], newest])
    [dropped] = await archived(connection, ids[1])
    assert (dropped["status"], dropped["queue"]) == ("rejected", "ring")


@pytest.mark.usefixtures("stream")
async def test_a_poll_of_a_member_waits_for_no_batch_of_another_subscription(
    connection: Connection,
) -> None:
    await publish(connection, 1, "s")
    assert await read(connection, "bob", member="m") == [0]
    assert await next_batch(connection, "ann", member="m")
    async with connection.transaction():
        assert await next_batch(connection, "bob", member="m") is None
        assert await connection.fetchval("select pg_current_xact_id_if_assigned() is null")


@pytest.mark.usefixtures("stream")
async def test_a_seek_leaves_the_outcomes_of_another_subscriber(connection: Connection) -> None:
    first, second = await publish(connection, 2, "s")
    batch = await next_batch(connection, "bob")
    assert await value(connection, "retry_event", batch=batch, event=second)
    assert await value(connection, "finish_batch", batch=batch)
    batch = await next_batch(connection, "bob")
    assert await value(connection, "fail_event", batch=batch, event=second)
    await value(connection, "seek", stream="s", subscriber="ann", position="start")
    # It has failed once, and not twice.
    assert await value(connection, "fail_event", batch=batch, event=second) is False
    assert await value(connection, "dead_count", queue="s", subscriber="bob") == 1
    assert await value(connection, "finish_batch", batch=batch)
    await value(connection, "seek", stream="s", subscriber="bob", position="start")
    batch = await next_batch(connection, "bob")
    assert await value(connection, "retry_event", batch=batch, event=first)
    assert await value(connection, "finish_batch", batch=batch)
    batch = await next_batch(connection, "bob")
    await value(connection, "seek", stream="s", subscriber="ann", position="start")
    # What is handed out to bob stays in his batch.
    events = await rows(connection, "batch_events", batch=batch)
    assert [event["id"] for event in events] == [first]


async def test_marks_of_other_targets_and_sources_are_neither_shown_nor_forgotten(
    connection: Connection,
) -> None:
    await connection.execute(
        "insert into notifyq.relay_mark (role, target, source, position, noted_at) "
        "values (user, 't', 's', '1', now()), (user, 'other', 's', '2', now()), "
        "(user, 't', 'other', '3', now()), (user, 't', 's', '4', now() - interval '2 hours'), "
        "('other', 't', 's', '5', now())"
    )
    marks = await connection.fetch("select notifyq.relay_marks('t', 's', interval '1 hour')")
    assert [row[0] for row in marks] == ["1"]
    assert await connection.fetchval("select notifyq.relay_forget('t')") == 3
    left = "select array_agg(position order by position) from notifyq.relay_mark"
    assert await connection.fetchval(left) == ["2", "5"]


@pytest.mark.usefixtures("stream")
async def test_a_seek_keeps_retries_that_are_read_again(connection: Connection) -> None:
    [event] = await publish(connection, 1, "s")
    batch = await next_batch(connection, "ann")
    assert await value(connection, "retry_event", batch=batch, event=event)
    assert await value(connection, "finish_batch", batch=batch)
    assert await next_batch(connection, "ann") is not None
    await value(connection, "seek", stream="s", subscriber="ann", position="now")
    assert await read(connection, "ann") == [0]


@pytest.mark.usefixtures("stream")
async def test_a_member_takes_over_no_batch_that_is_finished(connection: Connection) -> None:
    await publish(connection, 1, "s")
    assert await read(connection, "ann", member="m") == [0]
    await connection.execute("select messages.publish('s', '1')")
    takeover = timedelta(microseconds=1)
    assert await read(connection, "ann", member="n", takeover=takeover) == [1]
