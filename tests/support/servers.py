"""Servers of a test's own, which may be stopped, started and killed."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from notifyq.server import Server, debian_binaries, wheel_binaries
from support.ports import free_port


@functools.cache
def _initialised(binaries: Path) -> Path:
    """Make a server to copy from, which stays until the tests are over: initdb takes longer."""
    folder = tempfile.TemporaryDirectory(prefix="notifyq-test-")
    atexit.register(folder.cleanup)
    Path(folder.name).chmod(0o711)
    with Server(Path(folder.name) / "server", binaries=binaries, settings={"fsync": "off"}) as made:
        return made.directory


@contextlib.contextmanager
def kept_server(binaries: Path | None = None, /, **settings: str) -> Iterator[Server]:
    """Give a server, not started yet, that keeps data and port when it is stopped and started.

    What is committed outlives a crash of the server, but not one of the machine.
    """
    candidates = [debian_binaries(), wheel_binaries()]
    if os.environ.get("NOTIFYQ_TEST_ENGINE") == "embedded":
        candidates.reverse()
    binaries = binaries or next(filter(None, candidates), None)
    if binaries is None:
        pytest.skip("no PostgreSQL is installed")
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        # Run by root, the server is another user's and must be able to enter.
        Path(folder).chmod(0o711)
        subprocess.run(["cp", "-a", _initialised(binaries), folder], check=True)
        kept = {"port": str(free_port()), "fsync": "off", "synchronous_commit": "on"}
        server = Server(Path(folder) / "server", binaries=binaries, settings=kept | settings)
        try:
            yield server
        finally:
            server.stop(force=True)
