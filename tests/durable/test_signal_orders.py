"""A wait, a signal and maintenance in every order of their steps: the signal is never missed."""

from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

import asyncpg
import pytest

from support.database import Connect, Connection, publish, rows, value

Isolation = str
# What each does in its transaction: `look` fixes its snapshot where the isolation has one, `act` is
# the call, `check` what it runs at its commit.
STEPS = {
    "read committed": ("act", "check", "commit"),
    "repeatable read": ("look", "act", "check", "commit"),
}
KINDS = ("first call", "second call", "second call, signal to the message")
MUTANTS = {
    "signals are not checked": ("where s.is_new order by", "where false order by"),
    "waits are not checked": ("where w.is_new\n      order by", "where false\n      order by"),
}


def fixes_late(before: str, step: str) -> bool:
    """Whether a snapshot follows what it cannot see: it would be the same one step earlier."""
    is_hidden = before != "maintain" and not before.endswith("commit")
    return step.endswith("look") and is_hidden and (before, step) != ("wait look", "signal look")


def orders(waiter: Isolation, sender: Isolation) -> "Iterator[tuple[str, ...]]":
    """Yield the steps of both in every order that matters, with maintenance between any two."""
    mine, other = STEPS[waiter], STEPS[sender]
    size = len(mine) + len(other)
    for turns in combinations(range(size), len(mine)):
        left, right = iter(mine), iter(other)
        merged = [
            f"wait {next(left)}" if n in turns else f"signal {next(right)}" for n in range(size)
        ]
        for at in range(1, size):
            order = (*merged[:at], "maintain", *merged[at:])
            if not any(fixes_late(*steps) for steps in pairwise(order)):
                yield order


class Stage:
    """A locked message, one session that waits in its handler, and one that sends the signal."""

    def __init__(self, admin: Connection, waiter: Connection, sender: Connection) -> None:
        self.admin, self.waiter, self.sender = admin, waiter, sender
        self.name = 0

    async def prepare(self, kind: str) -> None:
        self.kind = kind
        self.name += 1
        [self.id] = await publish(self.admin, 1)
        await self.claim()
        if kind != "first call":
            await self.wait(self.admin)
            await self.admin.execute("select notifyq.maintain_signals(1000)")
            await value(self.admin, "run_now", id=self.id)
            await self.claim()

    async def claim(self) -> bool:
        found = await rows(self.admin, "claim", queues=["default"])
        self.token = found[0]["lock_token"] if found else 0
        return bool(found)

    async def wait(self, connection: Connection) -> str:
        state = await connection.fetchval(
            "select state from messages.await_signal($1, $2, 'wait', $3)",
            self.id,
            self.token,
            str(self.name),
        )
        return str(state)

    async def step(self, step: str) -> None:
        if step == "maintain":
            # Twice: what it notes the first time must not make it forget the second time.
            for _ in range(2):
                await self.admin.execute("select notifyq.maintain_signals(1000)")
            return
        who, act = step.split()
        connection = self.waiter if who == "wait" else self.sender
        if act == "look":
            await connection.execute("select count(*) from notifyq.signal")
        elif act == "check":
            await connection.execute("set constraints all immediate")
        elif act == "commit":
            await connection.execute("commit")
        elif who == "wait":
            try:
                self.state = await self.wait(connection)
            except asyncpg.SerializationError:
                # Maintenance has written the signal since the snapshot: the caller tries again.
                await connection.execute("rollback; begin")
                self.state = await self.wait(connection)
        else:
            target = self.id if self.kind == KINDS[2] else None
            await connection.execute("select messages.signal($1, '7', $2)", str(self.name), target)

    async def is_missed(self, order: "tuple[str, ...]", waiter: str, sender: str) -> bool:
        """Whether the message stays parked after these steps and one more maintenance."""
        await self.waiter.execute(f"begin isolation level {waiter}")
        await self.sender.execute(f"begin isolation level {sender}")
        for step in order:
            await self.step(step)
        await self.step("maintain")
        if self.state == "parked" and await self.claim():
            self.state = await self.wait(self.admin)
        if self.state == "parked":
            await value(self.admin, "cancel", id=self.id)
            return True
        assert self.state == "received"
        await value(self.admin, "finish", id=self.id, lock_token=self.token)
        return False

    async def missed(self, kind: str, waiter: str, sender: str) -> list[Any]:
        found = []
        for order in orders(waiter, sender):
            await self.prepare(kind)
            if await self.is_missed(order, waiter, sender):
                found.append(order)
        return found


@pytest.fixture
async def stage(connection: Connection, connect: Connect) -> Stage:
    return Stage(connection, await connect(), await connect())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("waiter", "sender"), list(product(STEPS, STEPS)))
async def test_no_order_misses_the_signal(
    stage: Stage, kind: str, waiter: str, sender: str
) -> None:
    assert await stage.missed(kind, waiter, sender) == []


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_orders_find_a_check_that_is_left_out(stage: Stage, mutant: str) -> None:
    function = "select pg_get_functiondef('notifyq.maintain_signals'::regproc)"
    text = await stage.admin.fetchval(function)
    assert MUTANTS[mutant][0] in text
    await stage.admin.execute(text.replace(*MUTANTS[mutant]))
    assert await stage.missed("first call", "read committed", "read committed")
