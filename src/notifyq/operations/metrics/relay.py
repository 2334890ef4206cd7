"""The metrics of the relays of a process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from notifyq.operations.metrics.event_metrics import RUNS, WAITS, EventMetrics, Names
from notifyq.operations.metrics.health import LoopHealth
from notifyq.relay import RelayMoved, RelayResumed, RelayStalled, RelayStarted, RelayStopped

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_OUTCOMES = ("known", "merged", "dropped", "failed", "refused", "lost")


class RelayMetrics(EventMetrics):
    """Counts events of relays: pass `metrics.beside(telemetry)` as their telemetry handler.

    `source` is the queue, or the stream and the subscriber, that a relay moves; for batches of
    several queues all of them. Sources after `most_names` are counted as `(others)`.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, most_names: int = 100) -> None:
        super().__init__(registry)
        self._sources = Names(most_names)
        self.health = LoopHealth(self._unready)
        """Liveness and readiness of the relays."""
        self._running = 0
        self._has_started = False
        self._stalled = 0
        self._stalled_at = 0.0
        self._messages = self._counter(
            "relay_messages", "Messages settled at their source, by outcome.", "source", "outcome"
        )
        self._lags = self._histogram(
            "relay_lag_seconds",
            "From when the oldest message of a batch became available until the batch was moved.",
            WAITS,
            "source",
        )
        self._batches = self._histogram(
            "relay_batch_seconds", "From the claim of a batch until it was moved.", RUNS, "source"
        )
        self._gauge("relays", "Relays that run in this process.", lambda: self._running)
        self._gauge(
            "relay_stalled_seconds",
            "How long a target has been down; 0 if none is.",
            lambda: time.monotonic() - self._stalled_at if self._stalled else 0.0,
        )
        self._handlers |= {
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
        return "a target is down" if self._stalled else None

    def _started(self, _: RelayStarted) -> None:
        self.health.watch()
        self._running += 1
        self._has_started = True

    def _stopped(self, _: RelayStopped) -> None:
        self._running -= 1
        if not self._running:  # a relay that stops during a stall never resumes
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
