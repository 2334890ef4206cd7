"""Messages that wait for the end of others."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError, MessageNotFoundError, QueueDeniedError
from support.database import (
    Connect,
    Connection,
    Notifications,
    alive,
    archived,
    publish,
    rows,
    value,
)

HOUR = timedelta(hours=1)


async def after(connection: Connection, ids: Sequence[int], **options: Any) -> int:
    options = {"queue": "default", "message": "next"} | options
    return int(await value(connection, "publish", after=list(ids), **options))


async def finish(connection: Connection, id_: int, status: str = "success", **how: Any) -> None:
    (message,) = await rows(connection, "claim_id", id=id_)
    assert await value(
        connection, "finish", id=id_, lock_token=message["lock_token"], status=status, **how
    )


async def ending(connection: Connection, id_: int) -> tuple[str, str | None]:
    (row,) = await archived(connection, id_)
    return row["status"], row["details"]


async def state(connection: Connection, id_: int) -> tuple[str, int | None]:
    message = await alive(connection, id_)
    return message["state"], message["blockers"]


async def retry(connection: Connection, *ids: int) -> list[int]:
    found = await connection.fetch("select messages.dead_retry(variadic $1::bigint[])", ids)
    return [row[0] for row in found]


async def test_a_message_waits_for_all_that_it_is_to_run_after(
    connection: Connection, notifications: Notifications
) -> None:
    first, second = await publish(connection, 2)
    id_ = await after(connection, [second, first, second])
    await notifications.received()
    assert await state(connection, id_) == ("scheduled", 2)
    assert [row["id"] for row in await rows(connection, "claim", quantity=9)] == [first, second]
    assert await value(connection, "finish", id=first, lock_token=1)
    assert await state(connection, id_) == ("scheduled", 1)
    assert await notifications.received() == []
    assert await value(connection, "finish", id=second, lock_token=1)
    assert await state(connection, id_) == ("waiting", None)
    assert await notifications.ids() == [[id_]]
    assert [row["id"] for row in await rows(connection, "claim")] == [id_]


async def test_a_finished_message_holds_nothing_up(connection: Connection) -> None:
    first, second, third = await publish(connection, 3)
    await finish(connection, first)
    await finish(connection, second, "failed")
    assert await state(connection, await after(connection, [first])) == ("waiting", None)
    assert await state(connection, await after(connection, [first, third])) == ("scheduled", 1)
    assert await state(connection, await after(connection, [])) == ("waiting", None)
    run = await after(connection, [first, second], on_failure="run")
    assert await state(connection, run) == ("waiting", None)
    held = await after(connection, [second], on_failure="hold")
    assert await state(connection, held) == ("scheduled", 1)
    doomed = await after(connection, [second, third])
    status, details = await ending(connection, doomed)
    assert (status, details) == (
        "rejected", f"cancelled: it waited for message {second}, which did not succeed",
    )  # fmt: skip


@pytest.mark.parametrize("status", ["rejected", "failed", "lock_expired"])
async def test_a_dead_message_cancels_the_chain_that_waits_for_it(
    connection: Connection, status: str
) -> None:
    first, other = await publish(connection, 2)
    second = await after(connection, [first])
    third = await after(connection, [second])
    last = await after(connection, [third], on_failure="run")
    later = await after(connection, [third, other], on_failure="run")
    await finish(connection, first, status)
    why = f"cancelled: it waited for message {first}, which did not succeed"
    assert await ending(connection, second) == ("rejected", why)
    assert await ending(connection, third) == ("rejected", why)
    assert await state(connection, last) == ("waiting", None)
    assert await state(connection, later) == ("scheduled", 1)


async def test_a_cancelled_message_names_the_first_of_its_causes_by_id(
    connection: Connection,
) -> None:
    first, second = await publish(connection, 2)
    id_ = await after(connection, [second, first])
    claimed = await rows(connection, "claim", quantity=2)
    await value(
        connection,
        "finish_many",
        ids=[second, first],
        lock_tokens=[row["lock_token"] for row in claimed],
        statuses=["failed", "failed"],
    )
    why = f"cancelled: it waited for message {first}, which did not succeed"
    assert await ending(connection, id_) == ("rejected", why)


async def test_on_failure_run_runs_whatever_the_others_end_as(connection: Connection) -> None:
    ids = await publish(connection, 3)
    id_ = await after(connection, ids, on_failure="run")
    await finish(connection, ids[0], "failed")
    assert await value(connection, "cancel", id=ids[1])
    assert await state(connection, id_) == ("scheduled", 1)
    await rows(connection, "take", queue="default", quantity=9)
    assert await state(connection, id_) == ("waiting", None)


async def test_on_failure_hold_waits_for_the_redriven_message(connection: Connection) -> None:
    first, second = await publish(connection, 2)
    id_ = await after(connection, [first, second], on_failure="hold")
    await finish(connection, first, "failed")
    await finish(connection, second)
    assert await state(connection, id_) == ("scheduled", 1)
    (again,) = await retry(connection, first)
    await finish(connection, again, "failed")
    (again,) = await retry(connection, again)
    assert await state(connection, id_) == ("scheduled", 1)
    await finish(connection, again)
    assert await state(connection, id_) == ("waiting", None)


async def test_a_redriven_chain_keeps_its_order(connection: Connection) -> None:
    first, other = await publish(connection, 2)
    second = await after(connection, [other, first])
    third = await after(connection, [second])
    await finish(connection, other, result="kept")
    await finish(connection, first, "failed")
    (first,) = await retry(connection, first)
    await finish(connection, first, "failed")
    assert await value(connection, "redrive") == 3
    # The message that failed last has the largest id by now.
    last, *waiting = sorted(
        await rows(connection, "message_list"), key=lambda row: row["blockers"] or 0
    )
    assert [last["blockers"], *(row["blockers"] for row in waiting)] == [None, 1, 1]
    again = [last["id"], *(row["id"] for row in waiting)]
    assert [row["result"] for row in await rows(connection, "dependencies", id=again[1])] == [
        "kept", None,
    ]  # fmt: skip
    for id_ in again:
        await finish(connection, id_)
    assert await rows(connection, "message_list") == []
    assert third not in again


async def test_a_message_redriven_alone_waits_for_none(connection: Connection) -> None:
    (first,) = await publish(connection, 1)
    second = await after(connection, [first])
    await finish(connection, first, "failed")
    (again,) = await retry(connection, second)
    assert await state(connection, again) == ("waiting", None)
    assert [row["state"] for row in await rows(connection, "dependencies", id=again)] == ["failed"]


async def test_a_held_message_can_be_unblocked_or_cancelled(
    connection: Connection, notifications: Notifications
) -> None:
    (first,) = await publish(connection, 1)
    run = await after(connection, [first], on_failure="hold")
    given_up = await after(connection, [first], on_failure="hold")
    await finish(connection, first, "failed")
    await notifications.received()
    assert await value(connection, "unblock", id=run)
    assert await notifications.ids() == [[run]]
    assert not await value(connection, "unblock", id=run)
    assert await value(connection, "cancel", id=given_up)
    assert [row["id"] for row in await rows(connection, "claim", quantity=9)] == [run]


async def test_an_unblocked_message_ignores_the_end_of_the_others(connection: Connection) -> None:
    (first,) = await publish(connection, 1)
    id_ = await after(connection, [first])
    assert await value(connection, "unblock", id=id_)
    await finish(connection, first, "failed")
    assert await state(connection, id_) == ("waiting", None)


async def test_a_delay_counts_from_the_end_of_the_last_message(connection: Connection) -> None:
    (first,) = await publish(connection, 1)
    delayed = await after(connection, [first], delay=HOUR)
    now = await connection.fetchval("select now()")
    late = await after(connection, [first], available_at=now + 2 * HOUR)
    early = await after(connection, [first], available_at=now - HOUR)
    await connection.execute(
        "update notifyq.dependency set available_at = available_at - interval '1 hour'"
    )
    assert [await state(connection, it) for it in (delayed, late, early)] == 3 * [("scheduled", 1)]
    await finish(connection, first)
    message = await alive(connection, delayed)
    assert HOUR <= message["available_at"] - now < 1.1 * HOUR
    message = await alive(connection, late)
    assert message["available_at"] == now + HOUR
    assert await state(connection, early) == ("waiting", None)


async def test_a_retry_is_no_end(connection: Connection) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=2)
    (first,) = await publish(connection, 1)
    id_ = await after(connection, [first])
    for token, expected in ((1, ("scheduled", 1)), (3, None)):
        await connection.execute("update messages.message set available_at = now()"
                                 " where id = $1", first)  # fmt: skip
        await rows(connection, "claim_id", id=first)
        assert await value(connection, "retry", id=first, lock_token=token, delay=timedelta(0))
        if expected:
            assert await state(connection, id_) == expected
    assert (await ending(connection, id_))[0] == "rejected"


async def test_dropping_a_queue_cancels_dependents(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    (first,) = await publish(connection, 1, "q")
    inside = await after(connection, [first], queue="q")
    outside = await after(connection, [inside])
    await value(connection, "drop_queue", name="q", force=True)
    assert (await ending(connection, outside))[0] == "rejected"


async def test_maintenance_resolves_unnoticed_ends_and_deletes_old_dependencies(
    connection: Connection,
) -> None:
    first, second = await publish(connection, 2)
    run = await after(connection, [first], on_failure="run")
    gone = await after(connection, [second], on_failure="hold")
    await connection.execute("delete from messages.message where id = any ($1)", [first, gone])
    await value(connection, "maintain")
    assert await state(connection, run) == ("waiting", None)
    kept = "select array_agg(distinct message_id) from notifyq.dependency"
    assert await connection.fetchval(kept) == [run]
    await finish(connection, run)
    assert await connection.fetchval(kept) is None


async def test_a_message_that_is_gone_counts_as_one_that_did_not_succeed(
    connection: Connection,
) -> None:
    (first,) = await publish(connection, 1)
    id_ = await after(connection, [first])
    await connection.execute("delete from messages.message where id = $1", first)
    await value(connection, "maintain")
    assert (await ending(connection, id_))[0] == "rejected"


async def test_maintenance_resolves_an_end_that_an_older_snapshot_hid(
    connection: Connection, connect: Connect
) -> None:
    (first,) = await publish(connection, 1)
    await rows(connection, "claim")
    finisher = await connect()
    async with finisher.transaction(isolation="repeatable_read"):
        await finisher.fetchval("select count(*) from messages.message")
        id_ = await after(connection, [first])
        assert await value(finisher, "finish", id=first, lock_token=1)
    await value(connection, "maintain")
    assert await state(connection, id_) == ("waiting", None)


async def test_dependencies_returns_the_results_in_order(connection: Connection) -> None:
    ids = await publish(connection, 3)
    order = [ids[2], ids[0], ids[1]]
    id_ = await after(connection, order, on_failure="run")
    await finish(connection, ids[0], result={"n": 1})
    await finish(connection, ids[2], "failed", details="broken")
    found = await rows(connection, "dependencies", id=id_)
    assert [(row["id"], row["state"], row["details"], row["result"]) for row in found] == [
        (ids[2], "failed", "broken", None),
        (ids[0], "success", None, {"n": 1}),
        (ids[1], "waiting", None, None),
    ]
    await finish(connection, ids[1])
    await finish(connection, id_, "failed")
    # A dead message can be published again and wants to know them, then.
    assert len(await rows(connection, "dependencies", id=id_)) == 3


async def test_many_messages_wait_for_one_and_one_for_many(connection: Connection) -> None:
    ids = await publish(connection, 10_000)
    id_ = await after(connection, ids)
    tokens = [1] * len(ids)
    await rows(connection, "claim", quantity=10_000)
    await rows(
        connection, "finish_many", ids=ids, lock_tokens=tokens, statuses=["success"] * len(ids)
    )
    assert await state(connection, id_) == ("waiting", None)
    many = await rows(
        connection, "publish_many", queue="default", messages=list(range(10_000)), after=[id_]
    )
    last = await after(connection, [row[0] for row in many])
    await finish(connection, id_, "failed")
    assert (await ending(connection, last))[0] == "rejected"
    assert await connection.fetchval("select count(*) from messages.message") == 0


@pytest.mark.parametrize("status", ["success", "failed"])
async def test_the_end_of_a_message_reads_only_its_own_dependents(
    connection: Connection, status: str
) -> None:
    await after(connection, await publish(connection, 2000))
    # The statistics of a table that was vacuumed while it was empty.
    await connection.execute("delete from notifyq.dependency; delete from messages.message")
    await connection.execute("vacuum (truncate off, analyze) notifyq.dependency")
    ids = await publish(connection, 2000)
    await after(connection, ids[1:])
    await after(connection, [ids[0]])
    async with connection.transaction():
        await finish(connection, ids[0], status)
        read = await connection.fetchval(
            "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'dependency'"
        )
    assert 0 < read < 20


async def test_a_chain_of_a_thousand_is_cancelled_at_once(connection: Connection) -> None:
    (first,) = await publish(connection, 1)
    await connection.execute(
        """
        do $$
        declare v_id bigint := (select id from messages.message);
        begin
          for i in 1..1000 loop
            v_id := messages.publish('default', '1', after => array[v_id]);
          end loop;
        end $$
        """
    )
    await finish(connection, first, "failed")
    counts = "select count(*) from messages.message_archive where status = 'rejected'"
    assert await connection.fetchval(counts) == 1000


async def test_an_invalid_dependency_is_refused(connection: Connection) -> None:
    ids = await publish(connection, 1)
    for options, error, why in (
        ({"ids": [999]}, MessageNotFoundError, "no message 999 to run after"),
        ({"ids": [None]}, MessageNotFoundError, "no message null to run after"),
        ({"on_failure": "panic"}, InvalidArgumentError, "cancel, run or hold, not panic"),
        (
            {"on_duplicate": "debounce", "dedup_key": "k", "delay": HOUR},
            InvalidArgumentError,
            "debounce and after exclude each other",
        ),
    ):
        with pytest.raises(error, match=why):
            await after(connection, **{"ids": ids} | options)
        assert await connection.fetchval("select count(*) from messages.message") == 1


async def test_an_existing_message_gets_no_dependency(connection: Connection) -> None:
    (first,) = await publish(connection, 1)
    stands = await after(connection, [first], dedup_key="k")
    (second,) = await publish(connection, 1)
    assert await after(connection, [second], dedup_key="k", on_duplicate="replace") == stands
    assert await state(connection, stands) == ("scheduled", 1)
    await finish(connection, first)
    assert await state(connection, stands) == ("waiting", None)


@pytest.mark.parametrize("is_finished", [False, True])
async def test_waiting_needs_the_right_to_read_the_result(
    connection: Connection, *, is_finished: bool
) -> None:
    await value(connection, "create_queue", name="secret")
    (first,) = await publish(connection, 1, "secret")
    if is_finished:
        await finish(connection, first)
    await value(connection, "grant_queue", queue="secret", role="notifyq_admin")
    async with connection.transaction():
        await connection.execute("set local role notifyq_publisher")
        with pytest.raises(QueueDeniedError):
            async with connection.transaction():
                await after(connection, [first])


async def test_dependencies_leaves_out_results_of_queues_that_the_caller_may_not_consume_from(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="secret")
    (first,) = await publish(connection, 1, "secret")
    (second,) = await publish(connection, 1)
    id_ = await after(connection, [first, second], on_failure="run")
    for ended in (first, second):
        await finish(connection, ended, details="why", result="what")
    await value(connection, "grant_queue", queue="secret", role="notifyq_admin")
    for role, shown in (("worker", [None, "what"]), ("reader", ["what", "what"])):
        async with connection.transaction():
            await connection.execute(f"set local role notifyq_{role}")
            found = await rows(connection, "dependencies", id=id_)
            assert [row["result"] for row in found] == shown
            assert [row["details"] for row in found] == [it and "why" for it in shown]


async def test_a_redriven_message_does_not_end_twice_for_those_that_run_on_failure(
    connection: Connection,
) -> None:
    first, second = await publish(connection, 2)
    id_ = await after(connection, [first, second], on_failure="run")
    await finish(connection, first, "failed")
    (again,) = await retry(connection, first)
    await finish(connection, again)
    assert await state(connection, id_) == ("scheduled", 1)
    await finish(connection, second)
    assert await state(connection, id_) == ("waiting", None)
