"""An App on the database of the test, what its workers say, and a server that may be stopped."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from notifyq import App
from notifyq.embedded import Server, debian_binaries, wheel_binaries
from notifyq.inbox import Inbox
from worker.running import Events

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from notifyq import Message


@pytest.fixture
def events() -> Events:
    """Give a sink that can be waited on."""
    return Events()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a list that grows with every claim that a worker sends, by the quantity asked for."""
    quantities: list[int] = []
    send = Inbox.claim

    async def claim(self: Inbox, queues: Any, quantity: int, **options: Any) -> list[Message]:
        quantities.append(quantity)
        return await send(self, queues, quantity, **options)

    monkeypatch.setattr(Inbox, "claim", claim)
    return quantities


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    """Give an App that gives up on a lost server after 30 s."""
    app = App(database, retry_for=30)
    yield app
    await app.close()


@pytest.fixture
def mortal_server() -> Iterator[Server]:
    """Give a server of the test's own that keeps data and port when it is stopped and started."""
    candidates = [debian_binaries(), wheel_binaries()]
    if os.environ.get("NOTIFYQ_TEST_ENGINE") == "embedded":
        candidates.reverse()
    binaries = next(filter(None, candidates), None)
    if binaries is None:
        pytest.skip("no PostgreSQL is installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        # Run by root, the server is another user's and must be able to enter.
        Path(folder).chmod(0o711)
        server = Server(
            Path(folder) / "server",
            binaries=binaries,
            settings={"port": str(port), "fsync": "off", "synchronous_commit": "on"},
        )
        try:
            server.start()
            yield server
        finally:
            server.stop(force=True)
