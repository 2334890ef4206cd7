"""Serves the dashboard, on other addresses than loopback only with a password."""

import asyncio
import contextlib
import ipaddress
import signal
import socket
from collections.abc import Generator, Sequence

import uvicorn
from starlette.applications import Starlette

from notifyq.errors import ConfigurationError
from notifyq.operations.dashboard.guard import is_loopback


def check_host(host: str, *, is_guarded: bool) -> None:
    """Refuse to serve without a password to the network."""
    if not is_guarded and not is_loopback(host):
        raise ConfigurationError(
            f"--host {host} is reachable from other machines and needs a password: set "
            "NOTIFYQ_DASHBOARD_PASSWORD, or give --auth-file or --password-file"
        )


def bind(host: str, port: int) -> socket.socket:
    """Open the port; an error is reported before anything else happens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # a reader of the address may connect at once
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error.strerror}"
        ) from error
    return listener


def announce(host: str, listener: socket.socket, base_path: str, *, allow_writes: bool) -> str:
    """The line with the address."""
    name = f"[{host.strip('[]')}]" if ":" in host else host
    port = listener.getsockname()[1]
    mode = "can write" if allow_writes else "read only"
    return (
        f"dashboard on http://{name}:{port}{base_path.rstrip('/')}/ ({mode}); stop it with Ctrl-C"
    )


class _Server(uvicorn.Server):
    """Closes the live streams on a signal; uvicorn would wait for them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop at the first signal, and without waiting at the second one."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop)
        yield

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self.config.app.state.dashboard.live.close()  # type: ignore[union-attr]


def check_proxies(text: str) -> list[str]:
    """Read addresses and networks of proxies, separated by commas."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    for each in found:
        try:
            ipaddress.ip_network(each)
        except ValueError:
            # Also `*`: any client could then choose the address by which attempts are counted.
            raise ConfigurationError(
                f"--proxy {each!r} is not an address like 10.0.0.5, or a network like 10.0.0.0/24"
            ) from None
    return found


def serve(app: Starlette, listener: socket.socket, *, proxies: Sequence[str] = ()) -> None:
    """Serve until Ctrl-C. Only `proxies` may set the client address and the scheme by headers."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
        limit_concurrency=500,
        lifespan="on",
    )
    _Server(config).run(sockets=[listener])
