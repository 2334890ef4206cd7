"""Cancelled is not dead: no list, count, group or notification of dead messages has it."""

from __future__ import annotations

import json

import pytest

from support.database import Connection, Notices, Notifications, archived, publish, rows, value

UNTIL = json.dumps({"until": "2100-01-01T00:00:00Z"})


async def fail(connection: Connection, id_: int) -> None:
    [held] = await rows(connection, "claim_id", id=id_)
    await value(
        connection, "finish", id=id_, lock_token=held["lock_token"], status="rejected",
        details="cancelled",
    )  # fmt: skip


async def found(connection: Connection) -> dict[str, list[int]]:
    """The dead messages as each reader has them."""
    lists = {
        "list": "select id from messages.dead_list()",
        "list of a queue": "select id from messages.dead_list('default')",
        "view": "select id from messages.dead_message",
        "since": "select id from messages.dead_since()",
        "groups": "select last_id from notifyq.dead_groups() where last_id is not null",
        "search": """select id from notifyq.search_archive('{"state": "dead"}')""",
    }
    counts = {
        "throughput": "select sum(dead) from messages.throughput() where status is null",
        "throughput by status": "select sum(dead) from messages.throughput() "
        "where status is not null",
        "hours": "select sum(dead) from notifyq.archive_hours(now() - interval '2 h', 'infinity')",
        "errors of hours": "select sum(e.value::text::bigint) from notifyq.archive_hours("
        "now() - interval '2 h', 'infinity') as h cross join jsonb_each(h.errors) as e",
        "report": "select sum(dead) from notifyq.rollup_summary()",
        "report of errors": "select sum(errors) from notifyq.rollup_errors()",
        "report of workers": "select sum(dead) from notifyq.rollup_workers()",
        "count": "select messages.dead_count()",
        "count of a queue": "select messages.dead_count('default')",
        "backlog": "select dead from messages.backlog() where queue = 'default'",
        "matching": f"select found from notifyq.count_dead_matching('{UNTIL}')",
        "matching status": "select found from notifyq.count_dead_matching("
        f"'{json.dumps(json.loads(UNTIL) | {'state': 'rejected'})}')",
    }
    report = {
        name: sorted(row[0] for row in await connection.fetch(statement))
        for name, statement in lists.items()
    }
    return report | {name: [await connection.fetchval(it) or 0] for name, it in counts.items()}


@pytest.mark.parametrize("durable", [True, False])
async def test_a_cancelled_message_is_in_no_list_of_dead_ones(
    connection: Connection, notifications: Notifications, notices: Notices, *, durable: bool
) -> None:
    if not durable:
        await value(connection, "create_queue", name="rough", durable=False)
    [cancelled] = await publish(connection, 1, "default" if durable else "rough")
    assert await value(connection, "cancel", id=cancelled, reason="not needed", cancelled_by="ann")
    [row] = await archived(connection, cancelled)
    assert (row["status"], row["details"]) == ("rejected", "cancelled: not needed")
    assert row["cancelled_by"] == "ann"
    assert all(ids in ([], [0]) for ids in (await found(connection)).values())
    # A handler may reject a message with the same words.
    [dead] = await publish(connection, 1)
    await fail(connection, dead)
    reports = await found(connection)
    lists = ("list", "list of a queue", "view", "since", "groups", "search")
    assert reports == {name: [dead] if name in lists else [1] for name in reports}
    assert await notices.received("WARNING") == [
        f"notifyq: dead message {dead} in queue default: rejected: cancelled"
    ]
    assert [it.payload for it in await notifications.received("dead_message")] == [
        f"default:{dead}"
    ]


async def test_cancelled_messages_are_listed_and_published_again_if_asked(
    connection: Connection,
) -> None:
    [cancelled, dead] = await publish(connection, 2)
    await value(connection, "cancel", id=cancelled)
    await fail(connection, dead)
    for queue in (None, "default"):
        [row] = await rows(connection, "dead_list", queue=queue, cancelled=True)
        assert (row["id"], row["cancelled_by"]) == (
            cancelled, await connection.fetchval("select session_user")
        )  # fmt: skip
        assert await value(connection, "dead_count", queue=queue, cancelled=True) == 1
    [summary] = await connection.fetch(
        "select * from messages.archive_list(status => 'rejected') offset 1"
    )
    assert summary["id"] == cancelled
    assert await value(connection, "redrive") == 1
    [again] = await connection.fetch("select messages.dead_retry($1)", cancelled)
    assert await value(connection, "dead_count", cancelled=True) == 0
    assert await connection.fetchval("select count(*) from messages.message") == 2
    assert again[0] > dead
    assert await connection.fetchval("select messages.dead_delete($1)", cancelled) == 1


async def test_what_waits_for_a_cancelled_message_is_cancelled_by_the_same(
    connection: Connection,
) -> None:
    [first, other] = await publish(connection, 2)
    child = await value(connection, "publish", queue="default", message=1, after=[first])
    grandchild = await value(connection, "publish", queue="default", message=1, after=[child])
    dependent = await value(connection, "publish", queue="default", message=1, after=[other])
    await value(connection, "cancel", id=first, cancelled_by="ann")
    await fail(connection, other)
    for id_, by in ((child, "ann"), (grandchild, "ann"), (dependent, None)):
        [row] = await archived(connection, id_)
        assert (row["status"], row["cancelled_by"]) == ("rejected", by)
    late = await value(connection, "publish", queue="default", message=1, after=[first])
    [row] = await archived(connection, late)
    assert row["cancelled_by"] == "ann"


async def test_the_attempt_of_a_message_that_was_cancelled_is_kept(connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    await rows(connection, "claim")
    assert await value(connection, "cancel", id=id_, running=True)
    assert len(await rows(connection, "attempts", id=id_)) == 1
