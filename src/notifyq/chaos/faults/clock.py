"""Wrong clocks: of the workers, and of the server."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.chaos import clock
from notifyq.chaos.faults.base import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig

_HOUR = 3600
_BACK = 300
_CLOCK = clock.Clock(Path(tempfile.gettempdir()) / f"notifyq-chaos-clock-{os.getpid()}")


class _Clocked(Fault):
    """A fault of a clock; it needs a new cluster, because the clock is in its environment."""

    own_server = True

    def lacking(self) -> str | None:
        return clock.lacking()

    def prepare(self, folder: Path) -> None:
        _CLOCK.make()

    def clean_up(self, folder: Path) -> None:
        _CLOCK.remove()


class ClockWorker(_Clocked):
    """The workers' clocks jump by an hour, forward and back."""

    name = "clock-worker"
    worker_settings = _CLOCK.environment
    # Kinds that never outlive their lock and need one attempt only.
    mix = {"quick": 4, "slow": 1, "reject": 1}

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            for steps in rig.rounds():
                _CLOCK.step(rig.random.choice((-_HOUR, 0, _HOUR)))
                rig.figure("steps", steps)
                await asyncio.sleep(_CLOCK.settles)
            _CLOCK.step(0)
            await asyncio.sleep(_CLOCK.settles)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that each message was executed once: no lock expired early."""
        again = sum(call.op == "execute" and call.fields["attempts"] > 1 for call in history)
        rig.figure("early expiries", again)
        rig.require(not again, f"{again} messages were claimed again before their lock expired")


class ClockServer(_Clocked):
    """The server's clock is set back by 5 minutes, and later corrected."""

    name = "clock-server"
    environment = _CLOCK.environment

    async def inject(self, rig: Rig) -> None:
        victim = rig.random.choice(rig.workers)
        with rig.injecting(self.name):
            await self._step(rig, -_BACK)
            # Its messages must be claimed again, at the latest after the clock is correct.
            with rig.injecting("worker-kill", victim=victim.name):
                victim.kill()
            victim.start()
            await rig.pause(rig.seconds)
            await self._step(rig, 0)

    async def _step(self, rig: Rig, seconds: float) -> None:
        # The checker must know: instants of the database may occur twice.
        call = rig.history.invoke("clock", seconds=seconds)
        _CLOCK.step(seconds)
        await asyncio.sleep(_CLOCK.settles)
        call.ok()
