"""The processes of a server: initdb creates its data, the postmaster serves them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from notifyq.errors import ServerError
from notifyq.server.binaries import clean_environment
from notifyq.server.folder import Folder, write_private
from notifyq.server.launch import Tie, launcher
from notifyq.server.locks import wait_until

_START_SECONDS = 60.0
_LOG_BYTES = 10_000_000
_PORT_ATTEMPTS = 3


def create_data(folder: Folder, binaries: Path, database: str, *, durable: bool) -> None:
    """Create the data directory with one empty database.

    It gets its name at the end: an incomplete one must never be started.
    """
    account = folder.account()
    fresh = folder.path / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    if account:
        os.chown(fresh, account.uid, account.gid)
    write_private(folder.secret, folder.new_password(), account)
    auth = ["--username=postgres", "--auth=scram-sha-256", f"--pwfile={folder.secret}"]
    shape = ["--encoding=UTF8", "--locale=C", "--no-sync", f"--pgdata={fresh}"]
    try:
        _create_with(folder, [binaries / "initdb", *auth, *shape])
    finally:
        folder.secret.unlink()
    name = database.replace('"', '""')
    _create_with(
        folder,
        [binaries / "postgres", "--single", "-D", fresh, "-c", "fsync=off", "postgres"],
        f'create database "{name}"\n',
    )
    if durable:
        os.sync()  # once, while initdb would sync each file
    fresh.rename(folder.data)


def _create_with(folder: Folder, command: list[str | Path], text: str = "") -> None:
    with folder.occupied() as alive:
        result = subprocess.run(  # noqa: S603  the command is our own
            launcher(Tie.thread, folder.account(), command),
            input=text,
            capture_output=True,
            text=True,
            check=False,
            cwd=folder.path,
            env=clean_environment(),
            pass_fds=[alive],
            start_new_session=True,
        )
    # A single-user server reports an error, but exits with 0.
    complaints = [line for line in result.stderr.splitlines() if "ERROR" in line]
    if result.returncode or complaints:
        reason = (complaints or result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ServerError(f"cannot create a server in {folder.path}: {reason}")


class Postmaster:
    """The server process of a folder; call its methods within `folder.turn()` only."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._child: subprocess.Popen[bytes] | None = None

    def launch(self, binaries: Path, settings: Mapping[str, str], *, detached: bool) -> None:
        """Start the server on a free port; return when it accepts connections."""
        log = self._folder.log
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            os.truncate(log, 0)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            known = log.stat().st_size if log.exists() else 0
            # Another process may have taken the last port, or this one just now: choose again.
            port = free_port(self._folder.port if attempt == 1 else 0)
            self.spawn(binaries, {"port": str(port), **settings}, detached=detached)
            if self.becomes_ready():
                if found := self._folder.postmaster():
                    self._folder.remember_port(found[1])
                return
            logged = self._log_since(known)
            if "could not bind" not in logged or attempt == _PORT_ATTEMPTS:
                raise ServerError(self._failure(logged))

    def becomes_ready(self) -> bool:
        """Wait until a starting server accepts connections; False if it ends or hangs."""

        def ready() -> bool:
            found = self._folder.postmaster()
            return found is not None and found[2]

        wait_until(lambda: ready() or not self._folder.in_use, _START_SECONDS)
        return ready() and self._folder.in_use

    @property
    def pid(self) -> int | None:
        """The process id of the child; None while there is none."""
        return self._child.pid if self._child and self._child.poll() is None else None

    def end(self, first: int = signal.SIGINT) -> None:
        """Stop the server, at last by SIGKILL; return when its last process has ended."""
        for signum, patience in ((first, 20), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
            found = self._folder.postmaster()
            if found and self._folder.in_use:
                with suppress(ProcessLookupError):
                    os.kill(found[0], signum)
            if wait_until(lambda: not self._folder.in_use, patience):
                return
        raise ServerError(
            f"the server in {self._folder.path} cannot be stopped: see {self._folder.log}"
        )

    def reap(self) -> None:
        """Wait for a child that has ended."""
        if self._child:
            self._child.wait()
            if self._child.stdin:
                self._child.stdin.close()
            self._child = None

    def spawn(
        self,
        binaries: Path,
        settings: Mapping[str, str],
        *,
        detached: bool = False,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start the process of the server, and do not wait until it accepts connections."""
        self.reap()
        # No process of the last server holds the alive lock: the file is a leftover. Another
        # program may have its process id by now, and PostgreSQL would refuse to start.
        (self._folder.data / "postmaster.pid").unlink(missing_ok=True)
        tie = Tie.none if detached else _tie()
        options = [f"--{name}={value}" for name, value in settings.items()]
        command: list[str | Path] = [binaries / "postgres", "-D", self._folder.data, *options]
        log = os.open(self._folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            with self._folder.occupied() as alive:
                self._child = subprocess.Popen(  # noqa: S603  the command is our own
                    launcher(tie, self._folder.account(), command),
                    stdin=subprocess.PIPE if tie is Tie.pipe else subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder.path,
                    env={**clean_environment(), **environment},
                    pass_fds=[alive],
                    start_new_session=True,  # a Ctrl-C in the terminal must not reach it
                )
        finally:
            os.close(log)
        if detached:
            self.reap()  # the launcher has ended; the server is a child of init

    def _failure(self, logged: str) -> str:
        lines = logged.strip().splitlines()[-10:] or [f"no log line in {_START_SECONDS:.0f} s"]
        reason = next((line for line in lines if "FATAL" in line), lines[-1])
        head = f"the server in {self._folder.path} did not start: {reason}"
        return "\n  ".join([head, f"{self._folder.log} ends with", *lines])

    def _log_since(self, position: int) -> str:
        with self._folder.log.open("rb") as log:
            log.seek(position)
            return log.read().decode(errors="replace")


def _tie() -> Tie:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return Tie.thread if sys.platform == "linux" and in_main_thread else Tie.pipe


def free_port(wanted: int = 0) -> int:
    """Return the wanted port if it is free, else another one."""
    with socket.socket() as listener:
        # As PostgreSQL does: ignore connections of the last server that are still closing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted))
            listener.listen()
        except (OSError, OverflowError):
            return free_port() if wanted else 0
        port: int = listener.getsockname()[1]
        return port
