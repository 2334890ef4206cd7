"""What many sessions do to each other: reapers, finishers and cancellers, all at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.kinds import LOCK
from notifyq.database import sql

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

    Turn = Callable[["Client"], Awaitable[None]]

_QUEUES = ["storm", "quick"]
_REAP = "select messages.reap(quantity => 50)"
_STATISTICS = """
select s.deadlocks, s.xact_commit from pg_stat_database as s where s.datname = current_database()
"""
_PASSES = timedelta(milliseconds=100)
"""A lock that is over about when its holder is done."""


class Client:
    """A session that works without a worker, and writes down what it does."""

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
        names = ("id", "lock_token", "attempts", "locked_at", "lock_expires_at")
        call.ok(messages=[{name: row[name] for name in names} for row in rows])
        self.rig.random.shuffle(rows)
        return rows

    async def settle(self, op: str, rows: Sequence[Any]) -> None:
        """Finish, release or extend, all in one call and in the order of the rows."""
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


async def crowd(rig: Rig, turns: Sequence[Turn]) -> None:
    """Have a session for each of these, which takes its turn again and again while it lasts."""
    lasts = rig.lasting()

    async def live(number: int, turn: Turn) -> None:
        async with rig.connection() as connection:
            client = Client(rig, connection, number)
            while lasts():
                await turn(client)

    async with asyncio.TaskGroup() as group:
        for number, turn in enumerate(turns, 1):
            group.create_task(live(number, turn))


async def _hold(client: Client) -> None:
    """Claim, and finish about when the lock is over."""
    rows = await client.claim(5, _PASSES)
    await client.rig.pause(0.06, 0.16)
    if rows:
        await client.settle("finish", rows)


async def _reap(client: Client) -> None:
    await client.connection.execute(_REAP)
    await client.rig.pause(0, 0.02)


async def _maintain(client: Client) -> None:
    await client.connection.fetch(sql.MAINTAIN)
    await client.rig.pause(0, 0.1)


async def _juggle(client: Client) -> None:
    """Claim, and extend, release or finish in the wrong order."""
    rows = await client.claim(20, _PASSES if client.rig.random.random() < 0.3 else 20 * _PASSES)
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


class _Crowded(Fault):
    """A fault made of sessions, none of which may wait for another in a circle."""

    mix = {"storm": 6, "quick": 2, "slow": 1}
    rate = 250
    # A deadlock is found at once, and the next one can happen.
    settings = {"deadlock_timeout": "20ms"}
    turns: Sequence[Turn] = ()

    async def inject(self, rig: Rig) -> None:
        """Let them loose."""
        self._before = await _statistics(rig)
        with rig.injecting(self.name):
            await crowd(rig, self.turns)

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


class Reapers(_Crowded):
    """Many reap at the same time what many finish at the same time."""

    name = "reapers"
    title = "four sessions reap and maintain, four finish when their locks are over"
    number = "5+6"
    turns = [_reap, _reap, _maintain, _maintain, _hold, _hold, _hold, _hold]


class Deadlocks(_Crowded):
    """Batches are settled in a shuffled order beside a reaper and a canceller."""

    name = "deadlocks"
    title = "eight sessions finish, release, extend, reap and cancel in shuffled order"
    number = "21"
    turns = [*[_juggle] * 6, _reap, _cancel]

    async def inject(self, rig: Rig) -> None:
        """Let them loose; what is cancelled is archived under a token that nobody was granted."""
        # The checker allows for that where it does not know of all claims.
        rig.history.invoke("claim").unknown()
        await super().inject(rig)


class NoCron(Fault):
    """Nothing in the server reaps: the workers do it."""

    name = "no-cron"
    title = "pg_cron is not loaded, and workers die"
    number = "7"
    settings = {"shared_preload_libraries": ""}
    mix = {"slow": 1, "quick": 1}

    async def inject(self, rig: Rig) -> None:
        """Kill workers, and look how long expired locks stay."""
        lasts = rig.lasting()
        oldest = 0.0
        async with rig.connection() as connection:
            while lasts():
                worker = rig.random.choice(rig.workers)
                with rig.injecting("worker-kill", victim=worker.name):
                    worker.restart()
                for _ in range(25):
                    oldest = max(oldest, await _oldest(connection))
                    await rig.pause(0.04)
        rig.figure("oldest expired lock s", oldest)
        # A minute would be pg_cron's, whose job is still in its table.
        rig.require(oldest < 10, f"a lock stayed for {oldest:.1f} s after its end")


async def _oldest(connection: Connection) -> float:
    """Seconds that the oldest lock has been over."""
    now = await connection.fetchval("select clock_timestamp()")
    rows = await connection.fetch(sql.MESSAGE_LIST, None, "locked", 1000)
    return max((now - row["lock_expires_at"]).total_seconds() for row in rows) if rows else 0.0


class Serializable(Fault):
    """Somebody has made SERIALIZABLE the default of the server."""

    name = "serializable"
    title = "default_transaction_isolation is serializable"
    number = "22"
    # Without pg_cron, whose sessions have no say in it.
    settings = {"default_transaction_isolation": "serializable", "shared_preload_libraries": ""}
    rate = 200

    async def inject(self, rig: Rig) -> None:
        """Let messages flow."""
        before = rig.server.logged("40001")
        with rig.injecting(self.name):
            await rig.pause(rig.seconds)
        failures = rig.server.logged("40001") - before
        claims = sum(call.op == "claim" for call in rig.calls())
        rig.figure("40001 per 1000 claims", 1000 * failures / max(claims, 1))
        rig.require(not failures, f"{failures} calls failed with 40001")
