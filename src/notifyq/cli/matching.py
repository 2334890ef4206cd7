"""Actions on all messages that match: a preview, a question, and steps with their progress."""

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from notifyq.cli.command import noting, open_database
from notifyq.cli.hints import require_known
from notifyq.cli.options import (
    FilterOption,
    QueueOption,
    flag,
    instant_option,
    limit_option,
    masks_of,
    option,
)
from notifyq.cli.output import err, out, print_rows
from notifyq.cli.progress import Progress
from notifyq.database.pool import Database
from notifyq.operations import monitor
from notifyq.operations.monitor import FREE, Act, Conditions
from notifyq.printable import printable

_STEP, _COUNTED = 1000, 10_000
"""Messages of a step, and of one that only counts."""
_SAMPLE, _REASONS = 5, 20
"""Messages of a preview, and most reasons that are printed."""
_COLUMNS = ("id", "queue", "state", "attempts", "available_at", "message")


@dataclass
class Total:
    """What all steps of an action have done."""

    found: int = 0
    done: int = 0
    ids: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Selection:
    """The live messages that the options of a command select."""

    conditions: Conditions
    everything: bool
    limit: int | None
    yes: bool

    def is_instead_of(self, ids: Sequence[int] | None) -> bool:
        """Whether it was given, and not ids; raises for both and for neither."""
        is_given = self.everything or bool(self.conditions.values())
        if is_given == bool(ids):
            raise typer.BadParameter("give ids, or a filter, or --all")
        return is_given


def _select(
    queue: QueueOption = None,
    state: Literal["waiting", "scheduled", "blocked", "locked"] | None = option("Only in it."),
    type: str | None = option("Only of this type."),
    key: str | None = option("Only with this key."),
    filter: FilterOption = None,
    error: str | None = option("Only with this text in the last error."),
    since: datetime | None = instant_option("Published then or later."),
    until: datetime | None = instant_option("Published before then."),
    everything: bool = flag("--all", "All live messages."),
    limit: Annotated[int | None, limit_option(2**31 - 1)] = None,
    yes: bool = flag("--yes", "Without a question."),
) -> Selection:
    conditions = Conditions(
        queue=queue, state=state, type=type, key=key, payload=filter, error=error, since=since,
        until=until,
    )  # fmt: skip
    return Selection(conditions, everything, limit, yes)


def selecting(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Any]:
    """Give a command the options that select live messages, which it gets as `chosen`."""
    own, shared = inspect.signature(command).parameters, inspect.signature(_select).parameters

    @functools.wraps(command)
    async def call(**given: Any) -> None:
        await command(chosen=_select(**{name: given.pop(name) for name in shared}), **given)

    merged = {name: it for name, it in own.items() if name not in {"chosen", "dsn"}}
    merged |= {**shared, "dsn": own["dsn"]}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [it.replace(kind=inspect.Parameter.KEYWORD_ONLY) for it in merged.values()]
    )
    call.__annotations__ = {name: it.annotation for name, it in merged.items()}
    return call


async def change_matching(
    dsn: str | None,
    act: Act,
    chosen: Selection,
    done: str,
    *args: Any,
    states: Sequence[str] = FREE,
    **details: Any,
) -> None:
    """Show how many messages match, with some of them, ask, and change them in steps."""
    if not chosen.yes and not sys.stdin.isatty():
        raise typer.BadParameter("it needs an answer before it changes messages: give --yes")
    async with open_database(dsn) as database:
        conditions = chosen.conditions
        await require_known(database, conditions.queue)
        now = await monitor.clock(database)
        conditions = replace(conditions, until=min(now, conditions.until or now))
        count = await _count(database, conditions, states, chosen.limit)
        if count:
            await _print_sample(database, conditions, states, count)
            if not chosen.yes:
                typer.confirm(f"{count} to be {done}. Continue?", abort=True, err=True)
        with Progress(done, total=count, unit="messages") as progress:
            total = await run_steps(
                database, act, conditions, *args, limit=chosen.limit, progress=progress, **details
            )
    out.print(f"{total.done} {done}")
    if left := total.found - total.done:
        for refusal in total.refusals[:_REASONS]:
            err.print(f"notifyq: {printable(refusal)}")
        err.print(f"notifyq: {left} of {total.found} were not {done}")
        raise typer.Exit(1)


async def _count(
    database: Database, conditions: Conditions, states: Sequence[str], limit: int | None
) -> int:
    count, position = 0, None
    while limit is None or count < limit:
        one = await monitor.step(
            database, Act.COUNT_LIVE, conditions, states, quantity=_COUNTED, position=position
        )
        count, position = count + one.found, one.position
        if position is None:
            break
    return count if limit is None else min(count, limit)


async def _print_sample(
    database: Database, conditions: Conditions, states: Sequence[str], count: int
) -> None:
    live = conditions if conditions.state else replace(conditions, state="live")
    page = await monitor.search(database, live, quantity=10 * _SAMPLE)
    sample = [it for it in page.messages if it.state in states][: min(_SAMPLE, count)]
    print_rows(
        [{name: getattr(it, name) for name in _COLUMNS} for it in sample], as_json=False, empty=""
    )
    if count > len(sample):
        out.print(f"and {count - len(sample)} more")


async def run_steps(
    database: Database,
    act: Act,
    conditions: Conditions,
    *args: Any,
    limit: int | None = None,
    progress: Progress | None = None,
    **details: Any,
) -> Total:
    """Act on messages that match, in steps with one audit row, until `limit` are changed."""
    total = Total()
    action = f"{'message' if act.is_live else 'dead'}.{act.name.lower()}"
    given = monitor.audited_conditions(conditions.values(), masks_of())
    position = entry = None
    while limit is None or total.done < limit:
        quantity = _STEP if limit is None else min(_STEP, limit - total.done)
        subject = conditions.queue or "those found"
        async with noting(database, action, subject, entry=entry, **given, **details) as noted:
            one = await monitor.step(
                noted.connection, act, conditions, *args, quantity=quantity, position=position
            )
            noted.note(found=one.found, done=one.done)
        position, entry = one.position, noted.entry
        total.found += one.found
        total.done += one.done
        total.ids += one.ids
        total.refusals += one.refusals
        if position is None:
            break
        if progress is not None:
            progress.reach(total.found)
    return total
