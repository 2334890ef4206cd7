"""Faults by concurrent sessions: many of them reap, finish, release and cancel at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.history import LOCK_FIELDS
from notifyq.chaos.kinds import LOCK
from notifyq.database import statements as sql

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

    Step = Callable[["Client"], Awaitable[None]]

_QUEUES = ["storm", "quick"]
_REAP = "select messages.reap(quantity => 50)"
_STATISTICS = """
select s.deadlocks, s.xact_commit from pg_stat_database as s where s.datname = current_database()
"""
_ABOUT_OVER = timedelta(milliseconds=100)
"""A lock that expires about when its holder finishes."""


class Client:
    """A session that claims and settles without a worker, and records a history."""

    def __init__(self, rig: Rig, connection: Connection, number: int) -> None:
        self.rig = rig
        self.connection = connection
        self.name = f"client-{number}"

    async def claim(self, quantity: int, lock: timedelta) -> list[Any]:
        """Claim messages."""
        call = self.rig.history.invoke("claim")
        rows = await self.connection.fetch(
            sql.CLAIM,
            *(_QUEUES, quantity, lock, self.name, None, False, None, None),
        )
        call.ok(messages=[{name: row[name] for name in LOCK_FIELDS} for row in rows])
        self.rig.random.shuffle(rows)
        return rows

    async def settle(self, op: str, rows: Sequence[Any]) -> None:
        """Finish, release or extend in one call, in the order of the rows."""
        calls = [
            self.rig.history.invoke(
                op, id=row["id"], lock_token=row["lock_token"], status="success"
            )
            for row in rows
        ]
        keys = [row["id"] for row in rows], [row["lock_token"] for row in rows]
        rest: tuple[Any, ...]
        match op:
            case "finish":
                statement = sql.FINISH_MANY
                rest = ["success"] * len(rows), [None] * len(rows), [None] * len(rows)
            case "release":
                statement, rest = sql.RELEASE_MANY, ()
            case _:
                statement, rest = sql.EXTEND_MANY, (timedelta(seconds=LOCK),)
        held = {row[0] for row in await self.connection.fetch(statement, *keys, *rest)}
        for call, row in zip(calls, rows, strict=True):
            call.ok(held=row["id"] in held)


async def repeat(rig: Rig, steps: Sequence[Step]) -> None:
    """Repeat each step in a session of its own until the fault ends."""

    async def run(number: int, step: Step) -> None:
        async with rig.connection() as connection:
            client = Client(rig, connection, number)
            for _ in rig.rounds():
                await step(client)

    async with asyncio.TaskGroup() as group:
        for number, step in enumerate(steps, 1):
            group.create_task(run(number, step))


async def _hold(client: Client) -> None:
    """Claim, and finish about when the lock expires."""
    rows = await client.claim(5, _ABOUT_OVER)
    await client.rig.pause(0.06, 0.16)
    if rows:
        await client.settle("finish", rows)


async def _reap(client: Client) -> None:
    await client.connection.execute(_REAP)
    await client.rig.pause(0, 0.02)


async def _maintain(client: Client) -> None:
    await client.connection.fetch(sql.MAINTAIN)
    await client.rig.pause(0, 0.1)


async def _shuffle(client: Client) -> None:
    """Claim, and extend, release or finish in random order."""
    rows = await client.claim(
        20, _ABOUT_OVER if client.rig.random.random() < 0.3 else 20 * _ABOUT_OVER
    )
    if rows:
        op = client.rig.random.choice(["extend", "release", "finish", "finish"])
        await client.settle(op, rows)
        if op == "extend":
            client.rig.random.shuffle(rows)
            await client.settle("finish", rows)


async def _cancel(client: Client) -> None:
    rows = await client.connection.fetch(sql.MESSAGE_LIST, None, "waiting", 20)
    for row in client.rig.random.sample(rows, len(rows)):
        call = client.rig.history.invoke("cancel", id=row["id"])
        call.ok(held=await client.connection.fetchval(sql.CANCEL, row["id"]))
    await client.rig.pause(0, 0.05)


class _Sessions(Fault):
    """A fault made of concurrent sessions, which must not deadlock."""

    mix = {"storm": 6, "quick": 2, "slow": 1}
    rate = 250
    # Finds a deadlock at once.
    settings = {"deadlock_timeout": "20ms"}
    steps: Sequence[Step] = ()

    async def inject(self, rig: Rig) -> None:
        self._before = await _statistics(rig)
        with rig.injecting(self.name):
            await repeat(rig, self.steps)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Count deadlocks."""
        after = await _statistics(rig)
        deadlocks, commits = (now - before for now, before in zip(after, self._before, strict=True))
        rig.figure("transactions", commits)
        rig.figure("deadlocks per million", deadlocks * 1e6 / max(commits, 1))
        rig.figure("stale refused", sum(call.fields.get("held") is False for call in history))
        rig.require(not deadlocks, f"{deadlocks} deadlocks in {commits} transactions")


async def _statistics(rig: Rig) -> list[int]:
    async with rig.connection() as connection:
        [row] = await connection.fetch(_STATISTICS)
    return list(row)


class Reapers(_Sessions):
    """Four sessions reap and maintain, four finish when their locks expire."""

    name = "reapers"
    steps = [_reap, _reap, _maintain, _maintain, _hold, _hold, _hold, _hold]


class Deadlocks(_Sessions):
    """Eight sessions finish, release, extend, reap and cancel in shuffled order."""

    name = "deadlocks"
    steps = [*[_shuffle] * 6, _reap, _cancel]

    async def inject(self, rig: Rig) -> None:
        # With an unknown claim the checker allows such tokens.
        rig.history.invoke("claim").unknown()
        await super().inject(rig)


class NoCron(Fault):
    """pg_cron is not loaded, and workers are killed."""

    name = "no-cron"
    settings = {"shared_preload_libraries": ""}
    mix = {"slow": 1, "quick": 1}

    async def inject(self, rig: Rig) -> None:
        oldest = 0.0
        async with rig.connection() as connection:
            for _ in rig.rounds():
                worker = rig.random.choice(rig.workers)
                with rig.injecting("worker-kill", victim=worker.name):
                    worker.restart()
                for _ in range(25):
                    oldest = max(oldest, await _oldest(connection))
                    await rig.pause(0.04)
        rig.figure("oldest expired lock s", oldest)
        # pg_cron would take up to a minute.
        rig.require(oldest < 10, f"a lock stayed for {oldest:.1f} s after it expired")


async def _oldest(connection: Connection) -> float:
    """Seconds since the oldest lock expired."""
    now = await connection.fetchval("select clock_timestamp()")
    rows = await connection.fetch(sql.MESSAGE_LIST, None, "locked", 1000)
    return max((now - row["lock_expires_at"]).total_seconds() for row in rows) if rows else 0.0


class Serializable(Fault):
    """default_transaction_isolation is serializable."""

    name = "serializable"
    # Without pg_cron, whose sessions do not set the isolation level.
    settings = {"default_transaction_isolation": "serializable", "shared_preload_libraries": ""}
    rate = 200

    async def inject(self, rig: Rig) -> None:
        before = rig.server.logged("40001")
        with rig.injecting(self.name):
            await rig.pause(rig.seconds)
        failures = rig.server.logged("40001") - before
        claims = sum(call.op == "claim" for call in rig.calls())
        rig.figure("40001 per 1000 claims", 1000 * failures / max(claims, 1))
        rig.require(not failures, f"{failures} calls failed with 40001")
