"""What metrics of every kind of process have in common: they are a sink of its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from notifyq.telemetry import Event, ListenerConnected, ListenerDeaf, ListenerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.telemetry import Sink

WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
"""Upper bounds in seconds: a message waits for milliseconds, or for a process that is down."""
RUNS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class EventMetrics:
    """Counts events into a registry of its own, with the figures of the process, or a given one."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
        self.registry = registry
        """What is exported; other metrics may be added to it."""
        self._reconnects = self._counter("listener_reconnects", "Listening sessions made anew.")
        self._losses = self._counter("listener_losses", "Listening sessions that broke.")
        self._deaf = self._gauge(
            "listener_deaf", "1 if no bell arrives, as behind a pooler: give a listen_dsn."
        )
        self._sinks: dict[type[Event], Callable[[Any], None]] = {
            ListenerConnected: self._listener_connected,
            ListenerDeaf: lambda _: self._deaf.set(1),
            ListenerLost: lambda _: self._losses.inc(),
        }

    def __call__(self, event: Event) -> None:
        """Count an event."""
        count = self._sinks.get(type(event))
        if count is not None:
            count(event)

    def beside(self, sink: Sink) -> Sink:
        """Make a sink that counts an event and hands it on."""

        def both(event: Event) -> None:
            self(event)
            sink(event)

        return both

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"notifyq_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, read: Callable[[], float] | None = None) -> Gauge:
        gauge = Gauge(f"notifyq_{name}", text, registry=self.registry)
        if read is not None:
            gauge.set_function(read)
        return gauge

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"notifyq_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _listener_connected(self, event: ListenerConnected) -> None:
        self._deaf.set(0)
        if event.again:
            self._reconnects.inc()
