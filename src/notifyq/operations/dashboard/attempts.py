"""The limit of failed logins."""

import ipaddress
import time
from dataclasses import dataclass, field

_MOST = 10_000
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
    _failed: list[tuple[float, str, str]] = field(default_factory=list)
    """When a client failed, which one, and with which name."""

    def wait(self, address: str, browser: str | None = None) -> float:
        """Seconds until this address, or this known browser, may log in; 0: now."""
        client, now = _client(address, browser), time.monotonic()
        since = now - self.seconds
        recent = [at for at, it, _ in self._failed if it == client and at > since]
        own = 0.0 if len(recent) < self.most else recent[-self.most] + self.seconds - now
        return max(own, self._shared_wait(now) if _is_unknown(client) else 0.0)

    def _shared_wait(self, now: float) -> float:
        unknown = [at for at, it, _ in self._failed if _is_unknown(it) and at > now - _HOUR]
        beyond = len(unknown) - self.free
        if beyond < 0:
            return 0.0
        return max(0.0, unknown[-1] + min(self.longest, 2.0 ** min(beyond, 30)) - now)

    def fail(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Count a failed login with this name."""
        now = time.monotonic()
        since = now - max(_HOUR, self.seconds)
        # Not the oldest of very many: all unknown clients share a delay anyway.
        kept = [it for it in self._failed if it[0] > since][1 - _MOST :]
        self._failed = [*kept, (now, _client(address, browser), name)]

    def clear(self, address: str, name: str = "", browser: str | None = None) -> None:
        """Forget the failures of a client with the name that has logged in.

        Those with other names stay: a user must not reset the attempts at another password.
        """
        gone = _client(address, browser), name
        self._failed = [it for it in self._failed if it[1:] != gone]


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
