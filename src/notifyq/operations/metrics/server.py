"""Serves metrics and health from a separate thread, which a blocked worker does not stop."""

import errno
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app

from notifyq.errors import ConfigurationError
from notifyq.operations.metrics.broker import BrokerMetrics
from notifyq.operations.metrics.health import Health, LoopHealth
from notifyq.operations.metrics.relay import RelayMetrics
from notifyq.operations.metrics.worker import WorkerMetrics
from notifyq.worker.serving import ServerThread, address, respond

DEFAULT_PORT = 9464
_RESPONDS_WITHIN = 5.0
"""Seconds within which event loops must respond, or the process counts as stuck."""


class MetricsServer(ServerThread):
    """Serves `/metrics`, `/healthz` and `/readyz` until it is closed."""

    def __init__(
        self, registry: CollectorRegistry, health: Health | LoopHealth | None, host: str, port: int
    ) -> None:
        self._metrics = make_wsgi_app(registry)
        self._health = health
        try:
            # Two processes would share the port unnoticed, if it allowed that.
            super().__init__(self._respond, host, port)
        except OSError as error:
            todo = "give another --metrics-port or --metrics-host"
            if error.errno == errno.EADDRINUSE:
                todo = (
                    "give each process its own --metrics-port: NOTIFYQ_METRICS_PORT applies to "
                    "workers, relays and brokers"
                )
            raise ConfigurationError(
                f"metrics cannot be served on {address(host, port)}: "
                f"{(error.strerror or str(error)).lower()}; {todo}"
            ) from error

    def _respond(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return respond(start_response, "405 Method Not Allowed", "only GET and HEAD")
        match environ["PATH_INFO"]:
            case "/metrics":
                as_get = {**environ, "REQUEST_METHOD": "GET"}
                page: Iterable[bytes] = self._metrics(as_get, start_response)
                return page if environ["REQUEST_METHOD"] == "GET" else []
            case "/healthz":
                return self._healthz(start_response)
            case "/readyz":
                return _health(start_response, self._health.unready() if self._health else None)
            case "/":
                return respond(start_response, "200 OK", "/metrics\n/healthz\n/readyz")
        return respond(start_response, "404 Not Found", "see /metrics, /healthz and /readyz")

    def _healthz(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        faults = self._health.faults(_RESPONDS_WITHIN) if self._health else []
        if not faults and self._health and self._health.degraded:
            # A restart would not help.
            return respond(
                start_response, "200 OK", "; ".join(["degraded", *self._health.degraded])
            )
        return _health(start_response, "; ".join(faults))


def start_server(
    metrics: WorkerMetrics | BrokerMetrics | RelayMetrics | CollectorRegistry,
    *,
    port: int = DEFAULT_PORT,
    host: str = "127.0.0.1",
) -> MetricsServer:
    """Serve metrics over HTTP from a separate thread until the server is closed.

    Port 0 chooses a free port. There is no access control: serve other hosts than loopback only in
    a private network. Raises ConfigurationError if the port is taken.
    """
    if isinstance(metrics, CollectorRegistry):
        return MetricsServer(metrics, None, host, port)
    return MetricsServer(metrics.registry, metrics.health, host, port)


def _health(start_response: Callable[..., Any], fault: str | None) -> Iterable[bytes]:
    return respond(start_response, "503 Service Unavailable" if fault else "200 OK", fault or "ok")
