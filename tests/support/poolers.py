"""Debian's PgBouncer in front of a test's database, in transaction mode."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.ports import free_port

_PROGRAM = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"


class Pooler:
    """One PgBouncer on a port of its own, which may be killed and started again."""

    def __init__(self, folder: Path, dsn: str, **settings: str) -> None:
        server = urlsplit(dsn)
        self._port = free_port()
        self._name = server.path[1:]
        self._config = folder / "pgbouncer.ini"
        password = unquote(server.password or "")
        user = unquote(server.username or "")
        options = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self._port),
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": "4",
            "logfile": str(folder / "log"),
        } | settings
        lines = "\n".join(f"{name} = {value}" for name, value in options.items())
        target = f"host={server.hostname} port={server.port} user={user} password={password}"
        self._config.write_text(f"[databases]\n{self._name} = {target}\n\n[pgbouncer]\n{lines}\n")
        self._user = None
        if os.geteuid() == 0:  # as which it does not run
            self._user = "nobody"
            account = pwd.getpwnam(self._user)
            for path in (folder, self._config):
                os.chown(path, account.pw_uid, account.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://someone@127.0.0.1:{self._port}/{self._name}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [_PROGRAM, "-q", self._config],
            user=self._user,
            extra_groups=[] if self._user else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        give_up = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return
            assert self._process.poll() is None, "pgbouncer did not start"
            assert time.monotonic() < give_up
            time.sleep(0.01)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def pooler(dsn: str, **settings: str) -> Iterator[Pooler]:
    if not Path(_PROGRAM).exists():
        pytest.skip("there is no pgbouncer: install the package")
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        running = Pooler(Path(folder), dsn, **settings)
        running.start()
        try:
            yield running
        finally:
            running.kill()
