"""Directories, programs and starter processes for the tests of the embedded server."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from notifyq.server import Server, debian_binaries, wheel_binaries
from server.starters import SOURCES, Program


def _fast_folder() -> str:
    """Return a directory in memory if there is room: a server is made of a thousand small files."""
    memory = "/dev/shm"
    try:
        about = os.statvfs(memory)
    except FileNotFoundError:
        return "/tmp"
    roomy = about.f_bavail * about.f_frsize > 1_000_000_000
    return memory if roomy and not about.f_flag & os.ST_NOEXEC else "/tmp"


@pytest.fixture
def spot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory open to the server's user, which pytest's `tmp_path` is not."""
    path = Path(tempfile.mkdtemp(prefix="notifyq-", dir=_fast_folder()))
    path.chmod(0o711)
    monkeypatch.setenv("NOTIFYQ_HOME", str(path / "home"))
    yield path
    for lock in path.rglob("turn.lock"):
        if lock.stat().st_uid == os.geteuid():
            Server(lock.parent).stop(force=True)
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def binaries() -> Path:
    """Return any programs there are."""
    found = wheel_binaries() or debian_binaries()
    if found is None:
        pytest.skip("no PostgreSQL is installed")
    return found


@pytest.fixture(scope="session")
def made(binaries: Path) -> Iterator[Path]:
    """Return the directory of a persistent server that was started once."""
    path = Path(tempfile.mkdtemp(prefix="notifyq-", dir=_fast_folder()))
    with Server(path, binaries=binaries):
        pass
    yield path
    shutil.rmtree(path)


@pytest.fixture
def server(made: Path, spot: Path, binaries: Path) -> Server:
    """Return a persistent server with data of its own, not running."""
    subprocess.run(["cp", "-a", made, spot / "server"], check=True)
    return Server(spot / "server", binaries=binaries)


@pytest.fixture
def program() -> Program:
    """Return the running interpreter."""
    return Program(sys.executable, str(SOURCES))


@pytest.fixture
def nobody(spot: Path) -> Program:
    """Return an interpreter that runs as an ordinary user, for whom `spot` is opened."""
    if os.geteuid() != 0:
        pytest.skip("only root can become someone else")
    user = pwd.getpwnam("nobody")
    path = os.pathsep.join([str(SOURCES), sysconfig.get_path("platlib")])
    minor = f"/usr/bin/python3.{sys.version_info.minor}"
    for python in (sys.executable, minor):
        candidate = Program(python, path, user.pw_uid)
        try:
            candidate.output("import notifyq.server")
        except (OSError, AssertionError):
            continue
        os.chown(spot, user.pw_uid, user.pw_gid)
        return candidate
    pytest.skip("no interpreter that another user can run")


@pytest.fixture
def ends() -> Callable[[int], bool]:
    """Return a function that waits until a process has ended."""

    def wait(pid: int, seconds: float = 20) -> bool:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        with closing(os.fdopen(handle)) as process:
            poll = select.poll()
            poll.register(process, select.POLLIN)
            return bool(poll.poll(seconds * 1000))

    return wait
