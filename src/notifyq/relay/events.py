"""What happens inside a relay, as typed events."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from notifyq.telemetry import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStarted(Event):
    """A relay knows both databases, and begins to move messages."""

    relay: str
    routes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMoved(Event):
    """A batch of `quantity` messages is settled at its source.

    Of these the target had received `known` ones before, and merged `merged` ones with live ones of
    the same dedup_key; `dropped` ones were left out by the transformation, which has failed on
    `failed` ones; the target has refused `refused` ones; `lost` ones were another's by then. `lag`
    is how long the oldest has waited, `took` how long the batch was under way, in seconds.
    """

    level: ClassVar[int] = logging.DEBUG
    source: str
    quantity: int
    known: int
    merged: int
    dropped: int
    failed: int
    refused: int
    lost: int
    lag: float
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRefused(Event):
    """The target does not take this message: it is a dead message of the source."""

    level: ClassVar[int] = logging.WARNING
    source: str
    message_id: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStalled(Event):
    """The target is down or full: the relay has released what it had, and claims nothing."""

    level: ClassVar[int] = logging.WARNING
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayResumed(Event):
    """The target is back after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStopped(Event):
    """A relay has ended; `moved` messages are at the target, `released` ones went back."""

    relay: str
    moved: int
    released: int
