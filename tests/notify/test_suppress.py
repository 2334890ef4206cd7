"""The SQL functions of suppression: suppress, unsuppress, is_transaction_over, wake_all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from notify.protocol import INSERT, is_over, suppress, unsuppress, waiting
from support.database import (
    Connect,
    Connection,
    Notifications,
    install,
    publish,
    session,
    terminate,
    until_blocked,
    value,
)
from support.servers import kept_server

QUEUE = "default"
PUBLISH = INSERT.format(queue=QUEUE)
GATE = 36
"""An advisory lock that holds up a session inside a function."""


@pytest.fixture
async def worker(connect: Connect) -> Connection:
    """Give the session of a worker."""
    return await connect()


@pytest.fixture
async def publisher(connect: Connect) -> Connection:
    """Give the session of a publisher."""
    return await connect()


async def notifies(notifications: Notifications, publisher: Connection) -> bool:
    await notifications.received()
    await publisher.execute(PUBLISH)
    return bool(await notifications.received())


async def test_publishers_skip_notify_while_a_session_suppresses(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    assert await notifies(notifications, publisher)
    assert await suppress(worker, QUEUE) is True
    assert not await notifies(notifications, publisher)
    await unsuppress(worker, QUEUE)
    assert await notifies(notifications, publisher)


async def test_only_one_session_suppresses_a_queue(
    worker: Connection, publisher: Connection
) -> None:
    assert await suppress(worker, QUEUE) is True
    assert await suppress(publisher, QUEUE) is False
    await unsuppress(worker, QUEUE)
    assert await suppress(publisher, QUEUE) is True


@pytest.mark.parametrize("notification", ["always", "off"])
async def test_only_a_queue_with_automatic_notifications_is_suppressed(
    worker: Connection, publisher: Connection, notifications: Notifications, notification: str
) -> None:
    await value(worker, "alter_queue", name=QUEUE, notify=notification)
    assert await suppress(worker, QUEUE) is False
    assert await notifies(notifications, publisher) is (notification == "always")


async def test_a_paused_queue_is_not_suppressed(worker: Connection) -> None:
    await value(worker, "pause_queue", name=QUEUE)
    assert await suppress(worker, QUEUE) is False
    await value(worker, "resume_queue", name=QUEUE)
    assert await suppress(worker, QUEUE) is True


async def test_a_lease_ends_with_its_session(
    connection: Connection, worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    assert await suppress(worker, QUEUE) is True
    await terminate(connection, worker)
    assert await notifies(notifications, publisher)


async def test_without_publishers_only_eager_sessions_suppress(
    worker: Connection, publisher: Connection
) -> None:
    gently = "select notifyq.suppress($1, eager => false)"
    assert await worker.fetchval(gently, QUEUE) is False
    assert await suppress(publisher, QUEUE) is True, "a session that was not eager has the lease"


async def test_suppression_begins_when_open_publishers_have_committed(
    connection: Connection, worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await publisher.execute(f"begin; {PUBLISH}")
    suppressing = asyncio.create_task(suppress(worker, QUEUE))
    await until_blocked(connection, worker)
    assert not await notifies(notifications, connection), (
        "a session that waits for the lease suppresses already"
    )
    await publisher.execute("commit")
    assert await suppressing is True
    assert len(await notifications.received()) == 1, "a publisher with a share notifies"
    assert not await notifies(notifications, connection)


async def test_a_long_publisher_prevents_suppression(
    connection: Connection, worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await publisher.execute(f"begin; {PUBLISH}")
    assert await suppress(worker, QUEUE) is None
    assert await notifies(notifications, connection), "no session waits for the lease"
    xid = await unsuppress(worker)
    assert not await is_over(worker, xid)
    await publisher.execute("commit")
    assert await is_over(worker, xid)


async def test_a_publisher_that_notified_once_notifies_until_its_transaction_ends(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await publisher.execute(f"begin; {PUBLISH}")
    suppressing = asyncio.create_task(suppress(worker, QUEUE))
    await until_blocked(publisher, worker)
    await publisher.execute(f"{PUBLISH}; commit")
    assert await suppressing is True
    assert sum(len(notification.ids) for notification in await notifications.received()) == 2


async def test_a_savepoint_that_rolls_back_ends_its_share(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await publisher.execute(f"begin; savepoint a; {PUBLISH}; rollback to a")
    assert await suppress(worker, QUEUE) is True
    await publisher.execute(f"{PUBLISH}; commit")
    assert not await notifications.received()
    assert await waiting(publisher, QUEUE) == 1


async def test_a_released_savepoint_keeps_its_share(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await publisher.execute(f"begin; savepoint a; {PUBLISH}; release a")
    assert await suppress(worker, QUEUE) is None
    await publisher.execute("commit")
    assert await notifications.received()


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
async def test_the_newest_transaction_counts_as_open_whatever_the_isolation_of_the_worker(
    worker: Connection, publisher: Connection, isolation: str
) -> None:
    """No transaction that began later has ended: a snapshot does not contain it."""
    await worker.execute(f"set default_transaction_isolation = '{isolation}'")
    assert await suppress(worker, QUEUE) is True
    await publisher.execute(f"begin; {PUBLISH}")
    xid = await unsuppress(worker, QUEUE)
    assert not await is_over(worker, xid)
    await publisher.execute("commit")
    assert await is_over(worker, xid)


async def test_a_publisher_that_skipped_notify_counts_as_open_until_it_ends(
    connection: Connection, worker: Connection, publisher: Connection
) -> None:
    assert await suppress(worker, QUEUE) is True
    await publisher.execute(f"begin; {PUBLISH}")
    xid = await unsuppress(worker, QUEUE)
    for _ in range(20):
        await connection.execute(PUBLISH)
        assert not await is_over(worker, xid)
    await publisher.execute("rollback")
    assert await is_over(worker, xid)


@pytest.mark.parametrize(
    ("suppress_", "unsuppress_", "key", "insert"),
    [
        ("suppress", "unsuppress", "suppression_key", PUBLISH),
        (
            "suppress_stream",
            "unsuppress_streams",
            "stream_key",
            "insert into messages.stream_event (stream, message) values ('s', '1')",
        ),
    ],
    ids=[QUEUE, "s"],
)
async def test_a_publisher_that_skips_notify_just_before_the_release_counts_as_open(
    request: pytest.FixtureRequest,
    connection: Connection,
    worker: Connection,
    publisher: Connection,
    suppress_: str,
    unsuppress_: str,
    key: str,
    insert: str,
) -> None:
    name = request.node.callspec.id
    await value(connection, "create_stream", name="s")
    assert await worker.fetchval(f"select notifyq.{suppress_}($1)", name) is True
    # The release waits for the gate, where it computes its key.
    await connection.execute(f"""
        select pg_advisory_lock({GATE});
        alter function notifyq.{key} rename to key_behind_gate;
        create function notifyq.{key}(name text) returns bigint language plpgsql as $$
        begin
          if pg_backend_pid() = {worker.get_server_pid()} then
            perform pg_advisory_xact_lock_shared({GATE});
          end if;
          return notifyq.key_behind_gate(name);
        end $$;
    """)
    releasing = asyncio.create_task(
        worker.fetchval(f"select notifyq.{unsuppress_}($1)::text", [name])
    )
    await until_blocked(connection, worker)
    await publisher.execute(f"begin; {insert}")
    await connection.execute(f"select pg_advisory_unlock({GATE})")
    xid = await releasing
    assert not await is_over(worker, xid)
    await publisher.execute("commit")
    assert await is_over(worker, xid)


async def test_a_publisher_that_begins_after_the_release_does_not_count(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    assert await suppress(worker, QUEUE) is True
    xid = await unsuppress(worker, QUEUE)
    await publisher.execute(f"begin; {PUBLISH}")
    assert await is_over(worker, xid)
    await publisher.execute("commit")
    assert await notifications.received()


async def test_a_reader_does_not_count_as_open(worker: Connection, publisher: Connection) -> None:
    await publisher.execute("begin isolation level repeatable read; table messages.queue")
    assert await suppress(worker, QUEUE) is True
    assert await is_over(worker, await unsuppress(worker, QUEUE))
    await publisher.execute("rollback")


async def test_a_statement_for_two_queues_notifies_the_one_that_is_not_suppressed(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await value(worker, "create_queue", name="b")
    assert await suppress(worker, QUEUE) is True
    await publisher.execute(
        "insert into messages.message (queue, message) "
        "select case n % 2 when 0 then 'default' else 'b' end, '1' from generate_series(1, 4) as n"
    )
    assert [
        (notification.queue, len(notification.ids))
        for notification in await notifications.received()
    ] == [("b", 2)]


@pytest.mark.parametrize("suppressed", [False, True])
async def test_serializable_publishers_do_not_conflict(
    connect: Connect, worker: Connection, suppressed: bool
) -> None:
    if suppressed:
        await suppress(worker, QUEUE)
    publishers = [await connect() for _ in range(3)]
    for publisher in publishers:
        await publisher.execute("begin isolation level serializable")
    for publisher in [*publishers, *publishers]:
        await publisher.execute(PUBLISH)
    for publisher in publishers:
        await publisher.execute("commit")
    assert await waiting(worker, QUEUE) == 6


async def test_a_serializable_publisher_notifies_once_for_each_queue(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    await value(worker, "create_queue", name="b")
    await publisher.execute(
        "begin isolation level serializable; "
        "insert into messages.message (queue, message, available_at) "
        "select 'default', '1', now() from generate_series(1, 3); "
        "insert into messages.message (queue, message, available_at) "
        "values ('b', '1', now() + interval '1 hour'); commit"
    )
    assert [notification.queue for notification in await notifications.received()] == ["default"]


async def test_a_row_that_is_not_inserted_neither_notifies_nor_holds_the_key(
    worker: Connection, publisher: Connection, notifications: Notifications
) -> None:
    keyed = (
        "insert into messages.message (queue, message, dedup_key) values ('default', '1', 'a') "
        "on conflict do nothing"
    )
    await publisher.execute(keyed)
    await notifications.received()
    await publisher.execute(f"begin; {keyed}")
    assert await suppress(worker, QUEUE) is True
    await publisher.execute("commit")
    assert not await notifications.received()


async def test_wake_all_notifies_the_queues_with_waiting_messages(
    worker: Connection, notifications: Notifications
) -> None:
    await value(worker, "create_queue", name="b")
    await publish(worker, 1)
    await notifications.received()
    assert await value(worker, "notifyq.wake_all", queues=[QUEUE, "b", "unknown"]) == 1
    assert [notification.payload for notification in await notifications.received()] == ["default:"]


@pytest.mark.parametrize("changed", ["pause_queue", "alter_queue"])
async def test_wake_all_skips_queues_that_are_paused_or_without_notifications(
    worker: Connection, notifications: Notifications, changed: str
) -> None:
    await publish(worker, 1)
    await value(worker, changed, name=QUEUE, **({"notify": "off"} if "alter" in changed else {}))
    await notifications.received()
    assert await value(worker, "notifyq.wake_all", queues=[QUEUE]) == 0
    assert not await notifications.received()


@pytest.fixture(scope="module")
def preparing_server() -> Iterator[str]:
    """Give a server that can prepare transactions, which is off by default."""
    with kept_server(max_prepared_transactions="4") as server:
        dsn = server.start()

        async def install_schema() -> None:
            async with session(dsn) as connection:
                await install(connection)

        asyncio.run(install_schema())
        yield dsn


@pytest.fixture
async def preparing(preparing_server: str) -> AsyncIterator[str]:
    """Give a database of that server, without messages."""
    yield preparing_server
    async with session(preparing_server) as connection:
        await connection.execute("delete from messages.message")


async def test_a_prepared_publisher_counts_as_open(preparing: str) -> None:
    async with session(preparing) as worker, session(preparing) as publisher:
        assert await suppress(worker, QUEUE) is True
        await publisher.execute(f"begin; {PUBLISH}; prepare transaction 'open'")
        xid = await unsuppress(worker, QUEUE)
        assert not await is_over(worker, xid)
        await publisher.close()
        assert not await is_over(worker, xid)
        await worker.execute("commit prepared 'open'")
        assert await is_over(worker, xid)
        assert await waiting(worker, QUEUE) == 1


async def test_a_position_does_not_pass_what_a_prepared_transaction_publishes(
    preparing: str,
) -> None:
    """The claim has read so much that it remembers its position."""
    async with session(preparing) as worker, session(preparing) as publisher:
        await value(worker, "create_queue", name="mute", notify="off")
        claim = "select id from messages.claim(array['mute'], 3)"
        await publisher.execute(
            "begin; insert into messages.message (queue, message) "
            "select 'mute', '1' from generate_series(1, 40000); prepare transaction 'bulk'"
        )
        await publisher.close()
        for _ in range(3):
            assert await worker.fetch(claim) == []
        await worker.execute("commit prepared 'bulk'")
        first = await worker.fetchval("select min(id) from messages.message")
        for later in (0, 3):
            found = [row["id"] - first for row in await worker.fetch(claim)]
            assert found == [later, later + 1, later + 2]


async def test_a_prepared_transaction_with_a_delayed_message_keeps_its_share(
    preparing: str,
) -> None:
    """A delayed message sends no notification: its transaction can be prepared."""
    async with session(preparing) as worker, session(preparing) as publisher:
        await publisher.execute(
            "begin; select messages.publish('default', '1', delay => '1 hour'); "
            "prepare transaction 'delayed'"
        )
        assert await suppress(worker, QUEUE) is None
        await publisher.execute("rollback prepared 'delayed'")
        assert await suppress(worker, QUEUE) is True
