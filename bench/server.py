"""The server that all systems are measured on: a private one, or the one of --dsn."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.dsn import with_database
from notifyq.server import Server, debian_binaries, wheel_binaries

from . import machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from .processes import Workers

# The same durable settings for all systems: PostgreSQL's defaults, with a cache and a WAL that keep
# checkpoints out of the short measurements. By default a private server does not wait for commits.
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "max_connections": "300",
    "track_commit_timestamp": "on",  # the end of a drain is that of its last transaction
}
SHOWN = (*SETTINGS, "server_version", "commit_delay", "wal_level", "wal_sync_method", "jit")
SLOW_FLUSH = {"commit_delay": "2000", "commit_siblings": "0"}
"""Adds 2 ms to each flush of the WAL, like a network disk or a synchronous replica."""


@contextlib.contextmanager
def private() -> Iterator[str]:
    """Give the DSN of a private server; delete it with its data at the end."""
    binaries = debian_binaries() or wheel_binaries()
    with tempfile.TemporaryDirectory(prefix="notifyq-bench-", ignore_cleanup_errors=True) as folder:
        # Under root, the server runs as another user and must be able to enter.
        Path(folder).chmod(0o711)
        server = Server(Path(folder) / "server", binaries=binaries, settings=SETTINGS)
        try:
            yield server.start()
        finally:
            server.stop()


class Host:
    """One server, with a database for each system."""

    def __init__(self, dsn: str, admin: asyncpg.Connection[Any]) -> None:
        self._dsn = dsn
        self._admin = admin
        # Contains the process id: only databases of this run are dropped.
        self._prefix = f"notifyq_bench_{os.getpid()}"
        self._postmaster: int | None = None
        self._is_slow = False

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Host]:
        """Connect; at the end, drop the databases and reset the settings of the run."""
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
        """Create the database of a system and return its DSN."""
        name = f"{self._prefix}_{system}"
        await self._admin.execute(f'create database "{name}" template template0')
        return with_database(self._dsn, name)

    async def settings(self) -> dict[str, str]:
        """Return the settings that affect results."""
        return {name: await self._admin.fetchval(f"show {name}") for name in SHOWN}

    async def used(self, workers: Workers | None = None) -> dict[str, float]:
        """Return what the server and the workers have used so far, by metric, where it is known."""
        lsn = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
        used = {
            "server_cpu": self._postmaster and machine.cpu_seconds([self._postmaster]),
            "worker_cpu": workers and workers.cpu(),
            "wal": await self._admin.fetchval(lsn),
        }
        return {name: value for name, value in used.items() if value is not None}

    async def per_message(
        self, before: Mapping[str, float], messages: int, workers: Workers | None = None
    ) -> dict[str, float]:
        """Return what was used since `before`, divided by the messages."""
        after = await self.used(workers)
        return {name: (after[name] - before[name]) / messages for name in before if messages}

    async def flush(self) -> None:
        """Flush the WAL written so far, so that the next commit has only its own to flush."""
        await self._admin.execute("select pg_logical_emit_message(true, 'notifyq bench', '')")

    async def settle(self) -> None:
        """Write a checkpoint, so that the writes of one measurement do not slow down the next."""
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            await self._admin.execute("checkpoint", timeout=120)

    async def slow_flush(self) -> None:
        """Add two milliseconds to each flush of the WAL, for all sessions."""
        self._is_slow = True
        for name, value in SLOW_FLUSH.items():
            await self._admin.execute(f"alter system set {name} = '{value}'")
        await self._reload()

    async def reset(self) -> None:
        """Undo `slow_flush`."""
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
