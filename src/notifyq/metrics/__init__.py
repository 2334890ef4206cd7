"""Metrics for Prometheus: of processes, fed by their events, and of the database."""

from notifyq.metrics.broker import BrokerMetrics
from notifyq.metrics.database import DatabaseMetrics
from notifyq.metrics.relay import RelayMetrics
from notifyq.metrics.server import MetricsServer, start_server
from notifyq.metrics.worker import WorkerMetrics

__all__ = [
    "BrokerMetrics",
    "DatabaseMetrics",
    "MetricsServer",
    "RelayMetrics",
    "WorkerMetrics",
    "start_server",
]
