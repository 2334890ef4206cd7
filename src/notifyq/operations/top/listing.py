"""Lists of messages: of a queue, of a group of dead messages, of a subscriber."""

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import DataTable, Static

from notifyq.archive.reader import Archive
from notifyq.models.message import ArchivedMessage, Message
from notifyq.models.payload import without_envelope
from notifyq.operations import monitor
from notifyq.operations.masks import Masks, redacted
from notifyq.operations.monitor import Conditions, DeadGroup, Found
from notifyq.operations.top import acts
from notifyq.operations.top.details import MessageScreen
from notifyq.operations.top.frame import LiveScreen
from notifyq.operations.top.snapshot import Row, Snapshot, Source
from notifyq.operations.top.table import Table
from notifyq.operations.top.text import age
from notifyq.operations.top.views import Column, View, text
from notifyq.printable import first_line

Find: TypeAlias = Callable[[Source], Coroutine[Any, Any, list[Row]]]

_MOST = 200
"""Messages that are listed."""


MESSAGES = View(
    "Messages",
    (
        Column("id", lambda _, it: str(it.id), lambda _, it: it.id),
        text("state", "state", most=14),
        Column("since", lambda seen, it: age(seen.now, it.at)),
        Column("attempts", lambda _, it: str(it.attempts), rank=1),
        text("type", "type", 2, 16),
        text("message or error", "text", most=200),
    ),
    lambda seen: seen.messages,
    lambda it: f"{it.id} {it.state} {it.type} {it.text}",
    "there are no messages",
    first=-1,
)


def _row(it: Message | ArchivedMessage | Found, masks: Masks) -> Row:
    state = it.status if isinstance(it, ArchivedMessage) else it.state
    archived_at = getattr(it, "archived_at", None)
    at = archived_at or it.locked_at or it.created_at
    details = it.details if archived_at else None
    # The most useful line of a message: its error, or else its payload. With masks only the kind of
    # the error is shown, because the headers, which may be hidden, are not known here.
    if masks.are_none:
        shown = details or it.message
    else:
        shown = redacted(details, masks, None) or masks.text(it.message, indent=None)
    line = first_line(without_envelope(shown or ""))
    return Row(it.id, state, at, it.attempts, first_line(it.type), line)


class Listing(LiveScreen):
    """A table of messages; `enter` opens one."""

    BINDINGS: ClassVar[list[Any]] = [("r", "retry", "Retry")]

    def __init__(self, title: str, find: Find) -> None:
        super().__init__()
        self._title = title
        self._find = find
        self._rows: list[Row] | None = None
        self._now: datetime | None = None
        self.is_of_dead = True

    def compose(self) -> ComposeResult:
        """First line, table, last line."""
        yield Static(id="head")
        yield Static(id="views")
        yield Table()
        yield Static(id="hints")

    def hints(self) -> str:
        """The keys of this screen."""
        retry = "r retry  " if self.is_of_dead and not self.top.read_only else ""
        return f"enter open  {retry}esc back  ? help  q quit"

    async def fetch(self) -> None:
        """Read the messages and the time."""
        source = self.top.source
        self._now = await source.call(monitor.clock(source.database))
        self._rows = await source.call(self._find(source))

    def show(self) -> None:
        """Show the table."""
        self.frame(self._title)
        if self._rows is None or self._now is None:
            return
        table = self.query_one(Table)
        found = table.show(MESSAGES, Snapshot(now=self._now, messages=tuple(self._rows)))
        limit = MESSAGES.empty if not found else f"the first {_MOST}" if found >= _MOST else ""
        self.query_one("#views", Static).update(Text(f"{self.remark()}  {limit}"))
        if self.focused is None:
            table.focus()

    def remark(self) -> str:
        """What is shown, above the table."""
        return ""

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Open the message."""
        row = self.query_one(Table).current
        if row is not None:
            self.app.push_screen(MessageScreen(row.id))

    def action_retry(self) -> None:
        """Retry the message."""
        row = self.query_one(Table).current
        if row is not None and self.is_of_dead:
            database = self.top.source.database
            question = f"Retry message {row.id}?\n{row.text[:200]}"
            self.top.act(question, lambda: acts.retry(database, [row.id]))


class QueueMessages(Listing):
    """The live or the dead messages of a queue."""

    BINDINGS: ClassVar[list[Any]] = [("tab,left,right", "turn", "Live or dead")]

    def __init__(self, queue: str) -> None:
        super().__init__(f"queue {first_line(queue)}", self._messages)
        self._queue = queue
        self.is_of_dead = False

    def remark(self) -> str:
        """Which of both are shown."""
        return " live  [dead]" if self.is_of_dead else "[live]  dead "

    def hints(self) -> str:
        """The keys of this screen."""
        return f"tab live or dead  {super().hints()}"

    def action_turn(self) -> None:
        """Show the others."""
        self.is_of_dead = not self.is_of_dead
        self._rows = []
        self.show()
        self.top.wake()

    async def _messages(self, source: Source) -> list[Row]:
        """The live messages, the oldest first, or the dead ones, the latest first."""
        archive = Archive(source.database)
        if self.is_of_dead:
            return [_row(it, source.masks) for it in await archive.dead(self._queue, _MOST)]
        return [_row(it, source.masks) for it in await archive.live(self._queue, None, _MOST)]


def of_subscriber(stream: str, subscriber: str) -> Listing:
    """The dead events of one subscriber, the latest first."""

    async def find(source: Source) -> list[Row]:
        found = await Archive(source.database).dead(stream, _MOST, subscriber=subscriber)
        return [_row(it, source.masks) for it in found]

    return Listing(f"dead events of {first_line(stream)} / {first_line(subscriber)}", find)


def of_group(group: DeadGroup, masks: Masks) -> Listing:
    """The dead messages of one group, the latest first."""
    conditions = Conditions(state="dead", fingerprint=group.fingerprint)

    async def find(source: Source) -> list[Row]:
        page = await monitor.search(source.database, conditions, quantity=_MOST)
        return [_row(it, source.masks) for it in page.messages]

    name = redacted(group.fingerprint, masks, None)
    return Listing(f"dead: {first_line(name)[:60]}", find)
