"""Pages in a real browser, and a dashboard that it can reach."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from playwright.async_api import async_playwright

from notifyq.operations.dashboard import create_app
from notifyq.operations.dashboard.serve import bind

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_BROWSER = next((found for name in _NAMES if (found := shutil.which(name))), None)

in_a_browser = [
    pytest.mark.skipif(_BROWSER is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.timeout(120),
]
"""Marks of the tests of such a file."""


@asynccontextmanager
async def serving(dsn: str, **options: Any) -> AsyncIterator[str]:
    """Serve a dashboard that is open to all; give its address."""
    app = create_app(dsn, open_to_all=True, interval=0.2, **options)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
    )
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    listener = bind("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def opened(*, width: int = 1200, but: str = "no text", **options: Any) -> AsyncIterator[Any]:
    """Open a window; its console must stay empty, but for lines with a text.

    The console has the errors of the content security policy, too.
    """
    messages: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=_BROWSER, args=["--no-sandbox", "--disable-gpu"]
        )
        context = await browser.new_context(
            viewport={"width": width, "height": 800}, reduced_motion="reduce", **options
        )
        page = await context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("dialog", lambda dialog: messages.append(dialog.message))
        yield page
        await browser.close()
    assert [text for text in messages if but not in text] == []
