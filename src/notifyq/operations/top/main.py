"""The first screen: five views, one of them visible."""

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.widgets import DataTable, Input, Static

from notifyq.models.payload import without_envelope
from notifyq.operations.top import acts
from notifyq.operations.top.details import WorkerScreen
from notifyq.operations.top.frame import LiveScreen, line
from notifyq.operations.top.listing import QueueMessages, of_group, of_subscriber
from notifyq.operations.top.snapshot import Snapshot
from notifyq.operations.top.table import MOST, Table
from notifyq.operations.top.text import count, status_line, summary
from notifyq.operations.top.views import DEAD, QUEUES, STREAMS, VIEWS, WORKERS, View
from notifyq.printable import first_line


class Main(LiveScreen):
    """Queues, workers, dead messages, streams and health."""

    BINDINGS: ClassVar[list[Any]] = [
        *[(str(index + 1), f"view({index})", it.name) for index, it in enumerate(VIEWS)],
        ("tab,right", "turn(1)", "Next view"),
        ("shift+tab,left", "turn(-1)", "Previous view"),
        ("s", "sort", "Sort"),
        ("S", "flip", "Reverse"),
        ("slash", "filter", "Filter"),
        ("p", "pause", "Pause"),
        ("r", "retry", "Retry"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._seen: Snapshot | None = None
        self._index = 0
        self._found = 0

    def compose(self) -> ComposeResult:
        """Four lines, the table, the filter, the last line."""
        for name in ("head", "sum", "state", "views"):
            yield Static(id=name)
        yield Table()
        yield Input(id="filter", placeholder="filter", compact=True)
        yield Static(id="hints")

    @property
    def _table(self) -> Table:
        return self.query_one(Table)

    @property
    def _view(self) -> View:
        return VIEWS[self._index]

    async def fetch(self) -> None:
        """Read everything."""
        self._seen = await self.top.source.snapshot()

    def show(self) -> None:
        """Show the view."""
        view, seen = self._view, self._seen
        if seen is not None:
            self._write("sum", summary(seen))
            self._write("state", status_line(seen))
            self._found = self._table.show(view, seen)
        names = [
            f"[{n} {it.name}]" if it is view else f" {n} {it.name} "
            for n, it in enumerate(VIEWS, 1)
        ]
        self._write("views", "".join(names) + self._remark())
        self.frame(view.name)
        if self.focused is None:
            self._table.focus()

    def _remark(self) -> str:
        wanted = self._table.wanted
        if self._seen is not None and not self._table.shown:
            return f"  nothing matches {wanted}" if wanted else f"  {self._view.empty}"
        if self._found > MOST:
            return f"  {MOST} of {count(self._found)}: filter with /"
        return f"  filter: {wanted}" if wanted else ""

    def _write(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(line(text))

    def hints(self) -> str:
        """The keys of this view."""
        changes = {QUEUES: "p pause  r retry  ", DEAD: "r retry  "}
        act = "" if self.top.read_only else changes.get(self._view, "")
        return f"enter open  {act}/ filter  s sort  tab view  ? help  q quit"

    def action_view(self, index: int) -> None:
        """Show another view."""
        self._index = index
        table = self._table
        table.sorted_by, table.flip, table.shown = None, False, []
        table.wanted = ""
        self.show()

    def action_turn(self, by: int) -> None:
        """Show the next or the previous view."""
        self.action_view((self._index + by) % len(VIEWS))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._table.next_sort(self._view)
        self.show()

    def action_flip(self) -> None:
        """Reverse the order."""
        self._table.flip = not self._table.flip
        self.show()

    def action_filter(self) -> None:
        """Open the filter."""
        field = self.query_one("#filter", Input)
        field.value = self._table.wanted
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._table.wanted = event.value
        self.show()

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self.query_one("#filter", Input).remove_class("open")
        self._table.focus()

    def action_back(self) -> None:
        """Clear the filter."""
        self.query_one("#filter", Input).value = ""
        self._table.wanted = ""
        self.on_input_submitted()
        self.show()

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Open the row."""
        row = self._table.current
        screens: dict[View, Any] = {
            QUEUES: lambda: QueueMessages(row.queue),
            WORKERS: lambda: WorkerScreen(row.name),
            DEAD: lambda: of_group(row, self.top.source.masks),
            STREAMS: lambda: of_subscriber(row.stream, row.subscriber),
        }
        if row is not None and self._view in screens:
            self.app.push_screen(screens[self._view]())

    def action_pause(self) -> None:
        """Pause or resume the queue."""
        row, database = self._table.current, self.top.source.database
        if self._view is QUEUES and row is not None:
            self.top.act(
                f"{'Resume' if row.paused else 'Pause'} the queue {row.queue}?",
                lambda: acts.pause(database, row.queue, resume=row.paused),
            )

    def action_retry(self) -> None:
        """Retry dead messages of the queue, or of the group."""
        row, source = self._table.current, self.top.source
        if row is None:
            return
        if self._view is QUEUES:
            question = (
                f"Retry dead messages of {row.queue}, the oldest first, up to "
                f"{acts.MOST_RETRIED}?\n{count(row.dead)} are from the last 24 hours."
            )
            self.top.act(question, lambda: acts.retry_queue(source.database, row.queue))
        elif self._view is DEAD:
            which = f"these {count(row.dead)} dead messages"
            question = f"Retry {which if row.dead > 1 else 'this dead message'}?\n"
            self.top.act(
                question + first_line(without_envelope(row.sample or "")),
                lambda: acts.retry_group(source.database, row.fingerprint, source.masks),
            )
