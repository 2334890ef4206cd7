"""A long run: memory and tables must not grow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault

if TYPE_CHECKING:
    from notifyq.chaos.rig import Rig

_BURST = 10_000
_EVERY = 10.0
"""Seconds between two kills."""
_SIZES = """
select pg_table_size('messages.message') as table_bytes,
  pg_indexes_size('messages.message') as index_bytes
"""
_MB = 1e6
_SPARE = {"worker": 4.0, "table": 4.0, "indexes": 4.0}
"""Megabytes that each may grow in addition to 25 %."""
_LEAST = 480.0
"""Shortest run, in seconds, whose sizes are checked: autovacuum runs once a minute."""


class Soak(Fault):
    """Half the drain rate and a kill every 10 s; memory and tables must not grow."""

    name = "soak"
    by_default = False
    mix = {"quick": 60, "slow": 1, "flaky": 1}
    is_brief = True
    batches = (1, 10, 100)

    async def inject(self, rig: Rig) -> None:
        drained = await self._drain_rate(rig)
        rig.load.rate = drained / 2
        rig.figure("messages/s", rig.load.rate)
        rounds = rig.rounds()
        # The last worker is never killed: it shows how much memory a worker uses.
        *victims, witness = rig.workers
        sizes = []
        for _ in rounds:
            victim = rig.random.choice(victims)
            with rig.injecting("worker-kill", victim=victim.name):
                victim.restart()
            await rig.pause(min(_EVERY, rig.seconds / 8))
            sizes.append(await self._sizes(rig, witness.pid))
        quarter = len(sizes) // 4
        for name, spare in _SPARE.items():
            before, after = (
                max(size[name] for size in part)
                for part in (sizes[quarter : 2 * quarter], sizes[-quarter:])
            )
            rig.figure(f"{name} MB in the second quarter", before)
            rig.figure(f"{name} MB in the last quarter", after)
            if rig.seconds >= _LEAST:
                rig.require(
                    after <= 1.25 * before + spare,
                    f"{name} grew from {before:.1f} to {after:.1f} MB",
                )
        if rig.seconds < _LEAST:
            rig.note(f"sizes are checked from {_LEAST / 60:.0f} minutes on: autovacuum needs time")

    async def _drain_rate(self, rig: Rig) -> float:
        """Return the messages a second that the workers handle from a backlog."""
        rig.load.rate = 1.0  # negligible beside the burst
        await rig.load.burst("quick", _BURST)
        began = time.monotonic()

        async def is_drained() -> bool:
            return await rig.backlog() < _BURST // 100

        await rig.until(is_drained, "the first messages are handled", 120)
        return _BURST / (time.monotonic() - began)

    async def _sizes(self, rig: Rig, pid: int) -> dict[str, float]:
        async with rig.connection() as connection:
            row = await connection.fetchrow(_SIZES)
        return {
            "worker": _resident(pid),
            "table": row["table_bytes"] / _MB if row else 0.0,
            "indexes": row["index_bytes"] / _MB if row else 0.0,
        }


def _resident(pid: int) -> float:
    """Return the resident megabytes of a process; 0 where there is no /proc."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("VmRSS:")]
    return sum(found) * 1024 / _MB
