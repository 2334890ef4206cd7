"""What a fault is: what it needs, and how it is injected and healed."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig


class Fault(ABC):
    """One way in which the world goes wrong; a subclass with a `name` can be asked for."""

    name: ClassVar[str]
    """The word for --faults, such as worker-kill."""
    title: ClassVar[str]
    """What happens, in a few words."""
    number: ClassVar[str]
    """Its number in the list of faults, such as 1 or 3+4; a fault beyond that list has 99."""
    by_default: ClassVar[bool] = True
    """Whether it is run when no faults are named."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Settings of the server, over those of the rig; the server is restarted where they differ."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Variables of the server's environment, such as LD_PRELOAD."""
    own_server: ClassVar[bool] = False
    """Whether it needs a cluster that nobody has used, and leaves one that nobody can use."""
    synchronous: ClassVar[bool] = False
    """Whether the server has a standby (`rig.server.standby`) that each commit waits for."""
    worker_settings: ClassVar[Mapping[str, str]] = {}
    """Variables of the workers' environment, such as NOTIFYQ_CONCURRENCY."""
    workers: ClassVar[int | None] = None
    """Worker processes; None leaves it to the command."""
    mix: ClassVar[Mapping[str, int]] = {"quick": 12, "slow": 3, "flaky": 3, "reject": 1}
    """Shares of the kinds of messages that are published; the kinds are those of chaos/work.py."""
    is_brief: ClassVar[bool] = False
    """Whether it is judged by counts alone, because no history could hold its messages."""
    batches: ClassVar[Sequence[int]] = (1, 1, 1, 1, 1, 1, 1, 5)
    """How many messages a publisher sends at once: one of these."""
    rate: ClassVar[float] = 80
    """Messages a second that are published, as far as the server lets them."""

    @classmethod
    def rank(cls) -> tuple[int, str]:
        """Where it stands in a list."""
        first = re.match(r"\d+", cls.number)
        return int(first[0]) if first else 99, cls.name

    def lacking(self) -> str | None:
        """Why this machine cannot do it, such as "needs root"; None where it can."""
        return None

    def prepare(self, folder: Path) -> None:  # noqa: B027  most need nothing
        """Make the empty folder ready that the cluster will be made in; with `own_server` only."""

    def clean_up(self, folder: Path) -> None:  # noqa: B027
        """Take `prepare` back, after the server has stopped and whatever has happened."""

    @abstractmethod
    async def inject(self, rig: Rig) -> None:
        """Do harm for about `rig.seconds` while messages flow; return when all is healed.

        Every choice is taken from `rig.random`, so that a seed repeats it.
        """

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:  # noqa: B027
        """Take figures from the whole history, when the queue is empty and the workers are gone."""
