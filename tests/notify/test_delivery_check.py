"""A listening session that ends while the worker tries out whether it hears anything."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from notifyq.database.pool import Database
from notifyq.notify.session import Session
from notifyq.notify.suppression import Suppression

if TYPE_CHECKING:
    from notifyq.database.pool import Connection


class _Connection:
    """Answers each call; its bell is rung by the test."""

    def __init__(self) -> None:
        self.ring: Callable[[], None] = lambda: None

    async def fetch(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"pid": 1, "backend_start": 1}]

    async def add_listener(self, _channel: str, on_bell: Callable[[], None]) -> None:
        self.ring = on_bell


class _Database:
    """Rings when asked to, and lets the test know."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def value(self, *_: Any) -> int:
        self.asked.set()
        return 1


async def test_a_session_that_ends_as_its_first_bell_arrives_ends_its_promises() -> None:
    """Else the listener would wait for ever: it would neither connect again nor stop."""
    for turns in range(20):
        connection, database = _Connection(), _Database()
        session = Session(cast("Connection", connection), 5, lambda: None)
        promises = Suppression(cast("Database", database), lambda _: None, lambda: None)
        serving = asyncio.create_task(promises.serve(session))
        await database.asked.wait()
        for _ in range(turns):  # the end may come in any of them
            await asyncio.sleep(0)
        connection.ring()
        serving.cancel()
        done, _ = await asyncio.wait({serving}, timeout=5)
        assert done
        assert not promises.is_possible
