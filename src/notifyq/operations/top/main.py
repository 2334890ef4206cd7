"""The first screen: five views, of which one is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.widgets import DataTable, Input, Static

from notifyq.operations.top import acts
from notifyq.operations.top.details import OfWorker
from notifyq.operations.top.frame import Looking
from notifyq.operations.top.listing import OfQueue, of_group, of_subscriber
from notifyq.operations.top.table import MOST, Table
from notifyq.operations.top.text import condition, count, printable, summary
from notifyq.operations.top.views import DEAD, QUEUES, STREAMS, VIEWS, WORKERS

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from notifyq.operations.top.snapshot import Snapshot


class Main(Looking):
    """Queues, workers, dead messages, streams and health."""

    BINDINGS: ClassVar[list[Any]] = [
        *[(str(place + 1), f"view({place})", it.name) for place, it in enumerate(VIEWS)],
        ("tab,right", "turn(1)", "Next view"),
        ("shift+tab,left", "turn(-1)", "View before"),
        ("s", "sort", "Sort"),
        ("S", "flip", "Turn round"),
        ("slash", "filter", "Filter"),
        ("p", "pause", "Pause"),
        ("r", "retry", "Retry"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._seen: Snapshot | None = None
        self._place = 0
        self._found = 0

    def compose(self) -> ComposeResult:
        """Four lines, the table, the filter, the hints."""
        for name in ("head", "sum", "state", "views"):
            yield Static(id=name)
        yield Table()
        yield Input(id="filter", placeholder="filter", compact=True)
        yield Static(id="hints")

    @property
    def _table(self) -> Table:
        return self.query_one(Table)

    async def look(self) -> None:
        """Look at everything."""
        self._seen = await self.top.source.look()

    def show(self) -> None:
        """Show the view."""
        view, seen = VIEWS[self._place], self._seen
        if seen is not None:
            self._line("sum", summary(seen))
            self._line("state", condition(seen))
            self._found = self._table.show(view, seen)
        names = [
            f"[{n} {it.name}]" if it is view else f" {n} {it.name} "
            for n, it in enumerate(VIEWS, 1)
        ]
        self._line("views", "".join(names) + self._remark())
        self.frame(view.name)
        if self.focused is None:
            self._table.focus()

    def _remark(self) -> str:
        wanted = self._table.wanted
        if self._seen is not None and not self._table.shown:
            return f"  nothing matches {wanted}" if wanted else f"  {VIEWS[self._place].empty}"
        if self._found > MOST:
            return f"  {MOST} of {count(self._found)}: filter with /"
        return f"  filter: {wanted}" if wanted else ""

    def _line(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Text(text, no_wrap=True, overflow="ellipsis"))

    def hints(self) -> str:
        """The keys of this view."""
        doing = {QUEUES: "p pause  r retry  ", DEAD: "r retry  "}
        act = "" if self.top.read_only else doing.get(VIEWS[self._place], "")
        return f"enter open  {act}/ filter  s sort  tab view  ? help  q quit"

    def action_view(self, place: int) -> None:
        """Show another view."""
        self._place = place
        table = self._table
        table.sorted_by, table.flip, table.shown = None, False, []
        table.wanted = ""
        self.show()

    def action_turn(self, by: int) -> None:
        """Show the next view, or the one before."""
        self.action_view((self._place + by) % len(VIEWS))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._table.next_sort(VIEWS[self._place])
        self.show()

    def action_flip(self) -> None:
        """Turn the order round."""
        self._table.flip = not self._table.flip
        self.show()

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        field = self.query_one("#filter", Input)
        field.value = self._table.wanted
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._table.wanted = event.value
        self.show()

    def on_input_submitted(self) -> None:
        """Keep the filter."""
        self.query_one("#filter", Input).remove_class("open")
        self._table.focus()

    def action_back(self) -> None:
        """Take the filter away."""
        self.query_one("#filter", Input).value = ""
        self._table.wanted = ""
        self.on_input_submitted()
        self.show()

    def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Look into the row."""
        view, row = VIEWS[self._place], self._table.current
        if row is None:
            return
        screens: dict[Any, Any] = {
            QUEUES: lambda: OfQueue(row.queue),
            WORKERS: lambda: OfWorker(row.name),
            DEAD: lambda: of_group(row, self.top.source.masks),
            STREAMS: lambda: of_subscriber(row.stream, row.subscriber),
        }
        if view in screens:
            self.app.push_screen(screens[view]())

    def action_pause(self) -> None:
        """Pause the queue, or resume it."""
        row = self._table.current
        if VIEWS[self._place] is not QUEUES or row is None:
            return
        verb, database = "Resume" if row.paused else "Pause", self.top.source.database
        self.top.act(
            f"{verb} the queue {row.queue}?",
            lambda: acts.pause(database, row.queue, resume=row.paused),
        )

    def action_retry(self) -> None:
        """Publish dead messages of the queue, or of the group, again."""
        view, row = VIEWS[self._place], self._table.current
        database = self.top.source.database
        if row is None:
            return
        if view is QUEUES:
            question = (
                f"Retry dead messages of {row.queue}, the oldest first, up to {acts.RETRIED}?\n"
                f"{count(row.dead)} died within a day."
            )
            self.top.act(question, lambda: acts.retry_queue(database, row.queue))
        elif view is DEAD:
            which = (
                f"these {count(row.dead)} dead messages" if row.dead > 1 else "this dead message"
            )
            question = f"Retry {which}?\n{printable(row.sample)}"
            masks = self.top.source.masks
            self.top.act(question, lambda: acts.retry_group(database, row.fingerprint, masks))
