"""The functions of the bell one by one: attend, unattend, settled, summon."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from notify.protocol import INSERT, attend, settled, unattend, waiting
from notifyq.server import Server, debian_binaries, wheel_binaries
from support.database import (
    Bells,
    Connect,
    Connection,
    install,
    publish,
    session,
    terminate,
    until_blocked,
    value,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUEUE = "default"
PUBLISH = INSERT.format(queue=QUEUE)


@pytest.fixture
async def worker(connect: Connect) -> Connection:
    """Give the session of a worker."""
    return await connect()


@pytest.fixture
async def publisher(connect: Connect) -> Connection:
    """Give the session of a publisher."""
    return await connect()


async def rings(bells: Bells, publisher: Connection) -> bool:
    await bells.heard()
    await publisher.execute(PUBLISH)
    return bool(await bells.heard())


async def test_publishers_are_silent_while_somebody_attends(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    assert await rings(bells, publisher)
    assert await attend(worker, QUEUE) is True
    assert not await rings(bells, publisher)
    await unattend(worker, QUEUE)
    assert await rings(bells, publisher)


async def test_of_two_who_attend_one_is_refused(worker: Connection, publisher: Connection) -> None:
    assert await attend(worker, QUEUE) is True
    assert await attend(publisher, QUEUE) is False
    await unattend(worker, QUEUE)
    assert await attend(publisher, QUEUE) is True


@pytest.mark.parametrize("bell", ["always", "off"])
async def test_a_queue_with_another_bell_is_not_attended(
    worker: Connection, publisher: Connection, bells: Bells, bell: str
) -> None:
    await value(worker, "alter_queue", name=QUEUE, bell=bell)
    assert await attend(worker, QUEUE) is False
    assert await rings(bells, publisher) is (bell == "always")


async def test_a_paused_queue_is_not_attended(worker: Connection) -> None:
    await value(worker, "pause_queue", name=QUEUE)
    assert await attend(worker, QUEUE) is False
    await value(worker, "resume_queue", name=QUEUE)
    assert await attend(worker, QUEUE) is True


async def test_the_promise_ends_with_the_session(
    connection: Connection, worker: Connection, publisher: Connection, bells: Bells
) -> None:
    assert await attend(worker, QUEUE) is True
    await terminate(connection, worker)
    assert await rings(bells, publisher)


async def test_without_a_publisher_at_work_only_the_eager_attend(
    worker: Connection, publisher: Connection
) -> None:
    asked = "select notifyq.suppress($1, eager => false)"
    assert await worker.fetchval(asked, QUEUE) is False
    assert await attend(publisher, QUEUE) is True, "the one who was not eager holds it"


async def test_one_who_attends_waits_for_those_who_ring(
    connection: Connection, worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await publisher.execute(f"begin; {PUBLISH}")
    attending = asyncio.create_task(attend(worker, QUEUE))
    await until_blocked(connection, worker)
    assert not await rings(bells, connection), "one who waits for the key silences already"
    await publisher.execute("commit")
    assert await attending is True
    assert len(await bells.heard()) == 1, "who was granted a share rings"
    assert not await rings(bells, connection)


async def test_one_who_rings_for_long_is_not_waited_for(
    connection: Connection, worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await publisher.execute(f"begin; {PUBLISH}")
    assert await attend(worker, QUEUE) is None
    assert await rings(bells, connection), "nobody stands in the queue for the key any more"
    since = await unattend(worker)
    assert not await settled(worker, since)
    await publisher.execute("commit")
    assert await settled(worker, since)


async def test_whoever_rang_rings_to_the_end_of_its_transaction(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await publisher.execute(f"begin; {PUBLISH}")
    attending = asyncio.create_task(attend(worker, QUEUE))
    await until_blocked(publisher, worker)
    await publisher.execute(f"{PUBLISH}; commit")
    assert await attending is True
    assert sum(len(bell.ids) for bell in await bells.heard()) == 2


async def test_a_bell_that_is_rolled_back_gives_its_share_back(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await publisher.execute(f"begin; savepoint a; {PUBLISH}; rollback to a")
    assert await attend(worker, QUEUE) is True
    await publisher.execute(f"{PUBLISH}; commit")
    assert not await bells.heard()
    assert await waiting(publisher, QUEUE) == 1


async def test_a_share_of_a_released_savepoint_is_kept(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await publisher.execute(f"begin; savepoint a; {PUBLISH}; release a")
    assert await attend(worker, QUEUE) is None
    await publisher.execute("commit")
    assert await bells.heard()


async def test_the_newest_transaction_is_waited_for(
    worker: Connection, publisher: Connection
) -> None:
    """No transaction that began later has ended: a snapshot would not tell of it."""
    assert await attend(worker, QUEUE) is True
    await publisher.execute(f"begin; {PUBLISH}")
    since = await unattend(worker, QUEUE)
    assert not await settled(worker, since)
    await publisher.execute("commit")
    assert await settled(worker, since)


async def test_a_silent_publisher_is_waited_for_as_long_as_it_takes(
    connection: Connection, worker: Connection, publisher: Connection
) -> None:
    assert await attend(worker, QUEUE) is True
    await publisher.execute(f"begin; {PUBLISH}")
    since = await unattend(worker, QUEUE)
    for _ in range(20):
        await connection.execute(PUBLISH)
        assert not await settled(worker, since)
    await publisher.execute("rollback")
    assert await settled(worker, since)


async def test_who_begins_after_the_release_is_not_waited_for(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    assert await attend(worker, QUEUE) is True
    since = await unattend(worker, QUEUE)
    await publisher.execute(f"begin; {PUBLISH}")
    assert await settled(worker, since)
    await publisher.execute("commit")
    assert await bells.heard()


async def test_a_reader_is_not_waited_for(worker: Connection, publisher: Connection) -> None:
    await publisher.execute("begin isolation level repeatable read; table messages.queue")
    assert await attend(worker, QUEUE) is True
    assert await settled(worker, await unattend(worker, QUEUE))
    await publisher.execute("rollback")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_isolation_of_the_workers_session_does_not_matter(
    worker: Connection, publisher: Connection, isolation: str
) -> None:
    await worker.execute(f"set default_transaction_isolation = '{isolation}'")
    assert await attend(worker, QUEUE) is True
    await publisher.execute(f"begin; {PUBLISH}")
    since = await unattend(worker, QUEUE)
    assert not await settled(worker, since)
    await publisher.execute("commit")
    assert await settled(worker, since)


async def test_of_a_statement_over_two_queues_the_one_not_attended_rings(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await value(worker, "create_queue", name="b")
    assert await attend(worker, QUEUE) is True
    await publisher.execute(
        "insert into messages.message (queue, message) "
        "select case n % 2 when 0 then 'default' else 'b' end, '1' from generate_series(1, 4) as n"
    )
    assert [(bell.queue, len(bell.ids)) for bell in await bells.heard()] == [("b", 2)]


@pytest.mark.parametrize("attended", [False, True])
async def test_serializable_publishers_do_not_conflict(
    connect: Connect, worker: Connection, attended: bool
) -> None:
    if attended:
        await attend(worker, QUEUE)
    publishers = [await connect() for _ in range(3)]
    for publisher in publishers:
        await publisher.execute("begin isolation level serializable")
    for publisher in [*publishers, *publishers]:
        await publisher.execute(PUBLISH)
    for publisher in publishers:
        await publisher.execute("commit")
    assert await waiting(worker, QUEUE) == 6


async def test_a_serializable_publisher_rings_once_for_each_queue(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    await value(worker, "create_queue", name="b")
    await publisher.execute(
        "begin isolation level serializable; "
        "insert into messages.message (queue, message, available_at) "
        "select 'default', '1', now() from generate_series(1, 3); "
        "insert into messages.message (queue, message, available_at) "
        "values ('b', '1', now() + interval '1 hour'); commit"
    )
    assert [bell.queue for bell in await bells.heard()] == ["default"]


async def test_a_row_that_is_not_inserted_neither_rings_nor_holds_the_key(
    worker: Connection, publisher: Connection, bells: Bells
) -> None:
    keyed = (
        "insert into messages.message (queue, message, dedup_key) values ('default', '1', 'a') "
        "on conflict do nothing"
    )
    await publisher.execute(keyed)
    await bells.heard()
    await publisher.execute(f"begin; {keyed}")
    assert await attend(worker, QUEUE) is True
    await publisher.execute("commit")
    assert not await bells.heard()


async def test_a_summons_rings_for_all_where_something_waits(
    worker: Connection, bells: Bells
) -> None:
    await value(worker, "create_queue", name="b")
    await publish(worker, 1)
    await bells.heard()
    assert await value(worker, "notifyq.wake_all", queues=[QUEUE, "b", "unknown"]) == 1
    assert [bell.payload for bell in await bells.heard()] == ["default:"]


@pytest.mark.parametrize("silenced", ["pause_queue", "alter_queue"])
async def test_a_summons_is_as_silent_as_the_queue(
    worker: Connection, bells: Bells, silenced: str
) -> None:
    await publish(worker, 1)
    await value(worker, silenced, name=QUEUE, **({"bell": "off"} if "alter" in silenced else {}))
    await bells.heard()
    assert await value(worker, "notifyq.wake_all", queues=[QUEUE]) == 0
    assert not await bells.heard()


@pytest.fixture
async def preparing() -> AsyncIterator[str]:
    """Give a database of a server that can prepare transactions, which most are told not to."""
    binaries = debian_binaries() or wheel_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL is installed")
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        # Run by root, the server is another user's and must be able to enter.
        Path(folder).chmod(0o711)
        server = Server(
            Path(folder) / "server",
            binaries=binaries,
            settings={"max_prepared_transactions": "4"},
            throwaway=True,
        )
        try:
            dsn = server.start()
            async with session(dsn) as connection:
                await install(connection)
            yield dsn
        finally:
            server.stop()


async def test_a_prepared_silent_publisher_is_waited_for(preparing: str) -> None:
    async with session(preparing) as worker, session(preparing) as publisher:
        assert await attend(worker, QUEUE) is True
        await publisher.execute(f"begin; {PUBLISH}; prepare transaction 'silent'")
        since = await unattend(worker, QUEUE)
        assert not await settled(worker, since)
        await publisher.close()
        assert not await settled(worker, since)
        await worker.execute("commit prepared 'silent'")
        assert await settled(worker, since)
        assert await waiting(worker, QUEUE) == 1


async def test_a_position_does_not_pass_what_a_prepared_transaction_publishes(
    preparing: str,
) -> None:
    """The claim has read so much of it that it remembers where it was."""
    async with session(preparing) as worker, session(preparing) as publisher:
        await value(worker, "create_queue", name="mute", bell="off")
        claim = "select id from messages.claim(array['mute'], 3)"
        await publisher.execute(
            "begin; insert into messages.message (queue, message) "
            "select 'mute', '1' from generate_series(1, 40000); prepare transaction 'bulk'"
        )
        await publisher.close()
        for _ in range(3):
            assert await worker.fetch(claim) == []
        await worker.execute("commit prepared 'bulk'")
        assert [row["id"] for row in await worker.fetch(claim)] == [1, 2, 3]
        assert [row["id"] for row in await worker.fetch(claim)] == [4, 5, 6]


async def test_a_prepared_transaction_that_would_ring_later_keeps_its_share(preparing: str) -> None:
    """A delayed message rings for nobody, so its transaction can be prepared."""
    async with session(preparing) as worker, session(preparing) as publisher:
        await publisher.execute(
            "begin; select messages.publish('default', '1', delay => '1 hour'); "
            "prepare transaction 'delayed'"
        )
        assert await attend(worker, QUEUE) is None
        await publisher.execute("rollback prepared 'delayed'")
        assert await attend(worker, QUEUE) is True
