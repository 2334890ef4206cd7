"""The metrics of the brokers of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.operations.metrics.event_metrics import EventMetrics
from notifyq.operations.metrics.health import LoopHealth
from notifyq.telemetry import BrokerLost, BrokerStarted, BrokerStopped, ProcedureFailed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class BrokerMetrics(EventMetrics):
    """Counts events of brokers: pass `metrics.beside(telemetry)` as their telemetry handler.

    The lag of procedures is in the metrics of the database, as that of subscribers.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self.health = LoopHealth(self._unready)
        """Liveness and readiness of the brokers."""
        self._connected: dict[tuple[str, str], bool] = {}
        self._lost = self._counter(
            "broker_losses", "Sessions of brokers that were lost.", "role", "database"
        )
        self._failed = self._counter(
            "procedure_dead_events",
            "Events that failed permanently in their procedure.",
            "role",
            "database",
        )
        self._gauge("brokers", "Brokers of this process with a session.", self._count_connected)
        self._handlers |= {
            BrokerLost: self._session_lost,
            BrokerStarted: self._started,
            BrokerStopped: self._stopped,
            ProcedureFailed: lambda event: self._failed.labels(event.role, event.database).inc(),
        }

    def _count_connected(self) -> float:
        return sum(list(self._connected.values()))

    def _unready(self) -> str | None:
        if not self._connected:
            return "no broker runs"
        lost = [
            f"{role} in {database}"
            for (role, database), is_connected in list(self._connected.items())
            if not is_connected
        ]
        return f"reconnecting: {', '.join(lost)}" if lost else None

    def _started(self, event: BrokerStarted) -> None:
        self.health.watch()
        labels = event.role, event.database
        self._connected[labels] = True
        # rate() needs a first zero.
        self._lost.labels(*labels)
        self._failed.labels(*labels)

    def _stopped(self, event: BrokerStopped) -> None:
        self._connected.pop((event.role, event.database), None)

    def _session_lost(self, event: BrokerLost) -> None:
        labels = event.role, event.database
        self._connected[labels] = False
        self._lost.labels(*labels).inc()
