"""Every order of steps of publishers and a worker that ends suppression: no notification is lost.

This checks what the models prove on the real functions and a real server.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence

import pytest

from notify.protocol import COPY, INSERT, Sleeper, Writer, orders, run, waiting
from support.database import Connect, Connection, Notifications, value

PLAIN = (f"begin; {INSERT}", "commit")

KINDS = {
    "publish": ("begin; select messages.publish('{queue}', '1')", "commit"),
    "copy": (COPY, "commit"),
    "read committed": ("begin isolation level read committed; " + INSERT, "commit"),
    "repeatable read": ("begin isolation level repeatable read; select 1", INSERT, "commit"),
    "serializable": ("begin isolation level serializable; select 1", INSERT, "commit"),
    "two statements": (f"begin; {INSERT}", INSERT, "commit"),
    "rolled back": (f"begin; {INSERT}", "rollback"),
    "savepoint released": (f"begin; savepoint a; {INSERT}", "release a", "commit"),
    "savepoint rolled back": (
        f"begin; savepoint a; {INSERT}", f"rollback to a; {INSERT}", "commit",
    ),
    "written before": (f"begin; {INSERT}", f"savepoint a; {INSERT}", "rollback to a; commit"),
    "conflict": (
        "begin; insert into messages.message (queue, message, dedup_key) values "
        "('{queue}', '1', 'a'), ('{queue}', '1', 'a') on conflict do nothing",
        "commit",
    ),
    "two queues": (
        "begin; insert into messages.message (queue, message) "
        "values ('default', '1'), ('{queue}', '1')",
        "commit",
    ),
    "many": (
        "begin; insert into messages.message (queue, message) "
        "select '{queue}', '1' from generate_series(1, 200)",
        "commit",
    ),
}  # fmt: skip


@pytest.fixture
async def hasty(connection: Connection) -> AsyncIterator[None]:
    """Let suppress() wait for publishers only as long as it takes to be seen waiting."""
    function = "notifyq.extend_suppression"
    definition = await connection.fetchval(f"select pg_get_functiondef('{function}'::regproc)")
    await connection.execute(f"alter function {function} set lock_timeout = '20ms'")
    yield
    await connection.execute(definition)


class Stage:
    """The sessions of a test, and a fresh queue for every order of steps."""

    def __init__(
        self,
        observer: Connection,
        notifications: Notifications,
        worker: Connection,
        writers: list[Connection],
    ) -> None:
        self._observer = observer
        self._notifications = notifications
        self._worker = worker
        self._writers = writers
        self._numbers = itertools.count(1)
        self.slept_at_once = 0
        """Orders after which the worker slept without another poll."""

    async def loses(
        self, order: Sequence[int], *scripts: Sequence[str], mutant: str | None = None
    ) -> bool:
        """Run one order, the worker's steps last; return whether a message waits permanently."""
        queue = f"queue{next(self._numbers)}"
        await value(self._observer, "create_queue", name=queue)
        worker = Sleeper(self._worker, self._notifications, queue)
        if mutant:
            setattr(worker, *{"no wait": ("waits_for_publishers", False),
                              "read first": ("reads_before_release", True)}[mutant])  # fmt: skip
        writers = [
            Writer(session, queue, *script)
            for session, script in zip(self._writers, scripts, strict=False)
        ]
        await run(order, *(writer.steps for writer in writers), worker.steps)
        self.slept_at_once += worker.is_asleep
        await worker.end()
        return await waiting(self._observer, queue) > 0 and not await worker.is_notified()


@pytest.fixture
async def stage(
    connection: Connection, connect: Connect, notifications: Notifications, hasty: None
) -> Stage:
    """Give the sessions of a worker and two publishers."""
    return Stage(connection, notifications, await connect(), [await connect() for _ in range(2)])


def test_orders_gives_all_orders() -> None:
    assert sorted(orders(1, 2)) == [(0, 1, 1), (1, 0, 1), (1, 1, 0)]
    assert len(set(orders(2, 2, 4))) == 420


async def test_no_order_of_two_publishers_and_a_worker_loses_a_notification(stage: Stage) -> None:
    # The publishers do the same: an order in which the second one begins is one of the others.
    tried = [order for order in orders(2, 2, 4) if order.index(0) < order.index(1)]
    lost = [order for order in tried if await stage.loses(order, PLAIN, PLAIN)]
    assert not lost
    assert 0 < stage.slept_at_once < len(tried), "one way of falling asleep was never taken"


@pytest.mark.parametrize("kind", KINDS)
async def test_no_order_loses_a_notification_however_the_publisher_writes(
    stage: Stage, kind: str
) -> None:
    script = KINDS[kind]
    lost = [order for order in orders(len(script), 4) if await stage.loses(order, script)]
    assert not lost


@pytest.mark.parametrize("mutant", ["no wait", "read first"])
async def test_a_worker_that_breaks_the_protocol_loses_notifications(
    stage: Stage, mutant: str
) -> None:
    steps = 5 if mutant == "read first" else 4
    lost = [order for order in orders(2, steps) if await stage.loses(order, PLAIN, mutant=mutant)]
    assert lost
