"""Forget: what messages carried is deleted from each part, in steps, and counted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError
from support.database import (
    Connect,
    Connection,
    archived,
    claim_one,
    live,
    lock_of,
    one_row,
    rows,
    value,
)

KEY = "customer-42"
FORGET = (
    "select counts, next from messages.forget($1, $2::text::jsonpath, $3, after => $4, "
    "live => $5, dry_run => $6, quantity => $7, budget => $8)"
)


async def forget(
    connection: Connection,
    key: str | None = KEY,
    *,
    filter: str | None = None,
    queue: str | None = None,
    live: bool = False,
    dry_run: bool = False,
    quantity: int = 2,
    budget: timedelta = timedelta(seconds=5),
) -> dict[str, int]:
    """Go through all steps; return the counts that are not zero."""
    total: dict[str, int] = {}
    after: Any = None
    while True:
        counts, after = await one_row(
            connection, FORGET, key, filter, queue, after, live, dry_run, quantity, budget
        )
        for part, count in counts.items():
            total[part] = total.get(part, 0) + count
        if after is None:
            return {part: count for part, count in total.items() if count}


async def publish(connection: Connection, message: Any = "secret", **options: Any) -> int:
    given = {"queue": "default", "message": message, "key": KEY} | options
    found: int = await value(connection, "publish", **given)
    return found


async def fail(connection: Connection, details: str = 'bad value "secret"', **options: Any) -> int:
    number = await publish(connection, **options)
    claimed = await claim_one(connection)
    assert claimed["id"] == number
    await value(
        connection, "finish", **lock_of(claimed), status="failed", details=details,
        result=details,
    )  # fmt: skip
    return number


async def texts(connection: Connection) -> str:
    """All rows of all tables, as text."""
    tables = await connection.fetch(
        "select format('%I.%I', schemaname, tablename) from pg_tables "
        "where schemaname in ('messages', 'notifyq')"
    )
    found = []
    for (table,) in tables:
        found += [row[0] for row in await connection.fetch(f"select t::text from {table} as t")]
    return "\n".join(found)


@pytest.fixture
async def filled(connection: Connection) -> dict[str, int]:
    """Give ids of messages that leave something in each part, and of one with another key."""
    await connection.execute("update messages.queue set max_attempts = 1")
    failed = await fail(
        connection, dedup_key=f"of {KEY}", dedup_window=timedelta(days=1), headers={"h": "secret"}
    )
    unkeyed = await fail(connection, key=None, dedup_key=KEY)
    await connection.execute(
        f"""
        insert into notifyq.attempt_log (message_id, lock_token, attempt, queue, lines)
        values ({failed}, 1, 1, 'default',
          array[row(now(), 'INFO', 'a', 'secret')]::notifyq.log_line[]);
        insert into notifyq.step_archive (
          message_id, number, name, kind, state, queue, attempt, created_at, value
        )
        values ({failed}, 1, 'one', 'step', 'done', 'default', 1, now(), '"secret"');
        insert into notifyq.message_output (message_id, number, attempt, chunk)
        values ({failed}, 1, 1, '"secret"');
        insert into notifyq.message_progress (message_id, fraction, note)
        values ({failed}, 0.5, 'secret');
        insert into notifyq.signal (name, message_id, payload, forget_at)
        values ('go', {failed}, '"secret"', 'infinity');
        insert into notifyq.rollup_error
        select l.id, 'hour', date_trunc('hour', a.archived_at, 'UTC'), a.queue, a.status,
          notifyq.error_fingerprint(a.details), 1, now(), now(), a.details
        from notifyq.create_lake('/lake') as l, messages.message_archive as a
        where a.id = {failed};
        """
    )
    other = await fail(connection, "other", message="kept", key="customer-43")
    return {"failed": failed, "unkeyed": unkeyed, "other": other}


COUNTS = {
    "archive": 2, "attempts": 2, "logs": 1, "steps": 1, "output": 2, "signals": 1, "dedup_keys": 1,
    "samples": 1,
}  # fmt: skip


async def test_everything_of_archived_messages_is_deleted(
    connection: Connection, filled: dict[str, int]
) -> None:
    before = await texts(connection)
    assert "secret" in before
    assert await forget(connection, dry_run=True) == COUNTS
    assert await texts(connection) == before
    assert await forget(connection) == COUNTS
    after = await texts(connection)
    assert "secret" not in after
    assert KEY not in after
    assert await archived(connection, filled["other"])
    assert "customer-43" in after
    assert await forget(connection) == {}


@pytest.mark.parametrize("budget", [timedelta(0), timedelta(seconds=5)])
async def test_steps_are_small_and_reach_all(connection: Connection, budget: timedelta) -> None:
    ids = [await fail(connection) for _ in range(7)]
    future = datetime.now(UTC) + timedelta(days=1)
    await connection.execute(
        "update messages.message_archive set archived_at = $1 where id = $2", future, ids[3]
    )
    first = await one_row(
        connection, FORGET, KEY, None, None, {"part": "archive"}, False, False, 2,
        timedelta(seconds=5),
    )  # fmt: skip
    assert first["counts"]["archive"] == 2
    assert (await forget(connection, budget=budget))["archive"] == 5
    assert await connection.fetchval("select count(*) from messages.message_archive") == 0


async def test_a_payload_or_a_queue_selects(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    here = await fail(connection, message={"email": "ann"}, key=None)
    there = await publish(connection, {"email": "ann"}, queue="other")
    await connection.execute("select messages.cancel($1)", there)
    bob = await fail(connection, message={"email": "bob"})
    ann = '$.email == "ann"'
    assert (await forget(connection, None, filter=ann, queue="other"))["archive"] == 1
    assert not await archived(connection, there)
    assert await archived(connection, here)
    assert await forget(connection, KEY, filter=ann) == {}
    assert (await forget(connection, None, filter=ann))["archive"] == 1
    assert await archived(connection, bob)


async def test_live_messages_are_counted_or_cancelled_first(connection: Connection) -> None:
    waiting, later = await publish(connection), await publish(connection, delay=timedelta(days=1))
    await publish(connection, key="customer-43")
    locked = await publish(connection, priority=1, dedup_key=KEY, key=None, dedup_scope="waiting")
    claimed = await claim_one(connection)
    assert claimed["id"] == locked
    assert await forget(connection) == {"live": 3}
    assert await forget(connection, live=True, dry_run=True) == {"cancelled": 2, "live": 1}
    assert await live(connection, waiting)
    assert await forget(connection, live=True) == {"cancelled": 2, "live": 1}
    for number in (waiting, later):
        assert await live(connection, number) is None
        assert await archived(connection, number) == []
    await value(connection, "finish", **lock_of(claimed))
    assert await forget(connection) == {"archive": 1}
    assert await connection.fetchval("select count(*) from messages.message") == 1


async def test_a_message_that_a_worker_is_about_to_claim_stays(
    connection: Connection, connect: Connect
) -> None:
    second = await connect()
    number = await publish(connection)
    async with second.transaction():
        await second.execute("select from messages.message where id = $1 for update", number)
        async with asyncio.timeout(20):
            assert await forget(connection, live=True) == {"live": 1}
    assert await forget(connection, live=True) == {"cancelled": 1}


async def publish_events(connection: Connection, *keys: str) -> None:
    for key in keys:
        await value(connection, "publish", queue="orders", message={"of": key}, key=key)


async def test_events_are_counted_or_deleted(connection: Connection) -> None:
    await value(connection, "create_stream", name="orders")
    await publish_events(connection, KEY, "other", KEY)
    assert await forget(connection, dry_run=True) == {"live_events": 2}
    assert await forget(connection, queue="default") == {}
    assert await forget(connection, live=True, dry_run=True) == {"events": 2}
    assert await forget(connection, live=True, budget=timedelta(0)) == {"events": 2}
    assert await connection.fetchval("select array_agg(key) from messages.event") == ["other"]
    assert await forget(connection, live=True) == {}


async def test_events_of_an_open_batch_stay_until_it_ends(connection: Connection) -> None:
    await value(connection, "create_stream", name="orders")
    await value(connection, "subscribe", stream="orders", subscriber="s", position="start")
    await publish_events(connection, KEY, "other")
    batch = await value(connection, "next_batch", stream="orders", subscriber="s")
    [event, other] = await rows(connection, "batch_events", batch=batch)
    await publish_events(connection, KEY)
    assert await forget(connection, live=True) == {"live_events": 1, "events": 1}
    await value(connection, "retry_event", batch=batch, event=event["id"])
    await value(connection, "finish_batch", batch=batch)
    # Now in its stream, and waiting to be delivered again.
    assert await forget(connection) == {"live_events": 2}
    assert await forget(connection, live=True, quantity=1) == {"events": 2}
    assert KEY not in await texts(connection)
    assert other["key"] == "other"


async def test_what_people_have_set_is_counted_only(connection: Connection) -> None:
    await value(connection, "alter_queue", name="default", fair=True)
    await value(connection, "set_share", queue="default", key=KEY, weight=2.0)
    await value(connection, "schedule", name="s", cron="@daily", queue="default", key=KEY)
    await value(connection, "schedule", name="t", cron="@daily", queue="default", message="x")
    assert await forget(connection, live=True) == {"schedules": 1, "settings": 1}
    assert await forget(connection, None, filter='$ == "x"') == {"schedules": 1}


async def test_it_is_refused_without_a_key_and_a_filter(connection: Connection) -> None:
    with pytest.raises(InvalidArgumentError, match="needs a key or a filter"):
        await forget(connection, None)
    with pytest.raises(InvalidArgumentError, match="gives values instead"):
        await forget(connection, filter="$.n")
    with pytest.raises(InvalidArgumentError, match="no part"):
        await value(connection, "forget", key=KEY, after={"part": "moon"})


async def test_payloads_of_a_lake_are_matched(connection: Connection) -> None:
    payloads = ['{"n": 1}', '{"n": 2}', '"text"', '{"at": "2026-03-01T12:00:00+00:00"}']
    for path, wanted in (
        ("$.n == 2", [False, True, False, False]),
        ('$.at.datetime() < "2026-03-02".datetime()', [False, False, False, True]),
    ):
        assert wanted == await connection.fetchval(
            "select notifyq.match_payloads($1, $2::text::jsonpath)", payloads, path
        )
