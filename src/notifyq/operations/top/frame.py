"""What all screens share: the first and the last line, and regular reads."""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ClassVar, Protocol, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from notifyq.operations.top.snapshot import Source
from notifyq.printable import printable

HELP = """\
arrows, pgup, pgdn  move             enter  open
tab, 1 - 5          other view       esc    back, clear filter
s, S                sort, reverse    /      filter by name
p                   pause or resume the queue (confirm)
r                   retry dead messages (confirm)
space               update now       q      quit

waiting    available now; ~ is an estimate    locked  by a worker
scheduled  not due yet                        oldest  waits for so long
dead       within 24 h, not retried           rate    of the last minute
parked     in a sleep or wait of a handler
run95, wait95  95 % ran, or waited, no longer
"""


class Host(Protocol):
    """What screens use of the application."""

    source: Source
    read_only: bool
    notice: str

    def headline(self, title: str) -> Text:
        """The first line."""

    def wake(self) -> None:
        """Read the database now."""

    def act(self, question: str, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Confirm and make a change, and show its notice."""


def line(text: str) -> Text:
    """One line, cut off where it is too long."""
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


class LiveScreen(Screen[None]):
    """A screen that the application updates regularly."""

    BINDINGS: ClassVar[list[Any]] = [("escape", "back", "Back"), ("question_mark", "help", "Help")]

    @property
    def top(self) -> Host:
        """The application."""
        return cast("Host", self.app)

    async def fetch(self) -> None:
        """Read what the screen shows."""

    def show(self) -> None:
        """Show what was read."""

    def paint(self) -> None:
        """Show what was read, unless the screen does not exist yet or any more."""
        with suppress(NoMatches):
            self.show()

    def hints(self) -> str:
        """The keys of this screen."""
        return "esc back  ? help  q quit"

    def frame(self, title: str) -> None:
        """Write the first and the last line."""
        self.query_one("#head", Static).update(self.top.headline(title))
        self.query_one("#hints", Static).update(line(self.top.notice or self.hints()))

    def on_mount(self) -> None:
        """Read at once."""
        self.paint()
        self.top.wake()

    def on_resize(self) -> None:
        """Use the new size."""
        self.paint()

    def on_key(self) -> None:
        """Remove the notice."""
        self.top.notice = ""

    def action_back(self) -> None:
        """Go back."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()
            self.top.wake()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(Help())


class Detail(LiveScreen):
    """A long text that can be scrolled."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self.text = "…"

    def compose(self) -> ComposeResult:
        """First line, text, last line."""
        yield Static(id="head")
        with VerticalScroll():
            yield Static(id="text", markup=False)
        yield Static(id="hints")

    def show(self) -> None:
        """Show the text."""
        self.frame(self._title)
        self.query_one("#text", Static).update(Text(self.text))


class Help(ModalScreen[None]):
    """The keys, and the meaning of columns."""

    BINDINGS: ClassVar[list[Any]] = [("escape,q,question_mark,enter,space", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        """The text."""
        with VerticalScroll(classes="box"):
            yield Static(Text(HELP), markup=False)

    async def action_dismiss(self, result: Any = None) -> None:
        """Go back."""
        self.dismiss(result)


class Question(ModalScreen[bool]):
    """Confirms a change; only `y` is a yes."""

    BINDINGS: ClassVar[list[Any]] = [
        ("y", "answer(True)", "Yes"),
        ("n,escape,q,enter", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """The question."""
        with VerticalScroll(classes="box"):
            yield Static(Text(f"{self._question}\n\ny yes   n no"), markup=False)

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  Textual calls it so
        """Give the answer."""
        self.dismiss(answer)
