"""The application behind `notifyq top`: reads the database regularly and shows the screens."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

import asyncpg
from rich.text import Text
from textual.app import App

from notifyq.database.pool import Database
from notifyq.database.refusals import is_refusal
from notifyq.dsn import hosts_of, options_of
from notifyq.errors import NotifyqError
from notifyq.operations.top.frame import LiveScreen, Question
from notifyq.operations.top.main import Main
from notifyq.operations.top.snapshot import Source
from notifyq.operations.top.text import lasting
from notifyq.printable import first_line

_FAILURES = (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class Top(App[None]):
    """Shows screens over one connection; reads the database every `every`."""

    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[Any]] = [
        ("q,ctrl+c", "quit", "Quit"),
        ("space", "update_now", "Update"),
    ]

    def __init__(
        self, source: Source, *, every: timedelta = timedelta(seconds=2), read_only: bool = False
    ) -> None:
        super().__init__()
        self.source = source
        self.read_only = read_only
        self.notice = ""
        """The result of the last change, until the next key."""
        self.animation_level = "none"  # animations would send every step over the network
        self._every = every.total_seconds()
        self._wake = asyncio.Event()
        self._away_since: float | None = None
        self._failure = ""
        self._is_refused = False
        self._name = address(source.database)

    def on_mount(self) -> None:
        """Show the queues, and start reading."""
        self.push_screen(Main())
        self.run_worker(self._read_regularly(), group="read")

    def headline(self, title: str) -> Text:
        """The first line: the view, whether the database answers, and its address."""
        if self._away_since is None:
            state = time.strftime("%H:%M:%S")
        else:
            away = lasting(timedelta(seconds=time.monotonic() - self._away_since))
            what = "REFUSED" if self._is_refused else "DATABASE AWAY"
            state = f"{what} for {away}: {first_line(self._failure)}"
        mode = "  read-only" if self.read_only else ""
        line = f"notifyq top  {title}  {state}{mode}  {self._name}"
        return Text(line, no_wrap=True, overflow="ellipsis")

    def wake(self) -> None:
        """Read the database now."""
        self._wake.set()

    def action_update_now(self) -> None:
        """Read everything now, also what is usually read less often."""
        self.source.forget()
        self.wake()

    async def _read_regularly(self) -> None:
        while True:
            self._wake.clear()
            await self._read()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._wake.wait()

    async def _read(self) -> None:
        screens = [it for it in self.screen_stack if isinstance(it, LiveScreen)]
        if not screens:
            return
        try:
            await screens[-1].fetch()
        except _FAILURES as error:
            if self._away_since is None:
                self._away_since = time.monotonic()
            self._failure = str(error) or type(error).__name__
            self._is_refused = is_refusal(error)
        else:
            self._away_since = None
        screens[-1].paint()

    def act(self, question: str, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Confirm and make a change, and show its notice."""
        if self.read_only:
            self._show_notice("read-only: nothing can be changed here")
            return

        def answered(is_yes: bool | None) -> None:  # noqa: FBT001  Textual calls it so
            if is_yes:
                self.run_worker(self._do(call), group="act")

        self.push_screen(Question(question), answered)

    async def _do(self, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        try:
            notice = await self.source.call(call())
        except _FAILURES as error:
            notice = f"failed: {first_line(str(error))}"
        self.source.forget()
        self._show_notice(notice)
        self.wake()

    def _show_notice(self, text: str) -> None:
        self.notice = text
        if isinstance(self.screen, LiveScreen):
            self.screen.paint()


def address(database: Database) -> str:
    """A short address of the database."""
    options = options_of(database.dsn)
    hosts = ",".join(f"{host}:{port}".rstrip(":") for host, port in hosts_of(options))
    return f"{hosts}/{options.get('dbname', '')}"
