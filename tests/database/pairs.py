"""A primary and its standby, of which one is killed and the other takes over."""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

from notifyq.chaos.server import Server
from notifyq.database.connect import targets


class Pair(NamedTuple):
    """A primary whose commits wait for its standby, and the address of both."""

    primary: Server
    standby: Server

    @property
    def dsn(self) -> str:
        ports = self.primary.port, self.standby.port
        both = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
        [one] = targets(self.primary.dsn)
        return one.url.replace(f"127.0.0.1:{ports[0]}", both) + "?target_session_attrs=read-write"


async def kill(server: Server) -> None:
    """End it as a loss of power does, and see its last session gone."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await server.stop()
