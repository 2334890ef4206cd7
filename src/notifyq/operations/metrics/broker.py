"""The metrics of the brokers of a process: a sink of their events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.operations.metrics.health import LoopHealth
from notifyq.operations.metrics.sink import EventMetrics
from notifyq.telemetry import BrokerLost, BrokerStarted, BrokerStopped, ProcedureFailed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class BrokerMetrics(EventMetrics):
    """Counts what brokers tell; hand `metrics.beside(sink)` to them as their sink.

    How far the procedures are is in the database: their subscriptions are among its metrics.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self.health = LoopHealth(self._unready)
        """Whether the brokers are alive, and ready."""
        self._connected: dict[tuple[str, str], bool] = {}
        self._lost = self._counter(
            "broker_losses", "Sessions of brokers that ended before their time.", "role", "database"
        )
        self._failed = self._counter(
            "procedure_dead_events",
            "Events that died as their procedure had failed for the last time.",
            "role",
            "database",
        )
        self._gauge(
            "brokers", "Brokers of this process that have their session.", self._count_connected
        )
        self._sinks |= {
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
        gone = [
            f"{it[0]} in {it[1]}" for it, is_there in list(self._connected.items()) if not is_there
        ]
        return f"the session is being made anew: {', '.join(gone)}" if gone else None

    def _started(self, event: BrokerStarted) -> None:
        self.health.watch()
        place = event.role, event.database
        self._connected[place] = True
        # So that a rate has a zero to begin from.
        self._lost.labels(*place)
        self._failed.labels(*place)

    def _stopped(self, event: BrokerStopped) -> None:
        self._connected.pop((event.role, event.database), None)

    def _session_lost(self, event: BrokerLost) -> None:
        place = event.role, event.database
        self._connected[place] = False
        self._lost.labels(*place).inc()
