"""Serves a WSGI application from threads of its own, which a blocked worker does not stop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger("notifyq.serving")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Requests(WSGIRequestHandler):
    timeout = 10  # or a client that sends nothing would keep a thread

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log without the path: that of a callback is a secret."""
        log.debug("%s: %s", self.command, code)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True
    allow_reuse_port = False

    def server_bind(self) -> None:
        """Bind without a DNS lookup of the host name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.socket.getsockname()[:2]
        self.server_name = str(host)
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not print errors of clients that disconnect."""
        log.debug("cannot respond to the request from %s", client_address)


class ServerThread:
    """Serves an application until it is closed.

    Port 0 chooses a free port. With `shares_port` several processes may listen on one port, and
    each request reaches one of them. Raises OSError if it cannot listen.
    """

    def __init__(
        self, application: Application, host: str, port: int, *, shares_port: bool = False
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        options = {"address_family": family, "allow_reuse_port": shares_port}
        kind = type("_Server", (_Server,), options)
        self._server: _Server = kind((host, port), _Requests)
        self._server.set_app(application)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="notifyq-http", daemon=True
        )
        self._thread.start()
        self.port: int = self._server.server_port
        """The port, also if it was chosen (port 0)."""
        self.url = f"http://{address(host, self.port)}"
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


def address(host: str, port: int) -> str:
    """Host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def respond(start_response: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    """Respond with a line of text."""
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
