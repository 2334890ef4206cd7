"""What a dashboard is told when it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from notifyq.operations.dashboard.access import User
from notifyq.operations.masks import Masks

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
"""Names under which a browser on this machine finds it."""


@dataclass(frozen=True, kw_only=True)
class DashboardSettings:
    """How a dashboard behaves; who may enter is told beside it."""

    allow_writes: bool = False
    """Whether anything can be changed with it."""
    masks: Masks = field(default_factory=Masks)
    hosts: tuple[str, ...] = LOOPBACK
    """Names under which it may be asked, `*` for any: another site cannot give itself one of these,
    so a browser that was led here by that site's name is refused."""
    base_path: str = ""
    """What its addresses begin with, `/notifyq`, where a proxy gives it a part of its own."""
    interval: float = 2.0
    """Seconds between two looks at what is shown live, while anybody looks."""
    authenticate: Callable[[Any], User | None] | None = None
    """Of an application around it, which knows who asks: takes the request, gives the user."""
