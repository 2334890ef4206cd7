"""One private server: create, start, connect, stop."""

from __future__ import annotations

import atexit
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

from notifyq.errors import ServerError
from notifyq.server import binaries as programs
from notifyq.server.folder import Folder, Starter, State, home
from notifyq.server.locks import wait_until
from notifyq.server.postmaster import Postmaster, create_data

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket limits the path of the directory to 107 bytes
    "max_connections": "200",
    "max_worker_processes": "24",
    "synchronous_commit": "off",
}
_STARTER_END_SECONDS = 1.0
_THROWAWAY = {"fsync": "off", "full_page_writes": "off"}


class Server:
    """A private server in a directory; it accepts local connections with its password.

    The server ends with the process that started it, also after kill -9, unless it is `detached`.
    On Linux the kernel ends it (PR_SET_PDEATHSIG); elsewhere, and for a start outside the main
    thread, a small parent process does.
    """

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Path | None = None,
        database: str = "notifyq",
        settings: Mapping[str, str] | None = None,
        throwaway: bool = False,
    ) -> None:
        """Describe the server; the first start creates the directory and the database.

        `throwaway` is fast but not crash-safe, and the stop deletes the directory.
        """
        self._folder = Folder(directory)
        self._postmaster = Postmaster(self._folder)
        self._binaries = binaries and programs.checked(binaries)
        self._database = database
        self._settings = {**_SETTINGS, **(_THROWAWAY if throwaway else {}), **(settings or {})}
        self._throwaway = throwaway
        self._starter_pid: int | None = None

    def __enter__(self) -> Self:
        """Start the server."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server if this object started it."""
        self.stop()

    @property
    def directory(self) -> Path:
        """The directory with the data, log and password of the server."""
        return self._folder.path

    @property
    def binaries(self) -> Path:
        """The folder of the server programs; searched when first needed."""
        if self._binaries is None:
            self._binaries = programs.default_binaries()
        return self._binaries

    @property
    def has_cron(self) -> bool:
        """Whether the extension pg_cron can be created in the server."""
        return programs.has_cron(self.binaries)

    @property
    def state(self) -> State | None:
        """The running server, also if another process started it; waits for a start or stop."""
        if not self._folder.exists:
            return None
        with self._folder.turn():
            return self._folder.state()

    @property
    def running(self) -> int | None:
        """The process id of the running server."""
        state = self.state
        return state.pid if state else None

    @property
    def dsn(self) -> str:
        """The address of the running server, password included."""
        return self._dsn(self.state)

    @property
    def started_here(self) -> bool:
        """Whether `stop()` without force would stop the server."""
        return self._starter_pid == os.getpid()  # not after a fork

    def start(self, *, detached: bool = False) -> str:
        """Start the server unless it runs; return its DSN. `detached`: it outlives this process."""
        self._folder.claim()
        with self._folder.turn():
            if not self._join():
                self._start(detached=detached)
            return self._dsn(self._folder.state())

    def stop(self, *, force: bool = False) -> None:
        """Stop the server if it was started here, or with `force` in any case."""
        atexit.unregister(self.stop)
        if not (force or self.started_here) or not self._folder.exists:
            return
        with self._folder.turn():
            starter = self._folder.starter()
            # Another process may have stopped our server and started its own.
            if force or (starter and starter.pid == os.getpid()):
                self._postmaster.end()
            if self._throwaway:
                shutil.rmtree(self.directory, ignore_errors=True)
        self._postmaster.reap()
        self._starter_pid = None

    def delete(self) -> None:
        """Stop the server and delete its data."""
        self.stop(force=True)
        if self._folder.exists:
            with self._folder.turn():
                self._folder.empty()

    def _join(self) -> bool:
        """Whether a server already runs and will stay; end one whose starter has ended."""
        if not self._folder.in_use:
            return False
        starter = self._folder.starter()
        if starter and (starter.detached or starter.pid == os.getpid()):
            return self._postmaster.becomes_ready()
        # The starter may have been killed just now, and its server is still ending.
        ended = wait_until(lambda: starter is None or not starter.alive, _STARTER_END_SECONDS)
        if starter and not ended and self._folder.in_use:
            raise ServerError(
                f"process {starter.pid} started the server in {self.directory} and will stop it: "
                "wait for its end and run `notifyq server start`, or use --dsn"
            )
        self._postmaster.end()
        return False

    def _start(self, *, detached: bool) -> None:
        account = self._folder.account()
        if not programs.passes(self.directory, account):
            raise ServerError(
                f"user {account and account.name}, which runs the server, cannot enter "
                f"{self.directory}: set NOTIFYQ_HOME to a directory that it can enter"
            )
        binaries = programs.reachable(self.binaries, account)
        version = programs.version(binaries, account)
        self._require_data_of(version)
        self._folder.remember(Starter(pid=os.getpid(), detached=detached, version=version))
        settings = programs.preload_settings(binaries, self._database) | self._settings
        try:
            if not self._folder.data.exists():
                create_data(self._folder, binaries, self._database, durable=not self._throwaway)
            self._postmaster.launch(binaries, settings, detached=detached)
        except BaseException:
            self._postmaster.end()
            self._postmaster.reap()
            raise
        if not detached:
            self._starter_pid = os.getpid()
            atexit.register(self.stop)

    def _require_data_of(self, version: str) -> None:
        label = self._folder.data / "PG_VERSION"
        if label.exists() and (maker := label.read_text().strip()) != version.split(".")[0]:
            raise ServerError(
                f"the data in {self.directory} needs PostgreSQL {maker}, and this is {version}: "
                "set NOTIFYQ_PG_BIN, or delete them with `notifyq server stop --delete`"
            )

    def _dsn(self, state: State | None) -> str:
        if state is None:
            raise ServerError(f"no server runs in {self.directory}: run `notifyq server start`")
        password = quote(self._folder.password(), safe="")
        database = quote(self._database, safe="")
        return f"postgresql://postgres:{password}@127.0.0.1:{state.port}/{database}"


def development() -> Server:
    """Return the persistent development server of this user."""
    return Server(home())
