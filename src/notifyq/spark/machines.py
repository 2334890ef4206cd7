"""Machines of a cluster: which one this is, and which addresses mean another server on each."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from notifyq.errors import ConfigurationError

DRIVER = "NOTIFYQ_SPARK_DRIVER"
"""The environment variable that names the machine of the driver to executors."""


def this_machine() -> str:
    """Return an identity of this machine: host name, boot, and network of its container."""
    found = [socket.gethostname()]
    # Each container of a host has its own loopback.
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(os.readlink("/proc/self/ns/net"))  # noqa: PTH115 - no path, but a name
    return "/".join(found)


def is_remote(master: str) -> bool:
    """Return whether a master of Spark starts executors outside of the driver's machine."""
    return not master.startswith("local")


def address_for(master: str) -> str | None:
    """Return the address of this machine that a standalone master reaches; None: unknown.

    It is a loopback address only if the master has one.
    """
    first = master.partition(",")[0]
    given = urlsplit(first if "://" in first else f"spark://{first}")
    if given.scheme != "spark" or not given.hostname:
        return None
    try:
        [(family, *_, there), *_] = socket.getaddrinfo(
            given.hostname, given.port or 7077, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(there)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether a host, or the folder of a socket, means this machine on each machine."""
    if not host or host[0] in "/@" or host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def check(given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError on an executor whose DSN names a server on the driver's machine."""
    driver = os.environ.get(DRIVER)
    if driver is None or driver == this_machine() or given.get("service"):
        return
    named = given.get("hostaddr") or given.get("host") or os.environ.get("PGHOST") or ""
    hosts = str(named).split(",")
    if all(map(is_loopback, hosts)):
        shown = hosts[0] or "a local socket"
        raise ConfigurationError(
            f"the DSN names {shown}, which on {socket.gethostname()} is not the driver's server: "
            "use an address of the database that every executor reaches"
        )
