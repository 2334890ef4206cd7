"""What ends a run of faults before its end."""

from __future__ import annotations

from notifyq.errors import NotifyqError


class ChaosError(NotifyqError):
    """The rig itself has failed: nothing is known about the queue."""
