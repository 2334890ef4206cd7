"""Messages in a table: those of a queue, of a group of dead ones, of a subscriber."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.widgets import DataTable, Static

from notifyq.archive.reader import Archive
from notifyq.models.message import ArchivedMessage
from notifyq.operations import monitor
from notifyq.operations.masks import redacted
from notifyq.operations.monitor import Conditions
from notifyq.operations.top import acts
from notifyq.operations.top.details import OfMessage
from notifyq.operations.top.frame import Looking
from notifyq.operations.top.snapshot import Row, Snapshot
from notifyq.operations.top.table import Table
from notifyq.operations.top.text import age, printable
from notifyq.operations.top.views import View, figure, words

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from datetime import datetime
    from typing import TypeAlias

    from textual.app import ComposeResult

    from notifyq.models.message import Message
    from notifyq.operations.masks import Masks
    from notifyq.operations.monitor import DeadGroup, Found
    from notifyq.operations.top.snapshot import Source

    Ask: TypeAlias = Callable[[Source], Coroutine[Any, Any, list[Row]]]

_MOST = 200
"""Messages that are listed."""


MESSAGES = View(
    "Messages",
    (
        figure("id", lambda _, it: str(it.id), lambda _, it: it.id),
        words("state", lambda _, it: it.state, None, 0, 14),
        figure("since", lambda seen, it: age(seen.now, it.at), None),
        figure("tries", lambda _, it: str(it.attempts), None, 1),
        words("type", lambda _, it: it.type, None, 2, 16),
        words("message or error", lambda _, it: it.text, None, 0, 200),
    ),
    lambda seen: seen.messages,
    lambda it: f"{it.id} {it.state} {it.type} {it.text}",
    "no message is here",
    first=-1,
)


def _row(it: Message | ArchivedMessage, masks: Masks) -> Row:
    dead = isinstance(it, ArchivedMessage)
    state = it.status if isinstance(it, ArchivedMessage) else it.state
    at = it.archived_at if isinstance(it, ArchivedMessage) else it.locked_at or it.created_at
    text = _text(it.details if dead else None, it.message, masks)
    return Row(it.id, state, at, it.attempts, printable(it.type), text)


class Listing(Looking):
    """A table of messages, of which each can be looked at in full."""

    BINDINGS: ClassVar[list[Any]] = [("r", "retry", "Retry")]

    def __init__(self, title: str, ask: Ask) -> None:
        super().__init__()
        self._title = title
        self._ask = ask
        self._rows: list[Row] | None = None
        self._now: datetime | None = None
        self.is_of_dead = True

    def compose(self) -> ComposeResult:
        """Head, table, hints."""
        yield Static(id="head")
        yield Static(id="views")
        yield Table()
        yield Static(id="hints")

    def hints(self) -> str:
        """The keys that do something here."""
        retry = "r retry  " if self.is_of_dead and not self.top.read_only else ""
        return f"enter open  {retry}esc back  ? help  q quit"

    async def look(self) -> None:
        """Ask for the messages, and the time."""
        self._now = await self.top.source.ask(monitor.clock(self.top.source.database))
        self._rows = await self.top.source.ask(self._ask(self.top.source))

    def show(self) -> None:
        """Show the table."""
        self.frame(self._title)
        if self._rows is None or self._now is None:
            return
        table = self.query_one(Table)
        found = table.show(MESSAGES, Snapshot(now=self._now, messages=tuple(self._rows)))
        said = MESSAGES.empty if not found else f"the first {_MOST}" if found >= _MOST else ""
        self.query_one("#views", Static).update(Text(f"{self.remark()}  {said}"))
        if self.focused is None:
            table.focus()

    def remark(self) -> str:
        """What is shown, above the table."""
        return ""

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Look at the message in full."""
        row = self.query_one(Table).current
        if row is not None:
            self.app.push_screen(OfMessage(row.id))

    def action_retry(self) -> None:
        """Publish the message again."""
        row = self.query_one(Table).current
        if row is not None and self.is_of_dead:
            database = self.top.source.database
            question = f"Retry message {row.id}?\n{row.text[:200]}"
            self.top.act(question, lambda: acts.retry(database, [row.id]))


class OfQueue(Listing):
    """The live messages of a queue, or its dead ones."""

    BINDINGS: ClassVar[list[Any]] = [("tab,left,right", "turn", "Live or dead")]

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {printable(queue)}", self._find)
        self._queue = queue
        self.is_of_dead = False

    def remark(self) -> str:
        """Which of both are shown."""
        return " live  [dead]" if self.is_of_dead else "[live]  dead "

    def hints(self) -> str:
        """The keys that do something here."""
        return f"tab live or dead  {super().hints()}"

    def action_turn(self) -> None:
        """Show the others."""
        self.is_of_dead = not self.is_of_dead
        self._rows = []
        self.show()
        self.top.hurry()

    async def _find(self, source: Source) -> list[Row]:
        """Ask for the live ones, the oldest first, or the dead ones, the latest first."""
        archive = Archive(source.database)
        if self.is_of_dead:
            return [_row(it, source.masks) for it in await archive.dead(self._queue, _MOST)]
        return [_row(it, source.masks) for it in await archive.live(self._queue, None, _MOST)]


def of_subscriber(stream: str, subscriber: str) -> Listing:
    """The dead events of one subscriber, the latest first."""

    async def find(source: Source) -> list[Row]:
        found = await Archive(source.database).dead(stream, _MOST, subscriber=subscriber)
        return [_row(it, source.masks) for it in found]

    return Listing(f"dead events of {printable(stream)} / {printable(subscriber)}", find)


def of_group(group: DeadGroup, masks: Masks) -> Listing:
    """The dead messages of one group, the latest first."""
    conditions = Conditions(state="dead", fingerprint=group.fingerprint)

    async def find(source: Source) -> list[Row]:
        page = await monitor.search(source.database, conditions, quantity=_MOST)
        return [_found(it, source.masks) for it in page.messages]

    name = redacted(group.fingerprint, masks, None)
    return Listing(f"dead: {printable(name)[:60]}", find)


def _found(it: Found, masks: Masks) -> Row:
    at = it.archived_at or it.locked_at or it.created_at
    text = _text(it.details, it.message, masks)
    return Row(it.id, it.state, at, it.attempts, printable(it.type), text)


def _text(details: str | None, message: str | None, masks: Masks) -> str:
    """What tells most about a message in one line: its error, else its payload."""
    if masks.are_none:
        return printable(details or message)
    # Its headers, too, may have what is to be hidden: of an error only the kind is shown here.
    return printable(redacted(details, masks, None) or masks.text(message, indent=None))
