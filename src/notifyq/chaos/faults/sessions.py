"""Faults by sessions: many of them settle at once, lock tables, flood notifications, hold keys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.history import LOCK_FIELDS, Call, waits
from notifyq.chaos.kinds import LOCK
from notifyq.chaos.server import until
from notifyq.database import statements as sql

if TYPE_CHECKING:
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

    Step = Callable[["Client"], Awaitable[None]]


_QUEUES = ["storm", "quick"]
_REAP = "select messages.reap(quantity => 50)"
_ABOUT_OVER = timedelta(milliseconds=100)
"""A lock that expires about when its holder finishes."""


class Client:
    """A session that claims and settles without a worker, and records a history."""

    def __init__(self, rig: Rig, connection: Connection, number: int) -> None:
        self.rig = rig
        self.connection = connection
        self.name = f"client-{number}"

    async def claim(self, quantity: int, lock: timedelta) -> list[Any]:
        """Claim messages; return them in random order."""
        call = self.rig.history.invoke("claim")
        options = (_QUEUES, quantity, lock, self.name, None, False, None, None)
        rows = await self.connection.fetch(sql.CLAIM, *options)
        call.ok(messages=[{name: row[name] for name in LOCK_FIELDS} for row in rows])
        self.rig.random.shuffle(rows)
        return rows

    async def settle(self, op: str, rows: Sequence[Any]) -> None:
        """Finish, release or extend in one call, in the order of the rows."""
        locks = [{"id": row["id"], "lock_token": row["lock_token"]} for row in rows]
        calls = [self.rig.history.invoke(op, **lock, status="success") for lock in locks]
        nothing = [None] * len(rows)
        statements: dict[str, tuple[str, list[Any]]] = {
            "finish": (sql.FINISH_MANY, [["success"] * len(rows), nothing, nothing]),
            "release": (sql.RELEASE_MANY, []),
            "extend": (sql.EXTEND_MANY, [timedelta(seconds=LOCK)]),
        }
        statement, rest = statements[op]
        keys = [lock["id"] for lock in locks], [lock["lock_token"] for lock in locks]
        held = {row[0] for row in await self.connection.fetch(statement, *keys, *rest)}
        for call, lock in zip(calls, locks, strict=True):
            call.ok(held=lock["id"] in held)


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
    chance = client.rig.random
    rows = await client.claim(20, _ABOUT_OVER if chance.random() < 0.3 else 20 * _ABOUT_OVER)
    if rows:
        op = chance.choice(["extend", "release", "finish", "finish"])
        await client.settle(op, rows)
        if op == "extend":
            chance.shuffle(rows)
            await client.settle("finish", rows)


async def _cancel(client: Client) -> None:
    rows = await client.connection.fetch(sql.MESSAGE_LIST, None, "waiting", 20)
    for row in client.rig.random.sample(rows, len(rows)):
        call = client.rig.history.invoke("cancel", id=row["id"])
        call.ok(held=await client.connection.fetchval(sql.CANCEL, row["id"]))
    await client.rig.pause(0, 0.05)


class _Unfailing(Fault):
    """A fault under which no call may fail with a certain SQLSTATE."""

    never: str

    async def inject(self, rig: Rig) -> None:
        self._before = rig.server.logged(self.never)
        with rig.injecting(self.name):
            await self.strike(rig)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        rig.figure(f"errors {self.never}", rig.server.logged(self.never) - self._before, most=0)


class _Sessions(_Unfailing):
    """A fault made of concurrent sessions, which must not deadlock."""

    mix = {"storm": 6, "quick": 2, "slow": 1}
    rate = 250
    # Finds a deadlock at once.
    settings = {"deadlock_timeout": "20ms"}
    never = "40P01"
    steps: Sequence[Step] = ()

    async def strike(self, rig: Rig) -> None:
        async with asyncio.TaskGroup() as group:
            for number, step in enumerate(self.steps, 1):
                group.create_task(self._repeat(rig, number, step))

    async def _repeat(self, rig: Rig, number: int, step: Step) -> None:
        """Repeat a step in a session of its own until the fault ends."""
        async with rig.connection() as connection:
            client = Client(rig, connection, number)
            for _ in rig.rounds():
                await step(client)


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


class Serializable(_Unfailing):
    """default_transaction_isolation is serializable."""

    name = "serializable"
    # Without pg_cron, whose sessions do not set the isolation level.
    settings = {"default_transaction_isolation": "serializable", "shared_preload_libraries": ""}
    never = "40001"
    rate = 200

    async def strike(self, rig: Rig) -> None:
        await rig.pause(rig.seconds)


class Timeouts(Fault):
    """The role has short timeouts, and the table is locked for a while."""

    name = "timeouts"
    between = (0.2, 0.6)

    async def inject(self, rig: Rig) -> None:
        before = self._refusals(rig)
        async with rig.connection() as owner:
            await owner.execute("alter role current_user set statement_timeout = '5ms'")
            await owner.execute("alter role current_user set lock_timeout = '10ms'")
            try:
                with rig.injecting(self.name):
                    rig.proxy.cut()
                    await super().inject(rig)
            finally:
                await owner.execute("alter role current_user reset statement_timeout")
                await owner.execute("alter role current_user reset lock_timeout")
            rig.proxy.cut()
        rig.figure("refusals", self._refusals(rig) - before)

    async def strike(self, rig: Rig) -> None:
        async with rig.connection() as owner, owner.transaction():
            await owner.execute("set local lock_timeout = 0; set local statement_timeout = 0")
            await owner.execute("lock table messages.message in access exclusive mode")
            await rig.pause(0.1, 1)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        claims = Counter(message["id"] for call in history for message in call.messages)
        leaked = {
            call.fields["id"]
            for call in history
            if call.op == "execute" and call.fields["attempts"] > claims[call.fields["id"]]
        }
        rig.figure("claims leaked", len(leaked), most=0)

    def _refusals(self, rig: Rig) -> int:
        return rig.server.logged("55P03") + rig.server.logged("57014")


class Hostile(Fault):
    """A role without grants floods notifications and takes every advisory lock."""

    name = "hostile"

    _FLOOD = 5000
    """Notifications a second."""
    _MOST_CLAIMS = 120
    """More claims a second of a worker that find nothing in the flood; its own limit is 100."""

    async def inject(self, rig: Rig) -> None:
        began = time.monotonic()
        await rig.pause(1.5)
        self._calm = began, time.monotonic()
        async with rig.connection() as owner:
            await owner.execute("create role mallory")
            try:
                async with rig.connection() as mallory:
                    await mallory.execute("set role mallory")
                    with rig.injecting(self.name):
                        self._flooded = await self._flood(rig, mallory)
                        self._held = await self._hold_keys(rig, owner, mallory)
            finally:
                await owner.execute("drop role mallory")

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        empty = [c for c in history if c.op == "claim" and c.outcome == "ok" and not c.messages]
        calm, flooded = (
            sum(began <= call.began < ended for call in empty) / (ended - began) / len(rig.workers)
            for began, ended in (self._calm, self._flooded)
        )
        rig.figure("empty claims/s of a worker before", calm)
        rig.figure("more in the flood", flooded - calm, most=self._MOST_CLAIMS)
        rig.figure("wait s without keys", max(waits(history, *self._held), default=0), most=10)

    async def _flood(self, rig: Rig, mallory: Connection) -> tuple[float, float]:
        began, portion = time.monotonic(), self._FLOOD // 20
        for number in rig.rounds():
            due = time.monotonic() + 1 / 20
            await mallory.execute(
                "select pg_notify('new_message', 'quick:' || n) "
                "from generate_series($1::int, $2) as n",
                number * portion,
                number * portion + portion,
            )
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return began, time.monotonic()

    async def _hold_keys(
        self, rig: Rig, owner: Connection, mallory: Connection
    ) -> tuple[float, float]:
        """Take every advisory lock of the schema: any role can take any of them."""
        await mallory.execute(_TAKE_KEYS)
        began = time.monotonic()
        await rig.pause(2)
        # Returns null while a worker runs maintenance.
        await until(
            lambda: owner.fetchval("select messages.maintain() is not null"),
            "maintenance runs while another role holds every advisory lock",
        )
        return began, time.monotonic()


# The keys of suppression leases and slots, which any role can compute, and those of maintenance.
_TAKE_KEYS = """
select pg_try_advisory_lock(hashtextextended(q, 7305427004)),
  (
    select count(pg_try_advisory_lock(hashtextextended(q, 7305427100 + p)))
    from generate_series(1, 4) as p
  )
from unnest('{quick,slow,flaky,reject}'::text[]) as q;
select count(pg_try_advisory_lock(k)) from generate_series(7305427000, 7305427010) as k;
"""
