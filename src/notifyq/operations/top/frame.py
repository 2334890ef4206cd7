"""What all screens have in common: three lines above, one below, and looks that never overlap."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from rich.text import Text
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from textual.app import ComposeResult

    from notifyq.operations.top.snapshot import Source

HELP = """\
arrows, pgup, pgdn  move             enter  open, look into it
tab, 1 - 5          another view     esc    back, no filter
s, S                sort, turn round /      filter by name
p                   pause or resume the queue (asks)
r                   retry dead messages (asks)
space               look now         q      quit

waiting  can be handed out now; ~ is a guess, where very many are
running  locked by a worker          later  scheduled
oldest   waits for so long           rate   of the last minute
dead     within a day, not retried   run95  95 of 100 took no longer
"""


class Host(Protocol):
    """What screens need of the app."""

    source: Source
    read_only: bool
    said: str

    def headline(self, title: str) -> Text:
        """Give the line on top."""

    def hurry(self) -> None:
        """Look again now."""

    def act(self, question: str, call: Callable[[], Coroutine[Any, Any, str]]) -> None:
        """Ask, and on a yes do it and say what it came to."""


class Looking(Screen[None]):
    """A screen that the app has look at the database again and again."""

    BINDINGS: ClassVar[list[Any]] = [("escape", "back", "Back"), ("question_mark", "help", "Help")]

    @property
    def top(self) -> Host:
        """The app."""
        return cast("Host", self.app)

    async def look(self) -> None:
        """Ask for what is shown."""

    def show(self) -> None:
        """Show it."""

    def paint(self) -> None:
        """Show it where there is a screen: it may not be made yet, or gone when an answer comes."""
        with suppress(NoMatches):
            self.show()

    def hints(self) -> str:
        """The keys that do something here."""
        return "esc back  ? help  q quit"

    def frame(self, title: str) -> None:
        """Write the line on top and that at the bottom."""
        self.query_one("#head", Static).update(self.top.headline(title))
        said = self.top.said or self.hints()
        self.query_one("#hints", Static).update(Text(said, no_wrap=True, overflow="ellipsis"))

    def on_mount(self) -> None:
        """Look at once."""
        self.paint()
        self.top.hurry()

    def on_resize(self) -> None:
        """Use the room there is."""
        self.paint()

    def on_key(self) -> None:
        """What was said has been read."""
        self.top.said = ""

    def action_back(self) -> None:
        """Go back."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()
            self.top.hurry()

    def action_help(self) -> None:
        """Show the keys."""
        self.app.push_screen(Help())


class Detail(Looking):
    """A longer text about one thing, which can be scrolled."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title
        self.text = "…"

    def compose(self) -> ComposeResult:
        """Head, text, hints."""
        yield Static(id="head")
        with VerticalScroll():
            yield Static(id="text", markup=False)
        yield Static(id="hints")

    def show(self) -> None:
        """Show the text."""
        self.frame(self._title)
        self.query_one("#text", Static).update(Text(self.text))


class Help(ModalScreen[None]):
    """The keys, and what columns mean."""

    BINDINGS: ClassVar[list[Any]] = [("escape,q,question_mark,enter,space", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        """One text."""
        with VerticalScroll(classes="box"):
            yield Static(Text(HELP), markup=False)

    async def action_dismiss(self, result: Any = None) -> None:
        """Go back."""
        self.dismiss(result)


class Ask(ModalScreen[bool]):
    """A question before something is changed; only `y` is a yes."""

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
