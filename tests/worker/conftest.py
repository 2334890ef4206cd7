"""What workers are tested with: what they claim, and a server that may be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from notifyq.queues.claim_client import ClaimClient
from servers import kept_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq import Message
    from notifyq.server import Server


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a list that grows with every claim that a worker sends, by the quantity asked for."""
    quantities: list[int] = []
    send = ClaimClient.claim

    async def claim(self: ClaimClient, queues: Any, quantity: int, **options: Any) -> list[Message]:
        quantities.append(quantity)
        return await send(self, queues, quantity, **options)

    monkeypatch.setattr(ClaimClient, "claim", claim)
    return quantities


@pytest.fixture
def mortal_server() -> Iterator[Server]:
    """Give a server of the test's own that keeps data and port when it is stopped and started."""
    with kept_server() as server:
        server.start()
        yield server
