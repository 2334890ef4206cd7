"""What the metrics of all kinds of processes share: they count telemetry events."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from notifyq.telemetry import (
    ListenerConnected,
    ListenerLost,
    NotificationsLost,
    TelemetryEvent,
    TelemetryHandler,
)

WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
"""Upper bounds in seconds: usually milliseconds, but hours while a process is down."""
RUNS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_OTHERS = "(others)"


class EventMetrics:
    """Counts events in the given registry, or in a new one with metrics of the process."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
        self.registry = registry
        """The exported registry; programs may add metrics."""
        self._counters: dict[str, Counter] = {}
        self._add_counters(
            {
                "listener_reconnects": "Listening sessions that reconnected.",
                "listener_losses": "Listening sessions that were lost.",
            }
        )
        self._notifications_lost = self._gauge(
            "listener_notifications_lost",
            "1 if notifications do not arrive, as behind a pooler: set listen_dsn.",
        )
        self._handlers: dict[type[TelemetryEvent], Callable[[Any], object]] = {
            ListenerConnected: self._listener_connected,
            NotificationsLost: lambda _: self._notifications_lost.set(1),
            ListenerLost: lambda _: self._count("listener_losses"),
        }

    def __call__(self, event: TelemetryEvent) -> None:
        """Count an event."""
        count = self._handlers.get(type(event))
        if count is not None:
            count(event)

    def beside(self, telemetry: TelemetryHandler) -> TelemetryHandler:
        """A telemetry handler that counts each event and passes it on to another handler."""

        def both(event: TelemetryEvent) -> None:
            self(event)
            telemetry(event)

        return both

    def _add_counters(self, texts: Mapping[str, str], *labels: str) -> None:
        """Add counters, which have these labels, by their names."""
        for name, text in texts.items():
            counter = Counter(f"notifyq_{name}", text, labels, registry=self.registry)
            self._counters[name] = counter

    def _count(self, name: str, *labels: str, by: float = 1) -> None:
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

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
        self._notifications_lost.set(0)
        if event.again:
            self._count("listener_reconnects")


class Names:
    """Limits label values: maps the first `most` names to themselves, all others to `(others)`.

    Prometheus keeps a series for weeks for each value of a label.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __getitem__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return _OTHERS
        self._known.add(name)
        return name

    def pair(self, stream: str, subscriber: str) -> tuple[str, str]:
        """The labels of a subscription, which counts as one name."""
        first, _, second = self[f"{stream}\n{subscriber}"].partition("\n")
        return first, second or first

    def add(self, names: Iterable[str]) -> None:
        """Reserve labels for these names."""
        for name in names:
            self[name]
