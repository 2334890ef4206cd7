"""Cancel, amend and expire: changes of messages that live."""

import asyncio
from itertools import product
from typing import Any

import asyncpg
import pytest

from notifyq import InvalidArgumentError, LockNotHeldError, MessageLimitError, PayloadError
from support.database import (
    Connect,
    Connection,
    Notification,
    Notifications,
    alive,
    archived,
    live,
    publish,
    rows,
    value,
)


async def claim(connection: Connection, queue: str = "default") -> list[dict[str, Any]]:
    return [dict(row) for row in await rows(connection, "claim", queues=[queue], quantity=10)]


async def details(connection: Connection, *ids: int) -> list[str]:
    return [row["details"] for id_ in ids for row in await archived(connection, id_)]


async def test_a_running_message_is_cancelled_and_its_holder_is_notified(
    connection: Connection, connect: Connect
) -> None:
    notifications = Notifications(await connect(), "cancelled_message")
    await notifications.listen()
    [id_] = await publish(connection, 1)
    [held] = await claim(connection)
    assert not await value(connection, "cancel", id=id_)
    assert await value(connection, "cancel", id=id_, running=True)
    assert await details(connection, id_) == ["cancelled"]
    assert not await value(connection, "finish", id=id_, lock_token=held["lock_token"])
    with pytest.raises(LockNotHeldError):
        await connection.execute("select messages.step($1, $2, 'late')", id_, held["lock_token"])
    assert await notifications.received("cancelled_message") == [
        Notification("cancelled_message", str(id_), "")
    ]
    assert not await value(connection, "cancel", id=id_, running=True)


async def test_a_cancel_waits_for_a_step_in_progress(
    connection: Connection, connect: Connect
) -> None:
    [id_] = await publish(connection, 1)
    [held] = await claim(connection)
    other = await connect()
    async with connection.transaction():
        await connection.execute("select messages.step($1, $2, 's')", id_, held["lock_token"])
        cancelling = asyncio.create_task(
            other.fetchval("select messages.cancel($1, running => true)", id_)
        )
    assert await cancelling
    assert [row["name"] for row in await rows(connection, "steps", id=id_)] == ["s"]


async def family(connection: Connection) -> list[int]:
    """A message, a child and a grandchild, published by steps: the first two are locked."""
    [parent] = await publish(connection, 1)
    ids = [parent]
    for _ in range(2):
        [held] = await rows(connection, "claim_id", id=ids[-1])
        [child] = await publish(connection, 1)
        await connection.execute(
            "select is_new from notifyq.record_step($1, $2, 'child', $3, false, $4)",
            held["id"],
            held["lock_token"],
            str(child),
            child,
        )
        ids.append(child)
    return ids


async def test_children_go_on_unless_they_are_cancelled_too(connection: Connection) -> None:
    ids = await family(connection)
    assert await value(connection, "cancel", id=ids[0], running=True)
    assert len(await rows(connection, "message_list")) == 2
    ids = await family(connection)
    assert await value(connection, "cancel", id=ids[0], running=True, children=True)
    assert await details(connection, *ids) == ["cancelled"] * 3


async def test_a_child_that_ended_has_its_own_cancelled(connection: Connection) -> None:
    parent, child, grandchild = await family(connection)
    await connection.execute("update messages.message set lock_token = 9 where id = $1", child)
    await value(connection, "finish", id=child, lock_token=9)
    assert await value(connection, "cancel", id=parent, running=True, children=True)
    assert await details(connection, parent, grandchild) == ["cancelled"] * 2


async def test_locked_children_go_on_with_their_own(connection: Connection) -> None:
    parent, child, grandchild = await family(connection)
    held = await alive(connection, parent)
    await value(connection, "release", id=parent, lock_token=held["lock_token"])
    assert await value(connection, "cancel", id=parent, children=True)
    for id_ in (child, grandchild):
        assert await live(connection, id_) is not None


async def test_a_circle_of_children_is_cancelled_once(connection: Connection) -> None:
    ids = await family(connection)
    held = await alive(connection, ids[1])
    await connection.execute(
        "select is_new from notifyq.record_step($1, $2, 'again', 'null', false, $3)",
        ids[1],
        held["lock_token"],
        ids[0],
    )
    await connection.execute("set statement_timeout = '10s'")
    assert await value(connection, "cancel", id=ids[0], running=True, children=True)
    assert await details(connection, *ids) == ["cancelled"] * 3


async def test_a_message_that_nobody_holds_is_amended(connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    assert await value(
        connection, "amend", id=id_, message={"n": 2}, priority=3, headers={"h": "x"}
    )
    row = await alive(connection, id_)
    assert (row["message"], row["priority"], row["headers"]) == ({"n": 2}, 3, {"h": "x"})
    assert await connection.fetchval(
        "select messages.amend($1, available_at => now() + interval '1 hour')", id_
    )
    assert await claim(connection) == []
    assert await connection.fetchval("select messages.amend($1, available_at => now())", id_)
    assert [it["id"] for it in await claim(connection)] == [id_]
    assert not await value(connection, "amend", id=id_, priority=1)
    assert not await value(connection, "amend", id=id_ + 1, priority=1)


async def test_what_cannot_be_amended(connection: Connection) -> None:
    [id_] = await publish(connection, 1)
    with pytest.raises(InvalidArgumentError, match="give message, priority"):
        await value(connection, "amend", id=id_)
    with pytest.raises(InvalidArgumentError, match="headers must be a JSON object"):
        await value(connection, "amend", id=id_, headers=[1])
    with pytest.raises(InvalidArgumentError, match="between the years"):
        await connection.execute("select messages.amend($1, available_at => '-infinity')", id_)
    with pytest.raises(MessageLimitError):
        await value(connection, "amend", id=id_, message="x" * 2_000_000)
    await connection.execute(
        "select messages.alter_queue('default', payload_schema => $1)", {"type": "integer"}
    )
    with pytest.raises(PayloadError):
        await value(connection, "amend", id=id_, message="text")
    after = await value(connection, "publish", queue="default", message=1, after=[id_])
    with pytest.raises(InvalidArgumentError, match="waits for other messages"):
        await connection.execute("select messages.amend($1, available_at => now())", after)
    [held] = await claim(connection)
    assert await connection.fetchval(
        "select not messages.sleep($1, $2, 'nap', delay => '1 hour')", id_, held["lock_token"]
    )
    with pytest.raises(InvalidArgumentError, match="only its priority"):
        await value(connection, "amend", id=id_, message=2)
    assert await value(connection, "amend", id=id_, priority=5)


async def test_amend_in_an_unlogged_queue(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('fast', durable => false)")
    [id_] = await publish(connection, 1, "fast")
    assert await value(connection, "amend", id=id_, message=2, priority=3)
    [row] = await claim(connection, "fast")
    assert (row["message"], row["priority"]) == (2, 3)
    with pytest.raises(MessageLimitError):
        await value(connection, "publish", queue="fast", message="x" * 2_000_000)


async def expire_all(connection: Connection) -> None:
    await connection.execute("update notifyq.expiry set expires_at = now() - interval '1 s'")


async def test_a_message_that_nobody_claims_expires(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('fast', durable => false)")
    await connection.execute("select messages.create_queue('limited', ordered => true)")
    publishing = "select messages.publish($1, '1', expires_in => '1 hour')"
    many = "select messages.publish_many($1, array['1', '2']::jsonb[], expires_in => '1 hour')"
    await connection.execute("select messages.create_queue('aging', aging => '1 hour')")
    ways = ["claim", "take", "maintain", "claim_id"]
    for how, queue in product(ways, ["default", "fast", "limited", "aging"]):
        if (how, queue) == ("claim_id", "limited"):
            continue  # messages of a queue with limits are not claimed by id
        ids = [await connection.fetchval(publishing, queue)]
        ids += [row[0] for row in await connection.fetch(many, queue)]
        await expire_all(connection)
        if how == "claim":
            assert await claim(connection, queue) == []
        elif how == "take":
            assert await rows(connection, "take", queue=queue, quantity=10) == []
        elif how == "maintain":
            await connection.execute("select messages.maintain()")
        else:
            assert await rows(connection, "claim_id", id=ids[0]) == []
        assert await details(connection, *ids) == ["expired"] * 3
        assert await connection.fetchval("select count(*) from notifyq.expiry") == 0


async def test_a_claim_does_not_pass_what_expired_while_an_old_snapshot_is_held(
    connection: Connection, connect: Connect
) -> None:
    reads = "select pg_stat_get_xact_tuples_returned('notifyq.expiry_expires_at_idx'::regclass)"
    ids = await publish(connection, 1000)
    await connection.execute(
        "insert into notifyq.expiry "
        "select id, now() - interval '1 hour' from unnest($1::bigint[]) as id",
        ids,
    )
    old = await connect()
    async with old.transaction(isolation="repeatable_read"):
        await old.execute("select from messages.message")
        for _ in range(2):
            assert await claim(connection) == []
        async with connection.transaction():
            before = await connection.fetchval(reads)
            assert await claim(connection) == []
            assert await connection.fetchval(reads) - before < 10


async def test_a_claim_finds_what_expired_under_any_settings_of_its_session(
    connection: Connection,
) -> None:
    # IST is read as the time of Israel, which is behind that of India.
    await connection.execute("set timezone = 'Asia/Kolkata'; set datestyle = 'Postgres, DMY'")
    assert await claim(connection) == []
    id_ = await connection.fetchval(
        "select messages.publish('default', '1', expires_in => '1 hour')"
    )
    await expire_all(connection)
    assert await claim(connection) == []
    await connection.execute("set datestyle = 'SQL, MDY'")
    assert await claim(connection) == []
    assert await details(connection, id_) == ["expired"]


async def test_what_was_claimed_once_never_expires(connection: Connection) -> None:
    id_ = await value(connection, "publish", queue="default", message=1)
    await connection.execute("insert into notifyq.expiry values ($1, now())", id_)
    assert await claim(connection) == []
    expiring = "select messages.publish('default', '1', expires_in => '1 hour')"
    id_ = await connection.fetchval(expiring)
    [held] = await claim(connection)
    await expire_all(connection)
    await value(connection, "release", id=id_, lock_token=held["lock_token"])
    assert [it["id"] for it in await claim(connection)] == [id_]


async def test_a_message_that_a_session_is_about_to_claim_expires_later(
    connection: Connection, connect: Connect
) -> None:
    id_ = await connection.fetchval(
        "select messages.publish('default', '1', expires_in => '1 hour')"
    )
    other = await connect()
    await other.execute("begin")
    assert [it["id"] for it in await claim(other)] == [id_]
    await expire_all(connection)
    assert await claim(connection) == []
    await connection.execute("select messages.maintain()")
    await other.execute("rollback")
    assert await claim(connection) == []
    assert await details(connection, id_) == ["expired"]


async def test_only_new_messages_get_an_expiry(connection: Connection) -> None:
    call = "select messages.publish('default', '1', dedup_key => 'k', expires_in => $1)"
    kept = "select messages.publish('default', '1', dedup_key => 'k')"
    id_ = await connection.fetchval(kept)
    assert await connection.fetchval(call.replace("$1", "'1 hour'")) == id_
    assert await connection.fetchval("select count(*) from notifyq.expiry") == 0


async def test_bad_expiries_are_refused(connection: Connection) -> None:
    for options, words in [
        ("expires_in => '0'", "expires_in must be longer than zero"),
        ("expires_in => '1 s', delay => '1 s'", "would expire before it is available"),
        ("expires_in => '9999 years'", "expires_in"),
    ]:
        with pytest.raises(InvalidArgumentError, match=words):
            await connection.execute(f"select messages.publish('default', '1', {options})")
        with pytest.raises(InvalidArgumentError, match=words):
            await connection.execute(
                f"select messages.publish_many('default', array['1']::jsonb[], {options})"
            )
    await connection.execute("select messages.create_stream('events')")
    with pytest.raises((InvalidArgumentError, asyncpg.PostgresError), match="no priority"):
        await connection.execute("select messages.publish('events', '1', expires_in => '1 h')")
