"""Load beside the queue: old snapshots, no vacuum, short timeouts, locked tables."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from notifyq.chaos import neighbour
from notifyq.chaos.faults.base import Fault
from notifyq.chaos.server import session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

_SIZE = "select pg_total_relation_size('messages.message') / 1024.0 / 1024"
_MOST_SLOWDOWN = 20
"""How many times slower claims may get; large, because the machine is shared."""


class HeldSnapshot(Fault):
    """An endless report holds a snapshot: dead rows cannot be removed."""

    name = "held-snapshot"
    rate = 40

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            async with (
                neighbour.neighbour(rig.server.dsn) as dsn,
                rig.connection() as report,
                session(dsn, "report") as holder,
            ):
                await report.execute(_HOLD)
                before = await neighbour.work_through(dsn, rig.seconds / 4)
                await holder.execute(_HOLD)
                held = await neighbour.work_through(dsn, rig.seconds * 3 / 4)
                rig.figure("megabytes", float(await holder.fetchval(_SIZE)))
        _compare(rig, before, held)


_HOLD = "begin isolation level repeatable read; select count(*) from pg_class"


class AutovacuumOff(Fault):
    """Autovacuum is off."""

    name = "autovacuum-off"
    settings = {"autovacuum": "off"}
    rate = 40

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn:
                before = await neighbour.work_through(dsn, rig.seconds / 4)
                after = await neighbour.work_through(dsn, rig.seconds * 3 / 4)
                handled = 10 * (len(before) + len(after))
                async with session(dsn, "size") as connection:
                    size = float(await connection.fetchval(_SIZE))
        rig.figure("bytes/message", size * 1024 * 1024 / handled)
        _compare(rig, before, after)


def _compare(rig: Rig, before: list[float], after: list[float]) -> None:
    ratio = neighbour.p99(after) / neighbour.p99(before)
    rig.figure("claim p99 ms before", 1000 * neighbour.p99(before))
    rig.figure("claim p99 ms", 1000 * neighbour.p99(after))
    rig.figure("claim p99 ratio", ratio)
    rig.require(ratio < _MOST_SLOWDOWN, f"claims take {ratio:.0f} times as long")


class Timeouts(Fault):
    """The role has short timeouts, and the table is locked for a while."""

    name = "timeouts"

    async def inject(self, rig: Rig) -> None:
        before = self._refusals(rig)
        seconds = 0.0
        async with rig.connection() as owner:
            await owner.execute("alter role current_user set statement_timeout = '5ms'")
            await owner.execute("alter role current_user set lock_timeout = '10ms'")
            try:
                with rig.injecting(self.name):
                    rig.proxy.cut()
                    for _ in rig.rounds():
                        length = rig.random.uniform(0.1, 1)
                        await self._lock(owner, length)
                        seconds += length
                        await rig.pause(0.2, 0.6)
            finally:
                await owner.execute("alter role current_user reset statement_timeout")
                await owner.execute("alter role current_user reset lock_timeout")
            rig.proxy.cut()
        refusals = self._refusals(rig) - before
        rig.figure("refusals", refusals)
        rig.figure("refusals/s/worker", refusals / seconds / len(rig.workers))

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that a refused claim locked nothing: each attempt belongs to an answered claim."""
        claims = Counter(message["id"] for call in history for message in call.messages)
        leaked = {
            call.fields["id"]
            for call in history
            if call.op == "execute" and call.fields["attempts"] > claims[call.fields["id"]]
        }
        rig.figure("claims leaked", len(leaked))
        rig.require(not leaked, f"{len(leaked)} messages were locked by a claim that was refused")

    async def _lock(self, owner: Connection, seconds: float) -> None:
        async with owner.transaction():
            await owner.execute("lock table messages.message in access exclusive mode")
            await asyncio.sleep(seconds)

    def _refusals(self, rig: Rig) -> int:
        return rig.server.logged("55P03") + rig.server.logged("57014")
