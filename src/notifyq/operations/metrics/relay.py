"""The metrics of the relays of a process."""

import time

from prometheus_client import CollectorRegistry

from notifyq.operations.metrics.event_metrics import RUNS, WAITS, EventMetrics, Names
from notifyq.operations.metrics.health import LoopHealth
from notifyq.relay import RelayMoved, RelayResumed, RelayStalled, RelayStarted, RelayStopped

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
        self._stalled: dict[tuple[str, str | None], float] = {}
        by_outcome = "Messages settled at their source, by outcome."
        self._add_counters({"relay_messages": by_outcome}, "source", "outcome")
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
            "How long a target has been down, or has taken nothing of a queue or a stream that "
            "waits for it: the longest; 0 if none waits.",
            lambda: max((time.monotonic() - it for it in self._stalled.values()), default=0.0),
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
        is_down = any(source is None for _, source in self._stalled)
        return "a target is down" if is_down else None

    def _started(self, _: RelayStarted) -> None:
        self.health.watch()
        self._running += 1
        self._has_started = True

    def _stopped(self, event: RelayStopped) -> None:
        self._running -= 1
        # What waits when its relay stops never resumes.
        self._stalled = {it: at for it, at in self._stalled.items() if it[0] != event.relay}

    def _stall(self, event: RelayStalled) -> None:
        self._stalled[event.relay, event.source] = time.monotonic()

    def _resumed(self, event: RelayResumed) -> None:
        self._stalled.pop((event.relay, event.source), None)

    def _moved(self, event: RelayMoved) -> None:
        source = self._sources[event.source]
        new = event.quantity - event.known - event.merged
        self._count("relay_messages", source, "new", by=new)
        for outcome in _OUTCOMES:
            self._count("relay_messages", source, outcome, by=getattr(event, outcome))
        self._lags.labels(source).observe(event.lag)
        self._batches.labels(source).observe(event.took)
