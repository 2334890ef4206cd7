"""Metrics for Prometheus: of processes, from their telemetry events, and of the database."""

from notifyq.operations.metrics.broker import BrokerMetrics
from notifyq.operations.metrics.database import DatabaseMetrics
from notifyq.operations.metrics.relay import RelayMetrics
from notifyq.operations.metrics.server import MetricsServer, start_server
from notifyq.operations.metrics.worker import WorkerMetrics

__all__ = [
    "BrokerMetrics",
    "DatabaseMetrics",
    "MetricsServer",
    "RelayMetrics",
    "WorkerMetrics",
    "start_server",
]
