"""The error that ends a fault early."""

from __future__ import annotations

from notifyq.errors import NotifyqError


class ChaosError(NotifyqError):
    """The test rig failed; this proves nothing about the queue."""
