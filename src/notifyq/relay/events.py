"""Telemetry events of relays."""

from __future__ import annotations

import logging

from notifyq.printable import in_line
from notifyq.telemetry import TelemetryEvent


class RelayStarted(TelemetryEvent, sentence="relay {relay} has started: {routes}"):
    """A relay has connected to both databases and starts to move messages."""

    relay: str
    routes: tuple[str, ...]


class RelayMoved(
    TelemetryEvent,
    sentence="moved {quantity} messages of {source!r} in {took:.3f} s; known {known}, "
    "merged {merged}, dropped {dropped}, failed {failed}, refused {refused}, lost {lost}",
    level=logging.DEBUG,
):
    """A batch is settled at its source; `quantity` of its messages are at the target.

    `known`: the target had received them before. `merged`: a live message had the same dedup_key.
    `dropped`: the transformation left them out. `failed`: it failed on them. `refused`: by the
    target. `lost`: another relay has locked them. `lag` is how long the oldest has waited, `took`
    how long the batch was on its way, in seconds.
    """

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


class RelayRefused(
    TelemetryEvent,
    sentence="the target refuses message {message_id} of {source!r}: {reason}",
    level=logging.WARNING,
):
    """The target refuses this message: it is a dead message of the source.

    One from a broker becomes a dead message of the target, with this id.
    """

    source: str
    message_id: int
    reason: str


class RelayStalled(
    TelemetryEvent,
    sentence="the target takes nothing of {source!r}, which waits: {reason}",
    level=logging.DEBUG,
):
    """The target takes nothing of `source`: its messages wait, and others go on.

    The relay itself logs this as an error, at most once a minute where it comes and goes.

    `source` is a queue, or a stream and its subscriber; the queue or the stream of the target is
    full, busy or paused, or the target refuses it. None: the target is down, the relay has released
    its messages and claims no more.
    """

    relay: str
    source: str | None
    reason: str

    def __str__(self) -> str:
        return super().__str__() if self.source else f"the target is down: {in_line(self.reason)}"


class RelayResumed(
    TelemetryEvent,
    sentence="the target takes messages of {source!r} again after {seconds:.0f} s",
    level=logging.DEBUG,
):
    """After so many seconds `source` waits no more; None: the target is back."""

    relay: str
    source: str | None
    seconds: float

    def __str__(self) -> str:
        return (
            super().__str__() if self.source else f"the target is back after {self.seconds:.0f} s"
        )


class RelayStopped(
    TelemetryEvent, sentence="relay {relay} has stopped: {moved} moved, {released} released"
):
    """A relay has ended; `moved` messages are at the target, `released` ones went back."""

    relay: str
    moved: int
    released: int
