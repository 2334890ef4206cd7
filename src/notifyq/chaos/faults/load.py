"""What else goes on in a database: old snapshots, no vacuum, impatient settings, locked tables."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from notifyq.chaos import neighbour
from notifyq.chaos.faults.base import Fault
from notifyq.database.pool import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig
    from notifyq.database.pool import Connection

_SIZE = "select pg_total_relation_size('messages.message') / 1024.0 / 1024"
_SLOWER = 20
"""How many times as slow claims may get before it is a finding: the machine is shared."""


class HeldSnapshot(Fault):
    """A report that never ends holds a snapshot, so that no row that dies can be removed."""

    name = "held-snapshot"
    title = "a snapshot is held"
    number = "19"
    rate = 40

    async def inject(self, rig: Rig) -> None:
        """Measure claims before, and with the snapshot held for as long as three times that."""
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn, rig.connection() as report:
                await report.execute(_HOLD)
                holder = await connect(dsn, name="report")
                try:
                    before = await neighbour.work_through(dsn, rig.seconds / 4)
                    await holder.execute(_HOLD)
                    held = await neighbour.work_through(dsn, rig.seconds * 3 / 4)
                    rig.figure("megabytes", float(await holder.fetchval(_SIZE)))
                finally:
                    holder.terminate()
        _compare(rig, before, held)


_HOLD = "begin isolation level repeatable read; select count(*) from pg_class"


class AutovacuumOff(Fault):
    """Nobody vacuums."""

    name = "autovacuum-off"
    title = "autovacuum is off"
    number = "20"
    settings: ClassVar[Mapping[str, str]] = {"autovacuum": "off"}
    rate = 40

    async def inject(self, rig: Rig) -> None:
        """Measure claims of a fresh table and of one that has never been vacuumed."""
        with rig.injecting(self.name):
            async with neighbour.neighbour(rig.server.dsn) as dsn:
                before = await neighbour.work_through(dsn, rig.seconds / 4)
                after = await neighbour.work_through(dsn, rig.seconds * 3 / 4)
                handled = 10 * (len(before) + len(after))
                session = await connect(dsn, name="neighbour")
                size = float(await session.fetchval(_SIZE))
                session.terminate()
        rig.figure("bytes/message", size * 1024 * 1024 / handled)
        _compare(rig, before, after)


def _compare(rig: Rig, before: list[float], after: list[float]) -> None:
    ratio = neighbour.p99(after) / neighbour.p99(before)
    rig.figure("claim p99 ms before", 1000 * neighbour.p99(before))
    rig.figure("claim p99 ms", 1000 * neighbour.p99(after))
    rig.figure("claim p99 ratio", ratio)
    rig.require(ratio < _SLOWER, f"claims take {ratio:.0f} times as long")


class Timeouts(Fault):
    """Somebody gives the role impatient settings, and others lock the table for a while."""

    name = "timeouts"
    title = "impatient timeouts, and a locked table"
    number = "23"

    async def inject(self, rig: Rig) -> None:
        """Set timeouts of some milliseconds, and lock the table for up to a second at a time."""
        before = self._refusals(rig)
        seconds = 0.0
        async with rig.connection() as owner:
            await owner.execute("alter role current_user set statement_timeout = '5ms'")
            await owner.execute("alter role current_user set lock_timeout = '10ms'")
            try:
                with rig.injecting(self.name):
                    rig.proxy.cut()
                    lasts = rig.lasting()
                    while lasts():
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
        """A claim that was refused has locked nothing: for each attempt, one was answered."""
        claims = Counter(
            message["id"]
            for call in history
            if call.op == "claim"
            for message in call.fields.get("messages", ())
        )
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
