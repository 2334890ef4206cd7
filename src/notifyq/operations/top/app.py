"""The program behind `notifyq top`: looks at the database by and by, and shows what it saw."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import asyncpg
from rich.text import Text
from textual.app import App

from notifyq.config import masked
from notifyq.errors import NotifyqError
from notifyq.operations.top.frame import Ask, Looking
from notifyq.operations.top.main import Main
from notifyq.operations.top.text import lasting, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from notifyq.database.pool import Database
    from notifyq.operations.top.snapshot import Source

FAILURES = (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class Top(App[None]):
    """Screens over one connection; `every` is the time between two looks."""

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        ("q,ctrl+c", "quit", "Quit"),
        ("space", "hurry", "Look now"),
    ]

    def __init__(
        self, source: Source, *, every: timedelta = timedelta(seconds=2), read_only: bool = False
    ) -> None:
        super().__init__()
        self.source = source
        self.read_only = read_only
        self.said = ""
        """What the last act came to, until the next key."""
        self.animation_level = "none"  # each step of one would go over the line
        self._every = every.total_seconds()
        self._wake = asyncio.Event()
        self._away_since: float | None = None
        self._failure = ""
        self._name = address(source.database)

    def on_mount(self) -> None:
        """Show the queues, and begin to look."""
        self.push_screen(Main())
        self.run_worker(self._look_for_ever(), group="look")

    def headline(self, title: str) -> Text:
        """The line on top: what is shown, of which database, and whether it is there."""
        if self._away_since is None:
            state = time.strftime("%H:%M:%S")
        else:
            away = lasting(timedelta(seconds=time.monotonic() - self._away_since))
            state = f"DATABASE AWAY for {away}: {printable(self._failure)}"
        mode = "  read-only" if self.read_only else ""
        line = f"notifyq top  {title}  {state}{mode}  {self._name}"
        return Text(line, no_wrap=True, overflow="ellipsis")

    def hurry(self) -> None:
        """Look again now."""
        self._wake.set()

    def action_hurry(self) -> None:
        """Look again now, at everything."""
        self.source.forget()
        self.hurry()

    async def _look_for_ever(self) -> None:
        while True:
            self._wake.clear()
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()

    async def _look(self) -> None:
        screens = [it for it in self.screen_stack if isinstance(it, Looking)]
        if not screens:
            return
        screen = screens[-1]
        try:
            await screen.look()
        except FAILURES as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
            self._failure = str(error) or type(error).__name__
        else:
            self._away_since = None
        screen.paint()

    def act(self, question: str, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Ask, and on a yes do it and say what it came to."""
        if self.read_only:
            self._say("read-only: nothing can be changed here")
            return

        def answered(is_yes: bool | None) -> None:  # noqa: FBT001  Textual calls it so
            if is_yes:
                self.run_worker(self._do(call), group="act")

        self.push_screen(Ask(question), answered)

    async def _do(self, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        try:
            said: str = await self.source.ask(call())
        except FAILURES as error:
            said = f"not done: {printable(str(error))}"
        self.source.forget()
        self._say(said)
        self.hurry()

    def _say(self, text: str) -> None:
        self.said = text
        if isinstance(self.screen, Looking):
            self.screen.paint()


def address(database: Database) -> str:
    """Where the database is, as short as it can be told."""
    return masked(database.dsn).rpartition("@")[2].partition("?")[0].removeprefix("postgresql://")
