"""The metrics of the brokers of a process."""

from prometheus_client import CollectorRegistry

from notifyq.operations.metrics.event_metrics import EventMetrics
from notifyq.operations.metrics.health import LoopHealth
from notifyq.telemetry import BrokerLost, BrokerStarted, BrokerStopped, ProcedureFailed


class BrokerMetrics(EventMetrics):
    """Counts events of brokers: pass `metrics.beside(telemetry)` as their telemetry handler.

    The lag of procedures is in the metrics of the database, as that of subscribers.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self.health = LoopHealth(self._unready)
        """Liveness and readiness of the brokers."""
        self._connected: dict[tuple[str, str], bool] = {}
        self._add_counters(
            {
                "broker_losses": "Sessions of brokers that were lost.",
                "procedure_dead_events": "Events that failed permanently in their procedure.",
            },
            "role",
            "database",
        )
        self._gauge("brokers", "Brokers of this process with a session.", self._count_connected)
        self._handlers |= {
            BrokerLost: self._session_lost,
            BrokerStarted: self._started,
            BrokerStopped: self._stopped,
            ProcedureFailed: lambda it: self._count("procedure_dead_events", it.role, it.database),
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
        self._connected[event.role, event.database] = True
        for name in ("broker_losses", "procedure_dead_events"):  # rate() needs a first zero
            self._count(name, event.role, event.database, by=0)

    def _stopped(self, event: BrokerStopped) -> None:
        self._connected.pop((event.role, event.database), None)

    def _session_lost(self, event: BrokerLost) -> None:
        self._connected[event.role, event.database] = False
        self._count("broker_losses", event.role, event.database)
