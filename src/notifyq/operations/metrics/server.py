"""Serves metrics and health from a separate thread, which a blocked worker does not stop."""

import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from notifyq.errors import ConfigurationError
from notifyq.operations.metrics.broker import BrokerMetrics
from notifyq.operations.metrics.health import Health, LoopHealth
from notifyq.operations.metrics.relay import RelayMetrics
from notifyq.operations.metrics.worker import WorkerMetrics

Answer = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

log = logging.getLogger("notifyq.metrics")

DEFAULT_PORT = 9464
_RESPONDS_WITHIN = 5.0
"""Seconds within which event loops must respond, or the process counts as stuck."""


class _Requests(WSGIRequestHandler):
    timeout = 10  # or a client that sends nothing would keep a thread

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False  # or two processes would share the port unnoticed

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the host name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.socket.getsockname()[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not print errors of clients that disconnect."""
        log.debug("cannot respond to the request from %s", client_address)


class MetricsServer:
    """Serves `/metrics`, `/healthz` and `/readyz` until it is closed."""

    def __init__(
        self, registry: CollectorRegistry, health: Health | LoopHealth | None, host: str, port: int
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        kind = type("_Server", (_Server,), {"address_family": family})
        try:
            self._server: _Server = kind((host, port), _Requests)
        except OSError as error:
            todo = "give another --metrics-port or --metrics-host"
            if error.errno == errno.EADDRINUSE:
                todo = (
                    "give each process its own --metrics-port: NOTIFYQ_METRICS_PORT applies to "
                    "workers, relays and brokers"
                )
            raise ConfigurationError(
                f"metrics cannot be served on {_address(host, port)}: "
                f"{(error.strerror or str(error)).lower()}; {todo}"
            ) from error
        self._metrics = make_wsgi_app(registry)
        self._health = health
        self._server.set_app(self._respond)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="notifyq-metrics", daemon=True
        )
        self._thread.start()
        self.port: int = self._server.server_port
        """The port, also if it was chosen (port 0)."""
        self.url = f"http://{_address(host, self.port)}"
        """The base URL, without a path."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _respond(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _text(start_response, "405 Method Not Allowed", "only GET and HEAD")
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
                return _text(start_response, "200 OK", "/metrics\n/healthz\n/readyz")
        return _text(start_response, "404 Not Found", "see /metrics, /healthz and /readyz")

    def _healthz(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        faults = self._health.faults(_RESPONDS_WITHIN) if self._health else []
        if not faults and self._health and self._health.degraded:
            # A restart would not help.
            return _text(start_response, "200 OK", "; ".join(["degraded", *self._health.degraded]))
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


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _health(start_response: Callable[..., Any], fault: str | None) -> Iterable[bytes]:
    return _text(start_response, "503 Service Unavailable" if fault else "200 OK", fault or "ok")


def _text(start_response: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    body = f"{text}\n".encode()
    start_response(
        status,
        [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
        ],
    )
    return [body]
