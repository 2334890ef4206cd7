"""Batches: one call for many messages, and an outcome for each of them."""

import asyncio
import threading
from typing import Any

import pytest

from notifyq import App, ConfigurationError, Message, Reject, Retry, Transaction
from notifyq.telemetry import HandlerStuck, LockLost, MessageFinished
from support.database import Connection, expire, until, value
from support.rows import register
from support.running import Events, statuses, working


async def ends(connection: Connection) -> dict[Any, str]:
    """How each message has ended, by its payload."""
    rows = await connection.fetch(
        "select message, status::text, details, result from messages.message_archive "
        "where queue = 'many' order by id"
    )
    return {row["message"]: row["status"] for row in rows}


async def test_a_call_takes_what_there_is_up_to_its_size(
    app: App, connection: Connection, events: Events
) -> None:
    calls: list[tuple[list[int], list[int]]] = []

    @app.handler("many", batch=4)
    async def many(numbers: list[int], messages: list[Message]) -> None:
        calls.append((numbers, [message.id for message in messages]))

    await app.create_queues()
    handles = await many.publish_many(range(10))
    async with working(app, events, concurrency=1):
        await events.wait(MessageFinished, 10)
        await asyncio.gather(*(handle.result(timeout=10) for handle in handles))
    assert [numbers for numbers, _ in calls] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [id_ for _, ids in calls for id_ in ids] == handles
    assert await statuses(connection, "many") == {"success": 10}


@pytest.mark.parametrize(("quantity", "batch", "linger"), [(3, 3, 30), (1, 100, 0.02)])
async def test_the_first_one_waits_for_others_and_not_longer_than_it_lingers(
    app: App, events: Events, quantity: int, batch: int, linger: float
) -> None:
    calls: list[list[int]] = []

    @app.handler("many", batch=batch, linger=linger)
    async def many(numbers: list[int]) -> None:
        calls.append(numbers)

    async with working(app, events):
        for number in range(quantity):
            await many.publish(number)
        await events.wait(MessageFinished, quantity)
    assert calls == [[*range(quantity)]]


async def test_each_message_has_an_outcome_of_its_own(
    app: App, connection: Connection, events: Events
) -> None:
    @app.handler("many", batch=10)
    def many(numbers: list[int]) -> list[int | Reject | Retry | Exception | None]:
        outcomes: list[int | Reject | Retry | Exception | None] = [
            7, None, Reject("unfit"), Retry("later"), ValueError("broken")
        ]  # fmt: skip
        assert numbers == [0, 1, 2, 3, 4]
        return outcomes

    await app.create_queues()
    handles = await many.publish_many(range(5))
    wrong = await app.publish("many", "no number")
    async with working(app, events):
        await events.wait(MessageFinished, 6)
    assert await ends(connection) == {
        0: "success",
        1: "success",
        2: "rejected",
        3: "failed",
        4: "failed",
        "no number": "rejected",
    }
    assert [await handle.result() for handle in handles[:2]] == [7, None]
    details = {
        row["id"]: row["details"]
        for row in await connection.fetch("select id, details from messages.message_archive")
    }
    assert details[handles[2]] == "unfit"
    assert details[handles[3]] == "later"
    assert details[handles[4]].startswith("ValueError: broken")
    assert "the payload is not valid" in details[wrong]


@pytest.mark.parametrize(
    ("returned", "details"),
    [
        (ValueError("all of them"), "ValueError: all of them"),
        ([1], "a list with an outcome for each of its 3 messages, not 1 of them"),
        (5, "a list with an outcome for each of its 3 messages, not no list"),
    ],
)
async def test_what_is_wrong_with_the_call_fails_all(
    app: App, connection: Connection, events: Events, returned: Any, details: str
) -> None:
    @app.handler("many", batch=10)
    async def many(numbers: list[int]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    await app.create_queues()
    await many.publish_many(range(3))
    async with working(app, events):
        done = await events.wait(MessageFinished, 3)
    assert {event.status for event in done} == {"failed"}
    assert all(details in (event.details or "") for event in done)
    assert await statuses(connection, "many") == {"failed": 3}


async def test_a_lock_that_was_lost_does_no_harm_to_the_others(
    app: App, connection: Connection, events: Events
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.handler("many", batch=3)
    async def many(numbers: list[int]) -> list[int]:
        begun.set()
        await may_end.wait()
        return numbers

    await app.create_queues()
    handles = await many.publish_many(range(3))
    async with working(app, events):
        await begun.wait()
        await expire(connection, handles[1])
        await value(connection, "reap")
        may_end.set()
        await events.wait(LockLost)
        await events.wait(MessageFinished, 2)
    assert [event.message_id for event in events.of(LockLost)] == [handles[1]]
    assert await ends(connection) == {0: "success", 1: "lock_expired", 2: "success"}


async def test_a_timeout_ends_the_whole_call(
    app: App, connection: Connection, events: Events
) -> None:
    @app.handler("many", batch=3, timeout=0.05)
    async def many(numbers: list[int]) -> None:
        await asyncio.Event().wait()

    await app.create_queues()
    await many.publish_many(range(3))
    async with working(app, events):
        done = await events.wait(MessageFinished, 3)
    assert all("longer than its timeout" in (event.details or "") for event in done)
    assert await statuses(connection, "many") == {"failed": 3}


async def test_a_stop_gives_back_what_lingers_and_what_runs_too_long(
    app: App, connection: Connection, events: Events
) -> None:
    begun = asyncio.Event()

    @app.handler("many", batch=2, linger=60)
    async def many(numbers: list[int]) -> None:
        begun.set()
        await asyncio.Event().wait()

    await app.create_queues()
    async with working(app, events, grace=0) as worker:
        await many.publish_many(range(3))
        await begun.wait()
        await until(
            lambda: connection.fetchval(
                "select count(*) = 3 from messages.message where state = 'locked'"
            ),
            "all three are claimed",
        )
        worker.stop()
    rows = await connection.fetch("select state::text, attempts from messages.message")
    assert [tuple(row) for row in rows] == [("waiting", 0)] * 3
    assert worker.counts == {"released": 3}


async def test_a_sync_batch_past_its_timeout_is_reported_as_stuck_once(
    app: App, events: Events
) -> None:

    let_go = threading.Event()

    @app.handler("many", batch=2, timeout=0.05)
    def many(numbers: list[int]) -> None:
        let_go.wait(20)

    await app.create_queues()
    await many.publish_many(range(2))
    async with working(app, events):
        await events.wait(MessageFinished, 2)
        let_go.set()
    assert len(events.of(HandlerStuck)) == 1


async def test_a_transaction_finishes_all_or_none(
    app: App, connection: Connection, events: Events
) -> None:
    """A lost lock undoes the call, and the others are handled again without it."""
    await connection.execute("create table public.accounts (entry int)")
    calls: list[list[int]] = []
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.handler("many", batch=3, transactional=True)
    async def many(numbers: list[int], connection: Transaction) -> list[int | Reject]:
        calls.append(numbers)
        await connection.executemany(
            "insert into public.accounts values ($1)", [(n,) for n in numbers]
        )
        begun.set()
        await may_end.wait()
        return [number if number < 2 else Reject("too large") for number in numbers]

    await app.create_queues()
    handles = await many.publish_many(range(3))
    async with working(app, events):
        await begun.wait()
        await expire(connection, handles[0])
        await value(connection, "reap")
        may_end.set()
        await events.wait(LockLost)
        await events.wait(MessageFinished, 1, status="success")
    assert calls[0] == [0, 1, 2]
    assert await ends(connection) == {0: "lock_expired", 1: "success", 2: "rejected"}
    rows = await connection.fetch("select entry from public.accounts order by entry")
    assert [row[0] for row in rows] == [1]
    (same,) = await connection.fetch(
        "select count(distinct a.xid) from messages.message_archive as a where status = 'success'"
    )
    assert same[0] == 1


async def test_a_batch_takes_a_slot_whatever_its_size(app: App, events: Events) -> None:
    running, most = 0, 0

    @app.handler("many", batch=5)
    async def many(numbers: list[int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    await app.create_queues()
    await many.publish_many(range(100))
    async with working(app, events, concurrency=2) as worker:
        await events.wait(MessageFinished, 100)
    assert most == 2
    assert worker.counts == {"success": 100}


def test_a_batch_is_taken_as_a_list() -> None:
    def one(payload: int) -> None: ...
    def message(messages: Message) -> None: ...
    def any_list(payload: list[Any]) -> None: ...
    def bare(payload) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigurationError, match=r"annotate 'payload' with .* as list\[int\]"):
        register(one, batch=2)
    with pytest.raises(ConfigurationError, match=r"list\[notifyq.Message\]"):
        register(message, batch=2)
    with pytest.raises(ConfigurationError, match="batch must be between 1 and 10000, not 0"):
        register(any_list, batch=0)
    assert register(any_list, batch=2).payload is None
    assert register(bare, batch=2).payload is None
