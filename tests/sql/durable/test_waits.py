"""Parked messages: what wakes them, in every order of commits, and what they hold meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from notifyq import (
    InvalidArgumentError,
    LockNotHeldError,
    MessageLimitError,
    MessageNotFoundError,
    QueueDeniedError,
)
from support.database import Connect, Connection, alive, publish, rows, until_blocked, value

Lock = tuple[int, int]


async def lock(connection: Connection, queue: str = "default") -> Lock:
    await publish(connection, 1, queue)
    return await again(connection, queue)


async def again(connection: Connection, queue: str = "default") -> Lock:
    [row] = await rows(connection, "claim", queues=[queue])
    return row["id"], row["lock_token"]


async def sleep(connection: Connection, held: Lock, delay: str) -> bool:
    call = "select messages.sleep($1, $2, 'nap', delay => $3::text::interval)"
    return bool(await connection.fetchval(call, *held, delay))


async def wait(connection: Connection, held: Lock, signal: str = "go", **options: Any) -> Any:
    return await connection.fetchrow(
        "select * from messages.await_signal($1, $2, 'wait', $3, timeout => $4::text::interval)",
        *held,
        signal,
        options.get("timeout"),
    )


async def test_a_parked_message_has_no_lock_no_attempt_and_no_worker(
    connection: Connection,
) -> None:
    held = await lock(connection)
    assert await sleep(connection, held, "1 hour") is False
    row = await alive(connection, held[0])
    assert (row["state"], row["attempts"], row["locked_by"]) == ("scheduled", 0, None)
    with pytest.raises(LockNotHeldError):
        await sleep(connection, held, "1 hour")
    [parked] = await rows(connection, "parked")
    assert (parked["id"], parked["name"], parked["kind"]) == (held[0], "nap", "sleep")
    await connection.execute("select messages.run_now($1)", held[0])
    resumed = await again(connection)
    # It was woken before its time: the step decides.
    assert await sleep(connection, resumed, "1 second") is False
    await connection.execute("update notifyq.step set due_at = now() - interval '1 hour'")
    await connection.execute("select messages.run_now($1)", held[0])
    resumed = await again(connection)
    assert await sleep(connection, resumed, "9 hours") is True
    assert (await rows(connection, "message_list"))[0]["attempts"] == 1


@asynccontextmanager
async def uncommitted(connection: Connection, **options: Any) -> AsyncIterator[None]:
    async with connection.transaction(**options):
        yield


async def is_woken(connection: Connection, held: Lock) -> bool:
    """Whether the message is handed out again, if need be by maintenance."""
    await connection.execute("select messages.maintain()")
    await connection.execute("select messages.maintain()")
    found = await rows(connection, "claim", queues=["default"])
    return [row["id"] for row in found] == [held[0]]


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
@pytest.mark.parametrize("kind", ["to all", "to one"])
@pytest.mark.parametrize("order", ["signal commits last", "wait commits last", "signal first"])
async def test_no_signal_is_missed(
    connection: Connection, connect: Connect, order: str, kind: str, isolation: Any
) -> None:
    sender = await connect()
    held = await lock(connection)
    id_ = held[0] if kind == "to one" else None

    async def send() -> int:
        return int(await sender.fetchval("select messages.signal('go', '7', $1)", id_))

    if order == "signal first":
        assert await send() == 0
        assert (await wait(connection, held))["state"] == "received"
        return
    if order == "signal commits last":
        async with uncommitted(sender, isolation=isolation):
            assert await send() == 0
            if kind == "to one":
                # The sender has written its message: the wait comes after its commit.
                pass
            else:
                assert (await wait(connection, held))["state"] == "parked"
        if kind == "to one":
            assert (await wait(connection, held))["state"] == "received"
            return
    else:
        async with uncommitted(connection, isolation=isolation):
            assert (await wait(connection, held))["state"] == "parked"
            if kind == "to all":
                assert await send() == 0
        if kind == "to one":
            assert await send() == 1
    assert await is_woken(connection, held)
    row = await rows(connection, "message_find", id=held[0])
    resumed = (held[0], row[0]["lock_token"])
    found = await wait(connection, resumed)
    assert (found["state"], found["payload"]) == ("received", 7)
    # Recorded: the next call gets the same.
    assert (await wait(connection, resumed))["payload"] == 7


async def test_signals_to_one_message_queue_up_before_one_to_all(connection: Connection) -> None:
    held = await lock(connection)
    await connection.execute("select messages.signal('go', '0')")
    for n in (1, 2):
        await connection.execute("select messages.signal('go', $1, $2)", n, held[0])
    found = [
        await connection.fetchval(
            "select payload from messages.await_any($1, $2, $3, '{stop,go}')", *held, str(n)
        )
        for n in range(4)
    ]
    assert found == [1, 2, 0, 0]
    with pytest.raises(MessageNotFoundError, match="no live message 77"):
        await connection.execute("select messages.signal('go', 'null', 77)")
    with pytest.raises(MessageLimitError, match="a signal takes 1048576"):
        await connection.execute("select messages.signal('big', $1)", "x" * 1_048_577)
    with pytest.raises(InvalidArgumentError, match="1 to 200 bytes"):
        await connection.execute("select messages.signal('')")


async def test_a_deadline_is_fixed_by_the_first_call_and_a_late_signal_counts(
    connection: Connection,
) -> None:
    held = await lock(connection)
    assert (await wait(connection, held, timeout="1 hour"))["state"] == "parked"
    await connection.execute("update notifyq.step set due_at = now() - interval '1 minute'")
    await connection.execute("select messages.run_now($1)", held[0])
    await connection.execute("select messages.signal('go', '1')")
    resumed = await again(connection)
    assert (await wait(connection, resumed, timeout="9 hours"))["state"] == "received"
    other = await lock(connection)
    assert (await wait(connection, other, "never", timeout="0"))["state"] == "timed_out"


async def test_signals_to_all_do_not_enter_queues_with_grants(
    connection: Connection, connect: Connect
) -> None:
    holder = await connect()
    await connection.execute("select messages.create_queue('vault')")
    held = await lock(connection, "vault")
    await connection.execute("select messages.grant_queue('vault', 'pg_monitor', true, true)")
    await connection.execute("select messages.signal('go')")
    assert (await wait(connection, held))["state"] == "parked"
    call = "select messages.signal('go', '1', $1)"
    await connection.execute("set role notifyq_publisher; set lock_timeout = '10s'")
    try:
        async with holder.transaction():
            locked = "select from messages.message where id = $1 for update"
            await holder.execute(locked, held[0])
            with pytest.raises(QueueDeniedError):  # without a look at its lock
                await connection.execute(call, held[0])
    finally:
        await connection.execute("reset role")
    assert await connection.fetchval(call, held[0]) == 1


async def end_of(connection: Connection, held: Lock, *ids: int, **options: Any) -> list[Any]:
    return await connection.fetch(
        "select * from messages.await_end($1, $2, 'end', $3, $4::text::interval)",
        *held,
        list(ids),
        options.get("timeout"),
    )


async def test_the_first_ends_of_all_are_stored(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('child')")
    parent = await lock(connection)
    children = await publish(connection, 3, "child")
    found = await end_of(connection, parent, *children)
    assert [row["state"] for row in found] == ["parked"]
    for number, child in enumerate(children):
        assert await rows(connection, "claim", queues=["default"]) == []
        got = await again(connection, "child")
        assert got[0] == child
        status = "failed" if number == 1 else "success"
        await value(connection, "finish", id=child, lock_token=got[1], status=status, result=number)
    await connection.execute("delete from messages.message_archive")
    resumed = await again(connection)
    found = await end_of(connection, resumed, *children)
    assert [(row["state"], row["message_id"], row["status"]) for row in found] == [
        ("done", children[0], "success"),
        ("done", children[1], "failed"),
        ("done", children[2], "success"),
    ]
    assert found[2]["result"] == 2


async def test_waits_for_an_end_that_cannot_come_are_refused(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('line', ordered => true)")
    first = await value(connection, "publish", queue="line", message=1, key="k")
    later = await value(connection, "publish", queue="line", message=2, key="k")
    held = await again(connection, "line")
    assert held[0] == first
    with pytest.raises(InvalidArgumentError, match="waits for message"):
        await end_of(connection, held, later)
    with pytest.raises(InvalidArgumentError, match="its own end"):
        await end_of(connection, held, first)
    with pytest.raises(InvalidArgumentError, match="at least one id"):
        await end_of(connection, held)
    with pytest.raises(MessageNotFoundError):
        await end_of(connection, held, 9999)


async def test_an_end_beside_the_wait_for_it_is_not_missed(
    connection: Connection, connect: Connect
) -> None:
    await connection.execute("select messages.create_queue('child')")
    worker, observer = await connect(), await connect()
    parent = await lock(connection)
    child = await lock(worker, "child")
    async with connection.transaction():
        assert (await end_of(connection, parent, child[0]))[0]["state"] == "parked"
        finishing = asyncio.ensure_future(worker.execute("select messages.finish($1, $2)", *child))
        await until_blocked(observer, worker)
    await finishing
    resumed = await again(connection)
    assert (await end_of(connection, resumed, child[0]))[0]["status"] == "success"


async def test_a_signal_beside_the_end_of_its_message_is_refused(
    connection: Connection, connect: Connect
) -> None:
    sender, observer = await connect(), await connect()
    held = await lock(connection)
    async with connection.transaction():
        await connection.execute("select messages.finish($1, $2)", *held)
        sending = asyncio.ensure_future(
            sender.fetchval("select messages.signal('go', 'null', $1)", held[0])
        )
        await until_blocked(observer, sender)
    with pytest.raises(MessageNotFoundError, match="no live message"):
        await sending


async def waiting_parent(connection: Connection, queue: str = "child") -> tuple[int, list[Lock]]:
    """A parent that is parked until its two children have ended, which are locked."""
    await connection.execute("select messages.create_queue($1)", queue)
    parent = await lock(connection)
    children = [await lock(connection, queue) for _ in range(2)]
    for id_, _ in children:
        await connection.execute(
            "select is_new from notifyq.record_step($1, $2, $3, 'null', false, $4)",
            *parent,
            f"publish {id_}",
            id_,
        )
    await end_of(connection, parent, *(id_ for id_, _ in children))
    return parent[0], children


async def test_children_that_end_and_a_cancel_of_all_do_not_wait_for_each_other(
    connection: Connection, connect: Connect
) -> None:
    parent, (first, second) = await waiting_parent(connection)
    canceller, finisher, observer = await connect(), await connect(), await connect()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("select from messages.message where id = $1 for update", first[0])
    cancelling = asyncio.create_task(
        canceller.fetchval("select messages.cancel($1, running => true, children => true)", parent)
    )
    await until_blocked(observer, canceller)
    assert await finisher.fetchval("select messages.finish($1, $2)", *second, timeout=10)
    await transaction.rollback()
    assert await cancelling
    assert await rows(connection, "message_list") == []


async def test_children_that_end_and_a_drop_of_their_queue_do_not_wait_for_each_other(
    connection: Connection, connect: Connect
) -> None:
    _, (first, second) = await waiting_parent(connection, "default")
    dropper, finisher, observer = await connect(), await connect(), await connect()
    async with connection.transaction():
        await connection.execute("select from messages.message where id = $1 for update", first[0])
        dropping = asyncio.create_task(value(dropper, "drop_queue", name="default", force=True))
        await until_blocked(observer, dropper)
        assert await finisher.fetchval("select messages.finish($1, $2)", *second, timeout=4)
    assert await dropping == 2


async def test_the_last_end_waits_for_what_changes_the_parent(
    connection: Connection, connect: Connect
) -> None:
    parent, (first, second) = await waiting_parent(connection)
    finisher, observer = await connect(), await connect()
    assert await connection.fetchval("select messages.finish($1, $2)", *first)
    async with connection.transaction():
        await connection.execute("select messages.amend($1, priority => 1)", parent)
        ending = asyncio.create_task(finisher.fetchval("select messages.finish($1, $2)", *second))
        await until_blocked(observer, finisher)
        assert await connection.fetchval("select messages.cancel($1)", parent)
    assert await ending
    assert await rows(connection, "message_list") == []


async def test_what_a_parked_message_holds(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('one', concurrency => 1)")
    held = await lock(connection, "one")
    await publish(connection, 1, "one")
    assert await rows(connection, "claim", queues=["one"]) == []
    assert (await wait(connection, held))["state"] == "parked"
    # Its slot is free, and it takes one again when it is woken.
    other = await again(connection, "one")
    await connection.execute("select messages.signal('go')")
    assert await rows(connection, "claim", queues=["one"]) == []
    await value(connection, "finish", id=other[0], lock_token=other[1])
    assert (await again(connection, "one"))[0] == held[0]

    await connection.execute("select messages.create_queue('line', ordered => true)")
    for n in (1, 2):
        await value(connection, "publish", queue="line", message=n, key="k")
    held = await again(connection, "line")
    await sleep(connection, held, "1 hour")
    assert await rows(connection, "claim", queues=["line"]) == []

    await connection.execute("select messages.create_queue('full', capacity => 1)")
    held = await lock(connection, "full")
    await sleep(connection, held, "1 hour")
    await publish(connection, 1, "full")
    info = await rows(connection, "queue_info", queue="full")
    assert (info[0]["scheduled"], info[0]["parked"]) == (0, 1)


async def test_the_end_of_a_parked_message_ends_its_waits(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('gone')")
    for queue in ("default", "gone"):
        held = await lock(connection, queue)
        assert (await wait(connection, held))["state"] == "parked"
        await connection.execute("select messages.signal('mine', '1', $1)", held[0])
    [row] = await rows(connection, "parked", queue="default")
    assert await value(connection, "cancel", id=row["id"])
    await connection.execute("select messages.drop_queue('gone', force => true)")
    for table in ("step", "signal_wait", "end_wait", "signal"):
        assert await connection.fetchval(f"select count(*) from notifyq.{table}") == 0, table


async def blocks_of_a_claim(connection: Connection) -> int:
    """Claim a message; return how many blocks the claim reads."""
    plan = "explain (analyze, buffers, format json) select * from messages.claim()"
    blocks = []
    for _ in range(2):  # the first one reads the catalog, to plan its statements
        [id_] = await publish(connection, 1)
        [report] = json.loads(await connection.fetchval(plan))
        assert (await alive(connection, id_))["state"] == "locked"
        blocks.append(report["Plan"]["Shared Hit Blocks"] + report["Plan"]["Shared Read Blocks"])
    return int(blocks[1])


async def test_ten_thousand_parked_messages_cost_a_claim_nothing(connection: Connection) -> None:
    without = await blocks_of_a_claim(connection)
    await publish(connection, 10_000)
    await connection.execute("select messages.claim(quantity => 10000)")
    await connection.execute(
        "select messages.await_signal(m.id, m.lock_token, 'wait', 'go') from messages.message as m"
    )
    assert await connection.fetchval("select count(*) from messages.parked(quantity => 20000)") == (
        10_002
    )
    # Without the versions of rows from before they were parked.
    await connection.execute("vacuum analyze messages.message")
    # Larger indexes have another level, and those of parked messages have more than 100 blocks.
    assert await blocks_of_a_claim(connection) < without + 10
    # One statement wakes all.
    assert await connection.fetchval("select messages.signal('go')") == 10_002
    assert await connection.fetchval("select count(*) from messages.parked()") == 0


async def test_a_signal_that_a_live_message_may_receive_is_kept(connection: Connection) -> None:
    held = await lock(connection)
    assert (await wait(connection, held, "later"))["state"] == "parked"
    other = await lock(connection)
    await connection.execute("select messages.signal('later')")
    await connection.execute("select messages.signal('later', '1', $1)", other[0])
    old = "update notifyq.signal set forget_at = now() - interval '1 s'"
    count = "select count(*) from notifyq.signal where forget_at > now()"
    await connection.execute(old)
    await connection.execute("select messages.maintain()")
    assert await connection.fetchval(count) == 2
    for id_, token in (await again(connection), other):
        await value(connection, "finish", id=id_, lock_token=token)
    await connection.execute(old)
    await connection.execute("select messages.maintain()")
    assert await connection.fetchval("select count(*) from notifyq.signal") == 0


async def test_old_signals_and_outputs_are_forgotten(connection: Connection) -> None:
    held = await lock(connection)
    await connection.execute("select messages.signal('old')")
    await connection.execute("select messages.emit($1, $2, '1')", *held)
    await connection.execute("select messages.progress($1, $2, 0.5)", *held)
    await value(connection, "finish", id=held[0], lock_token=held[1])
    await connection.execute("select messages.maintain()")
    assert await connection.fetchval("select count(*) from messages.output($1)", held[0]) == 1
    assert await connection.fetchval("select count(*) from notifyq.message_progress") == 0
    await connection.execute("update notifyq.signal set forget_at = now() - interval '1 s'")
    await connection.execute("update notifyq.message_output set forget_at = now() - interval '1 s'")
    await connection.execute("select messages.maintain()")
    for table in ("signal", "message_output"):
        assert await connection.fetchval(f"select count(*) from notifyq.{table}") == 0, table
