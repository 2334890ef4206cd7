"""The limit of failed logins."""

from __future__ import annotations

import ipaddress
import time
from dataclasses import dataclass, field

_MOST_ADDRESSES = 10_000
_HOUR = 3600.0
_LOCAL = "this machine"


@dataclass
class Attempts:
    """Counts failed logins of each client and of all clients, and delays the next attempt.

    All unknown clients share a delay that grows with each failure, because an attacker may use many
    addresses. Known browsers and this machine only have the limit of a single client: an attacker
    must not lock the owner out.
    """

    most: int = 5
    seconds: float = 300
    free: int = 20
    """Failures of all unknown clients within an hour before the shared delay begins."""
    longest: float = 60
    """The longest shared delay in seconds."""
    _failed: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    _unknown: list[tuple[float, str, str]] = field(default_factory=list)

    def wait(self, address: str, browser: str | None = None) -> float:
        """Seconds until this address, or this known browser, may log in; 0: now."""
        client = _client(address, browser)
        recent, now = self._recent(client), time.monotonic()
        own = 0.0 if len(recent) < self.most else recent[-self.most][0] + self.seconds - now
        return max(own, self._shared_wait(now) if _is_unknown(client) else 0.0)

    def _shared_wait(self, now: float) -> float:
        self._unknown = [it for it in self._unknown if it[0] > now - _HOUR]
        beyond = len(self._unknown) - self.free
        if beyond < 0:
            return 0.0
        return max(0.0, self._unknown[-1][0] + min(self.longest, 2.0 ** min(beyond, 30)) - now)

    def fail(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Count a failed login with this name."""
        client, now = _client(address, browser), time.monotonic()
        self._failed[client] = [*self._recent(client), (now, name)][-self.most :]
        if len(self._failed) > _MOST_ADDRESSES:
            # The oldest: all unknown clients share a delay anyway.
            del self._failed[next(iter(self._failed))]
        if _is_unknown(client):
            self._unknown.append((now, client, name))

    def clear(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Forget the failures of a client with the name that has logged in.

        Those with other names stay: a user must not reset the attempts at another password.
        """
        client = _client(address, browser)
        left = [it for it in self._recent(client) if it[1] != name]
        self._failed.pop(client, None)
        if left:
            self._failed[client] = left
        self._unknown = [it for it in self._unknown if it[1:] != (client, name)]

    def _recent(self, client: str) -> list[tuple[float, str]]:
        since = time.monotonic() - self.seconds
        return [it for it in self._failed.get(client, []) if it[0] > since]


def _client(address: str, browser: str | None) -> str:
    """The client by which attempts are counted; an IPv6 network counts as one."""
    if browser is not None:
        return f"browser {browser}"
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return _LOCAL
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _is_unknown(client: str) -> bool:
    return client != _LOCAL and not client.startswith("browser ")
