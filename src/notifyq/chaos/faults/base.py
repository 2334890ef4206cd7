"""The base class of faults: what a fault needs, and how it is injected and healed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig


class Fault:
    """One kind of failure; a subclass with a `name` can be run."""

    name: ClassVar[str]
    """Its name for --faults, such as worker-kill."""
    title: ClassVar[str]
    """The first line of its docstring, for lists."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Settings of the server, over those of the rig."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables of the server's environment, such as LD_PRELOAD."""
    own_server: ClassVar[bool] = False
    """Whether it needs a new cluster, which is discarded afterwards."""
    synchronous: ClassVar[bool] = False
    """Whether the server has a standby (`rig.server.standby`) that each commit waits for."""
    worker_settings: ClassVar[Mapping[str, str]] = {}
    """Variables of the workers' environment, such as NOTIFYQ_CONCURRENCY."""
    mix: ClassVar[Mapping[str, int]] = {"quick": 12, "slow": 3, "flaky": 3, "reject": 1}
    """Weights of the kinds of published messages; see chaos/work.py."""
    is_brief: ClassVar[bool] = False
    """Whether it runs only if it is named, and checks by counts: its history would be too long."""
    batches: ClassVar[Sequence[int]] = (1, 1, 1, 1, 1, 1, 1, 5)
    """Batch sizes of the publishers, chosen at random."""
    rate: ClassVar[float] = 80
    """Published messages a second, if the server keeps up."""
    between: ClassVar[tuple[float, float]] = (0.5, 1.0)
    """Least and most seconds between two strikes."""

    def __init_subclass__(cls) -> None:
        """Read the title."""
        cls.title = (cls.__doc__ or "").partition("\n")[0].rstrip(".")

    def lacking(self) -> str | None:
        """Return why this machine cannot run it, such as "needs root"; None if it can."""
        return None

    def prepare(self, folder: Path) -> None:
        """Prepare the empty folder of the cluster; only called with `own_server`."""

    def clean_up(self) -> None:
        """Undo `prepare` after the server stopped, also after an error."""

    async def inject(self, rig: Rig) -> None:
        """Inject the fault for about `rig.seconds` and heal it; by default, strike repeatedly.

        It takes every choice from `rig.random`, so that a seed repeats it.
        """
        for times in rig.rounds():
            await self.strike(rig)
            rig.figure("times", times)
            await rig.pause(*self.between)

    async def strike(self, rig: Rig) -> None:
        """Inject the fault once and heal it; by default it lasts for `rig.seconds`."""
        with rig.injecting(self.name):
            await rig.pause(rig.seconds)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Read figures from the whole history, after the queues are empty and the workers ended."""
