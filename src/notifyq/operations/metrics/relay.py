"""The metrics of the relays of a process: a sink of their events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from notifyq.operations.metrics.health import LoopHealth
from notifyq.operations.metrics.names import Names
from notifyq.operations.metrics.sink import RUNS, WAITS, EventMetrics
from notifyq.relay import RelayMoved, RelayResumed, RelayStalled, RelayStarted, RelayStopped

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_OUTCOMES = ("known", "merged", "dropped", "failed", "refused", "lost")


class RelayMetrics(EventMetrics):
    """Counts what relays move; hand `metrics.beside(sink)` to them as their sink.

    `source` is the queue, or the stream with the subscriber, that a relay was told to move; of
    batches of several queues all of them. There are up to `most_names`, and `(others)`.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, most_names: int = 100) -> None:
        super().__init__(registry)
        self._sources = Names(most_names)
        self.health = LoopHealth(self._unready)
        """Whether the relays are alive, and ready."""
        self._running = 0
        self._has_started = False
        self._stalled = 0
        self._stalled_at = 0.0
        self._messages = self._counter(
            "relay_messages", "Messages settled at their source, by outcome.", "source", "outcome"
        )
        self._lags = self._histogram(
            "relay_lag_seconds",
            "From when the oldest of a batch could be moved to its end.",
            WAITS,
            "source",
        )
        self._batches = self._histogram(
            "relay_batch_seconds", "From the claim of a batch to its end.", RUNS, "source"
        )
        self._gauge("relays", "Relays of this process that run.", lambda: self._running)
        self._gauge(
            "relay_stalled_seconds",
            "Since when a target is down or full; 0: none is.",
            lambda: time.monotonic() - self._stalled_at if self._stalled else 0.0,
        )
        self._sinks |= {
            RelayMoved: self._moved,
            RelayResumed: self._resumed,
            RelayStalled: self._stall,
            RelayStarted: self._started,
            RelayStopped: self._stopped,
        }

    def _unready(self) -> str | None:
        if not self._has_started:
            return "starting"
        if not self._running:
            return "stopping"
        return "a target is down or full" if self._stalled else None

    def _started(self, _: RelayStarted) -> None:
        self.health.watch()
        self._running += 1
        self._has_started = True

    def _stopped(self, _: RelayStopped) -> None:
        self._running -= 1
        if not self._running:  # one that is stopped in a stall does not say that it has resumed
            self._stalled = 0

    def _stall(self, _: RelayStalled) -> None:
        if not self._stalled:
            self._stalled_at = time.monotonic()
        self._stalled += 1

    def _resumed(self, _: RelayResumed) -> None:
        self._stalled -= 1

    def _moved(self, event: RelayMoved) -> None:
        source = self._sources[event.source]
        new = event.quantity - event.known - event.merged
        self._messages.labels(source, "new").inc(new)
        for outcome in _OUTCOMES:
            self._messages.labels(source, outcome).inc(getattr(event, outcome))
        self._lags.labels(source).observe(event.lag)
        self._batches.labels(source).observe(event.took)
