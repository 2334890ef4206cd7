"""Faults of the server: killed backends, crashes, and a failover."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.recovery import recoveries
from notifyq.chaos.server import programs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig

_TARGET = 2.0
"""Seconds from the server's first answer to the first claim."""


class _Outage(Fault):
    """A fault that stops the server."""

    between = (1.5, 2.5)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Compare the recovery with its target."""
        if found := recoveries(history):
            rig.figure("slowest to claim s", max(found))
            rig.figure("within 2 s %", 100 * sum(it <= _TARGET for it in found) / len(found))


class BackendKill(_Outage):
    """SIGKILL of a random backend every 2 s; the server restarts all backends."""

    name = "backend-kill"

    async def strike(self, rig: Rig) -> None:
        if victims := await rig.server.backends():
            with rig.injecting(self.name, outage=True), suppress(ProcessLookupError):
                os.kill(rig.random.choice(victims), signal.SIGKILL)
                # The server may answer until it notices; such an answer must not count.
                await asyncio.sleep(0.1)
                await rig.server.until_ready()


class ServerImmediate(_Outage):
    """pg_ctl stop -m immediate and start, repeatedly."""

    name = "server-immediate"

    async def strike(self, rig: Rig) -> None:
        with rig.injecting(self.name, outage=True):
            await rig.server.stop(immediate=True)
            await rig.pause(0.0, 0.5)
            await rig.server.start()


class Failover(_Outage):
    """Crash of the primary, promotion of its synchronous standby; the old one read-only."""

    name = "failover"
    synchronous = True

    def lacking(self) -> str | None:
        return None if (programs() / "pg_basebackup").exists() else "needs pg_basebackup"

    async def inject(self, rig: Rig) -> None:
        old, new = rig.server, rig.server.standby
        if new is None:
            return
        await rig.pause(rig.seconds / 3)
        with rig.injecting(self.name, outage=True):
            await old.stop(immediate=True)
            await new.promote()
            rig.server = new
            rig.proxy.redirect(new.dsn, cut=True)
        await rig.pause(rig.seconds / 3)
        old.demote()
        await old.start()
        with rig.injecting("read-only", outage=True):
            rig.proxy.redirect(old.dsn, cut=True)
            await rig.pause(rig.seconds / 3)
            rig.proxy.redirect(new.dsn, cut=True)
        await rig.pause(0.5)
