"""A dashboard over the database of a test, asked without a socket."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Protocol

import httpx
import pytest

from notifyq.operations.dashboard import create_app
from support.database import Connection, let_fail

BASE = "http://localhost:8080"


class Browser:
    """Sends requests like a browser: keeps cookies, sends Origin, fills the token into forms."""

    def __init__(self, client: httpx.AsyncClient, app: Any) -> None:
        self.client = client
        self.app = app
        self.root = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def text(self, path: str, status: int = 200) -> str:
        answer = await self.get(path)
        assert answer.status_code == status, answer.text
        return answer.text

    async def token(self) -> str:
        """The token that the forms of this browser carry."""
        found = re.search(
            r'name="csrf" value="([^"]+)"', (await self.get(f"{self.root}/login")).text
        )
        assert found is not None
        return found[1]

    async def send(self, path: str, **fields: Any) -> httpx.Response:
        """Send a form as a page of ours would, and stay where it answers."""
        return await self.client.post(
            path, data={"csrf": await self.token(), **fields}, headers={"origin": BASE}
        )

    async def act(self, path: str, **fields: Any) -> str:
        """Send a form, follow where it leads, and return that page."""
        answer = await self.send(path, **fields)
        assert answer.status_code == 303, answer.text
        return await self.text(answer.headers["location"])


async def make_dead(
    connection: Connection,
    quantity: int = 1,
    details: str | None = "no luck",
    queue: str = "default",
) -> list[int]:
    """Have messages fail; return their ids."""
    return await let_fail(connection, quantity, queue, details, worker="host-1")


class Open(Protocol):
    """Makes a dashboard over the database of the test, and a browser before it."""

    async def __call__(self, **options: Any) -> Browser: ...


@pytest.fixture
async def open_dashboard(database: str) -> AsyncIterator[Open]:
    """Give a function that makes a dashboard; open to all by default."""
    async with AsyncExitStack() as stack:

        async def make(**options: Any) -> Browser:
            if not {"users", "authenticate"} & options.keys():
                options["open_to_all"] = True
            app = create_app(options.pop("dsn", database), **options)
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app)
            client = httpx.AsyncClient(transport=transport, base_url=BASE)
            return Browser(await stack.enter_async_context(client), app)

        yield make


@pytest.fixture
async def reader(open_dashboard: Open) -> Browser:
    """Give a browser before a dashboard that only reads."""
    return await open_dashboard()


@pytest.fixture
async def writer(open_dashboard: Open) -> Browser:
    """Give a browser before a dashboard that may write."""
    return await open_dashboard(allow_writes=True)
