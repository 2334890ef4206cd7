"""What happens to the server: backends and all of it killed, and a standby in its place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault
from notifyq.chaos.recovery import recoveries
from notifyq.chaos.server import Stop, programs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig

_READ_ONLY = "25006"
"""The SQLSTATE of a write to a standby."""
_OF_WORKERS = ("notifyq", "notifyq worker")
"""The names of a worker's sessions."""
_TARGET = 2.0
"""Seconds from a server that answers to the first claim."""


class _Outage(Fault):
    """A fault that the server goes down by."""

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Compare the recovery with what it should be."""
        found = recoveries(history)
        if found:
            rig.figure("slowest to claim s", max(found))
            rig.figure("within 2 s %", 100 * sum(it <= _TARGET for it in found) / len(found))


class BackendKill(_Outage):
    """One session dies, and the server restarts for fear of what it may have broken."""

    name = "backend-kill"
    title = "SIGKILL of a random backend, every 2 s or so"
    number = "8"

    async def inject(self, rig: Rig) -> None:
        """Kill a session of a worker or of a publisher, and wait for the server."""
        lasts = rig.lasting()
        while lasts():
            victims = await rig.server.backends()
            if victims:
                with rig.injecting(self.name, outage=True), suppress(ProcessLookupError):
                    os.kill(rig.random.choice(victims), signal.SIGKILL)
                    # Else the last answers of a server that has not noticed would count.
                    await asyncio.sleep(0.1)
                    await rig.server.until_ready()
            await rig.pause(1.5, 2.5)


class ServerImmediate(_Outage):
    """The whole server is stopped as in a crash, and started."""

    name = "server-immediate"
    title = "pg_ctl stop -m immediate and start, again and again"
    number = "9"

    async def inject(self, rig: Rig) -> None:
        """Stop and start the server."""
        lasts = rig.lasting()
        crashes, down = 0, 0.0
        while lasts():
            began = time.monotonic()
            with rig.injecting(self.name, outage=True):
                await rig.server.stop(Stop.IMMEDIATE)
                await rig.pause(0.0, 0.5)
                await rig.server.start()
            down = max(down, time.monotonic() - began)
            crashes += 1
            await rig.pause(1.5, 2.5)
        rig.figure("crashes", crashes)
        rig.figure("longest down s", down)


class Failover(_Outage):
    """The primary crashes and its standby takes over; then the old one comes back, read-only."""

    name = "failover"
    title = "crash of the primary, promotion of its synchronous standby; the old one read-only"
    number = "10+11"
    synchronous = True

    def lacking(self) -> str | None:
        """Say whether a standby can be made."""
        return None if (programs() / "pg_basebackup").exists() else "needs pg_basebackup"

    async def inject(self, rig: Rig) -> None:
        """Promote the standby, and then lead everybody to the old primary for a while."""
        old, new = rig.server, rig.server.standby
        if new is None:
            return
        await rig.pause(rig.seconds / 3)
        with rig.injecting(self.name, outage=True):
            await old.stop(Stop.IMMEDIATE)
            await new.promote()
            rig.server = new
            rig.proxy.redirect(new.dsn)
            rig.proxy.cut()
        await rig.pause(rig.seconds / 3)
        old.demote()
        await old.start()
        refused = old.logged(_READ_ONLY, *_OF_WORKERS)
        began = time.monotonic()
        with rig.injecting("read-only", outage=True):
            rig.proxy.redirect(old.dsn)
            rig.proxy.cut()
            await rig.pause(rig.seconds / 3)
            refused = old.logged(_READ_ONLY, *_OF_WORKERS) - refused
            seconds = time.monotonic() - began
            rig.proxy.redirect(new.dsn)
            rig.proxy.cut()
        rig.figure("read-only errors/s of a worker", refused / seconds / len(rig.workers))
        await rig.pause(0.5)
