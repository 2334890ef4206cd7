"""Clocks that are wrong: those of workers, and that of the server."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from notifyq.chaos import clock
from notifyq.chaos.faults.base import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig

_HOUR = 3600
_BACK = 300
_CLOCK = clock.Clock(Path(tempfile.gettempdir()) / f"notifyq-chaos-clock-{os.getpid()}")


class _Clocked(Fault):
    """A fault of a clock, which needs a cluster of its own for the sake of its environment."""

    own_server = True

    def lacking(self) -> str | None:
        """Say whether there is a library for it."""
        return clock.lacking()

    def prepare(self, folder: Path) -> None:
        """Make the clock."""
        _CLOCK.make()

    def clean_up(self, folder: Path) -> None:
        """Remove it."""
        _CLOCK.remove()


class ClockWorker(_Clocked):
    """The clocks of the workers' machines go wrong by an hour, to and fro."""

    name = "clock-worker"
    title = "the workers' clocks jump by an hour"
    number = "24"
    worker_settings: ClassVar[Mapping[str, str]] = _CLOCK.environment
    # None of these outlives its lock, or has a reason for another attempt.
    mix: ClassVar[Mapping[str, int]] = {"quick": 4, "slow": 1, "reject": 1}

    async def inject(self, rig: Rig) -> None:
        """Step forth and back while handlers run."""
        steps = 0
        lasts = rig.lasting()
        with rig.injecting(self.name):
            while lasts():
                _CLOCK.step(rig.random.choice((-_HOUR, 0, _HOUR)))
                steps += 1
                await asyncio.sleep(_CLOCK.settles)
            _CLOCK.step(0)
            await asyncio.sleep(_CLOCK.settles)
        rig.figure("steps", steps)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """No lock ended before its time, none was kept beyond it."""
        again = sum(call.op == "execute" and call.fields["attempts"] > 1 for call in history)
        rig.figure("early expiries", again)
        rig.require(not again, f"{again} messages were handed out again, without a reason")


class ClockServer(_Clocked):
    """The server's clock is set back by minutes, and later put right."""

    name = "clock-server"
    title = "the server's clock is set back by 5 minutes"
    number = "25"
    environment: ClassVar[Mapping[str, str]] = _CLOCK.environment

    async def inject(self, rig: Rig) -> None:
        """Set it back, kill a worker, let the rest work, put it right."""
        victim = rig.random.choice(rig.workers)
        with rig.injecting(self.name):
            await self._step(rig, -_BACK)
            # What it held must come back, if only after the clock is right again.
            with rig.injecting("worker-kill", victim=victim.name):
                victim.kill()
            victim.start()
            await rig.pause(rig.seconds)
            await self._step(rig, 0)

    async def _step(self, rig: Rig, seconds: float) -> None:
        # Tells the checker that instants of the database come twice.
        call = rig.history.invoke("clock", seconds=seconds)
        _CLOCK.step(seconds)
        await asyncio.sleep(_CLOCK.settles)
        call.ok()
