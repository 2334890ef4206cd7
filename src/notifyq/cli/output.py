"""What the commands share: which database, how to run, how to print."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic_core import to_json
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from notifyq.cli.hints import add_near_names
from notifyq.config import (
    DatabaseSettings,
    dsn_from_environment,
    listen_dsn_from_environment,
    masked_in,
    parse_duration,
)
from notifyq.database.pool import Database
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError, DatabaseError
from notifyq.models.event import Event
from notifyq.models.message import ArchivedMessage, Message
from notifyq.models.payload import check_json
from notifyq.operations.monitor import ConditionError, json_path
from notifyq.paths import local_path
from notifyq.queues.admin import Admin
from notifyq.server import development

log = logging.getLogger("notifyq")

T = TypeVar("T")

# Nothing is cut off or folded in a pipe or a file: no terminal limits the width there.
_UNLIMITED = 10**9
_MOST = 1000
"""Characters of a table's cell in a terminal; a payload may have millions."""
_MOST_PIPED = 10_000
_LEAST = 12
"""Columns of the terminal that a text keeps in a table that is too wide."""


class _Console(Console):
    """Prints texts as they are: brackets are not markup, and :dog: is not an animal."""

    arguments: Sequence[str] = ()
    """Those of the command that runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; what goes to stderr quotes arguments and errors, and so perhaps a password."""
        if self.stderr:
            objects = tuple(
                masked_in(it, self.arguments) if isinstance(it, str) else it for it in objects
            )
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # which the command line handles, wherever it comes from


out = _Console(width=None if sys.stdout and sys.stdout.isatty() else _UNLIMITED)
err = _Console(stderr=True)

LONGEST = timedelta(days=365_000)
"""Of a duration; beyond the year 9999 Python has no dates to show."""

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Database, or --dsn-file FILE with it; else NOTIFYQ_DSN, else NOTIFYQ_DSN_FILE, "
        "else the server of `notifyq server start`. Everybody on this machine can read arguments: "
        "a password belongs into a file or a service, as in postgresql://?service=NAME.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
IdArgument = Annotated[int, typer.Argument(metavar="ID", min=1, max=2**63 - 1)]
IdsArgument = Annotated[list[int], typer.Argument(metavar="ID...", min=1, max=2**63 - 1)]
QueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")]


def given_dsn(dsn: str | None) -> str | None:
    """The DSN of the option or the environment."""
    if dsn == "":
        # Most likely of an unset variable: another database than the one meant is worse than none.
        raise typer.BadParameter("--dsn is empty")
    return dsn or dsn_from_environment()


def resolve_dsn(dsn: str | None) -> str:
    """The DSN of the option, the environment, or the development server if it runs."""
    given = given_dsn(dsn)
    if given is not None:
        return given
    server = development()
    if server.running is not None:
        return server.dsn
    raise ConfigurationError(
        "no database: give --dsn or --dsn-file, set NOTIFYQ_DSN or NOTIFYQ_DSN_FILE, "
        "or run `notifyq server start`"
    )


@asynccontextmanager
async def open_database(
    dsn: str | None, *, check: bool = True, serves: bool = False, **settings: Any
) -> AsyncIterator[Database]:
    """Open the database of a command; unless told otherwise, one with the schema that we know.

    A command that `serves` waits for a server that is away, until a signal says stop.
    """
    if not serves:
        # A person waits in front of a command: an answer soon beats one after five minutes.
        settings.setdefault("retry_for", timedelta(seconds=10))
    database = Database(
        resolve_dsn(dsn),
        listen_dsn=listen_dsn_from_environment(),
        settings=DatabaseSettings.load(**settings),
    )

    async def look() -> None:
        async with database:
            await Admin(database).check_schema()

    if serves:
        await _wait_for(look, database.settings.retry_for)
    async with database:
        if check and not serves:
            await Admin(database).check_schema()
        try:
            yield database
        except DatabaseError as error:
            await add_near_names(database, error)
            raise


async def _wait_for(look: Callable[[], Awaitable[None]], lasting: timedelta) -> None:
    loop = asyncio.get_running_loop()
    patience = Patience("the start", log, lasting)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        loop.add_signal_handler(number, patience.stop)
    try:
        if not await patience.through(look):
            raise typer.Exit
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def run(command: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover  there is a wheel where the tests run
        return asyncio.run(command)
    return uvloop.run(command)


def duration(text: str) -> timedelta:
    """Read `30`, `30s`, `5m`, `1h30m`, `2d`, `250ms`."""
    try:
        read = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if read > LONGEST:
        raise typer.BadParameter(f"{text!r} is longer than {LONGEST.days}d")
    return read


def path(text: str) -> Path:
    """Read the path of a file or folder; it is absolute from here on, and no URI."""
    try:
        return local_path(text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


def instant(text: str) -> datetime:
    """Read an ISO 8601 instant; without an offset it is in local time."""
    try:
        read = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{text!r} is not an instant like 2027-01-31T12:00") from error
    if read.year >= 9999:
        raise typer.BadParameter(f"{text!r} is after the year 9998")
    return read


def payload_filter(text: str) -> str:
    """Read a condition on payloads: `customer = 'x'`, or a JSON path."""
    try:
        return json_path(text)
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error


FilterOption = Annotated[
    Any,
    typer.Option(
        "--filter",
        parser=payload_filter,
        metavar="CONDITION",
        help="Only payloads like this: \"customer = 'x' and n < 3\"; or a JSON path: '$.n < 3'.",
    ),
]


def headers(pairs: list[str]) -> dict[str, Any] | None:
    """Read NAME=VALUE; the value is JSON or a text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header {pair!r} is not NAME=VALUE")
        found[name] = _header(name, value)
    return found or None


def _header(name: str, value: str) -> Any:
    """JSON if it is that, else a text."""
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return value
    try:
        check_json(value)
    except ValueError as error:
        raise typer.BadParameter(f"--header {name}: {error}") from error
    return decoded


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(_json(value) + "\n")


def print_rows(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str, spare: Sequence[str] = ()
) -> None:
    """Print rows as a table, or as JSON lines; a narrow table drops columns in `spare` first."""
    if as_json:
        for row in rows:
            print_json(dict(row))
        return
    if not rows:
        out.print(empty)
        return
    names = list(rows[0])
    numbers = {
        place
        for place, value in enumerate(rows[0].values())
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    cut = {place for place, name in enumerate(names) if name in {"details", "message"}}
    print_table(
        names,
        [list(row.values()) for row in rows],
        numbers=numbers,
        cut=cut,
        spare=[names.index(name) for name in spare],
    )


def print_table(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[int] = (),
    cut: Collection[int] = (),
    spare: Sequence[int] = (),
) -> None:
    """Print a table that fits the terminal; in a pipe it has all of each cell.

    Columns by place: `numbers` are aligned to the right and stay in one line. Of the texts those to
    `cut` lose their end, the others fold. If that is not enough, columns are left out, and a line
    says which: first `spare`, then from the right, but never the first column nor one of `cut`.
    """
    most = _MOST_PIPED if out.width >= _UNLIMITED else _MOST
    cells = [[cell(value, most) for value in row] for row in rows]
    natural = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    least = [
        _least(name, [row[place] for row in cells], is_text=place not in numbers)
        for place, name in enumerate(names)
    ]
    shown, widths = _fitted(natural, least, cut, spare)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place in shown:
        is_cut = place in cut
        table.add_column(
            names[place],
            justify="right" if place in numbers else "left",
            no_wrap=is_cut,
            overflow="ellipsis" if is_cut else "fold",
            width=widths[place],
        )
    for row in cells:
        table.add_row(*(row[place] for place in shown))
    out.print(table)
    if left := [name for place, name in enumerate(names) if place not in shown]:
        note(f"(not shown at this width: {', '.join(left)})")


def note(text: str) -> None:
    """Print a remark below a table, in lines that fit the terminal."""
    out.print(printable(text), soft_wrap=out.width >= _UNLIMITED)


def _least(name: str, cells: Iterable[str], *, is_text: bool) -> int:
    """The width that a column needs at least: its head folds between words, a text anywhere."""
    width = max(map(cell_len, cells), default=0)
    head = max(map(cell_len, name.split()), default=0)
    return max(head, min(width, _LEAST) if is_text else width)


def _fitted(
    natural: Sequence[int], least: Sequence[int], cut: Collection[int], spare: Sequence[int]
) -> tuple[list[int], dict[int, int]]:
    """Which columns to show, and the width of each."""
    shown = list(range(len(natural)))
    kept = {0, *cut}
    others = [place for place in reversed(shown) if place not in kept and place not in spare]
    for place in (*spare, *others):
        if _total(least[it] for it in shown) <= out.width:
            break
        shown.remove(place)
    room = out.width - _total(least[place] for place in shown)
    if room < 0:  # a terminal of a few columns
        share = max(1, (out.width - 2 * (len(shown) - 1)) // len(shown))
        return shown, dict.fromkeys(shown, share)
    widths = {}
    # The room is shared out; what a column does not need is for those that need more.
    by_need = sorted(shown, key=lambda place: natural[place] - least[place])
    for number, place in enumerate(by_need):
        more = min(natural[place] - least[place], room // (len(by_need) - number))
        widths[place] = least[place] + more
        room -= more
    return shown, widths


def _total(widths: Iterable[int]) -> int:
    """The width of a table whose columns have these, with two blanks between."""
    each = list(widths)
    return sum(each) + 2 * (len(each) - 1)


def cell(value: Any, most: int = _MOST) -> str:
    """Text of a value in a table: one line, of so many characters at most."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return when(value)
    if isinstance(value, timedelta):
        return span(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, dict | list):
        return _json(value)[:most]
    return printable(str(value)[:most].partition("\n")[0])


def printable(text: str) -> str:
    """A text without what could steer a terminal: texts come from anywhere."""
    return "".join(c if c.isprintable() else "?" for c in text)


def when(value: datetime, *, full: bool = False) -> str:
    """An instant in local time; unless in full, the date is left out where it is today's."""
    try:
        local = value.astimezone()
    except (OverflowError, ValueError):  # infinity, which is the last instant there is
        return "never"
    if full:
        return local.strftime("%Y-%m-%d %H:%M:%S %z")
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def span(value: timedelta) -> str:
    """A duration as people read it: 12 ms, 3.4 s, 5 min, 2.0 h, 30 d."""
    seconds = value.total_seconds()
    limits = ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600))
    unit, size = next(((u, s) for limit, u, s in limits if seconds < limit), ("d", 86_400))
    number = seconds / size
    return f"{number:.3g} {unit}" if number < 999.5 else f"{number:.0f} {unit}"


def size(number: float) -> str:
    """Bytes as people read them: 512 B, 3.4 MB, 12 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def message_json(message: Message | ArchivedMessage, **more: Any) -> str:
    """A message as one line of JSON, payload and result as PostgreSQL has them."""
    fields = {name: getattr(message, name) for name in message.__dataclass_fields__}
    # Decoded and encoded again they might lose digits, or not be decoded at all.
    raw = {name: fields[name] for name in ("message", "result") if fields.get(name) is not None}
    fields |= more
    parts = (f'"{name}":{raw.get(name) or _json(value)}' for name, value in fields.items())
    return f"{{{','.join(parts)}}}"


def event_json(event: Event) -> str:
    """An event as one line of JSON, its payload as PostgreSQL has it."""
    fields = {name: getattr(event, name) for name in event.__dataclass_fields__}
    parts = (
        f'"{name}":{value if name == "message" else _json(value)}' for name, value in fields.items()
    )
    return f"{{{','.join(parts)}}}"


def _json(value: Any) -> str:
    return to_json(value, timedelta_mode="float", fallback=str).decode()


def pick(message: Message | ArchivedMessage, names: Iterable[str]) -> dict[str, Any]:
    """Some of a message's fields, as columns of a table."""
    return {name: getattr(message, name) for name in names}
