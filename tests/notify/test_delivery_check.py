"""A listening session that ends while it tests whether notifications arrive."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from notifyq.database.pool import Database
from notifyq.notify.session import Session
from notifyq.worker.wake import Suppression

if TYPE_CHECKING:
    from notifyq.database.pool import Connection


class _Connection:
    """Answers each call; the test sends its notification."""

    def __init__(self) -> None:
        self.deliver: Callable[[], None] = lambda: None

    async def fetch(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"pid": 1, "backend_start": 1}]

    async def add_listener(self, _channel: str, on_notification: Callable[[], None]) -> None:
        self.deliver = on_notification


class _Database:
    """Accepts each notification, and reports that to the test."""

    def __init__(self) -> None:
        self.called = asyncio.Event()

    async def notify(self, _channel: str) -> bool:
        self.called.set()
        return True


async def test_a_session_that_ends_as_its_first_notification_arrives_ends_its_leases() -> None:
    """Otherwise the listener would neither connect again nor stop."""
    for turns in range(20):
        connection, database = _Connection(), _Database()
        session = Session(cast("Connection", connection), notify=database.notify)
        suppression = Suppression(cast("Database", database), lambda _: None, lambda: None)
        serving = asyncio.create_task(suppression.serve(session))
        await database.called.wait()
        for _ in range(turns):  # the end may come in any of them
            await asyncio.sleep(0)
        connection.deliver()
        serving.cancel()
        done, _ = await asyncio.wait({serving}, timeout=5)
        assert done
        assert suppression.session is None
