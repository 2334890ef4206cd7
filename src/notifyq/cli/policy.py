"""Options of `notifyq queues create` and `alter`: the policy of a queue."""

from __future__ import annotations

import enum
import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from notifyq.cli.output import duration

_LIMITS = "Limits (none takes one away)"


class Bell(enum.StrEnum):
    """Whether a message that is published rings."""

    AUTO = "auto"
    ALWAYS = "always"
    OFF = "off"


LockTimeoutOption = Annotated[
    Any, typer.Option(parser=duration, metavar="DURATION", help="How long a claim holds a message.")
]
AttemptsOption = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Claims that a message may use up.")
]
BackoffOption = Annotated[
    Any, typer.Option(parser=duration, metavar="DURATION", help="Delay before the second attempt.")
]
BackoffMaxOption = Annotated[
    Any, typer.Option(parser=duration, metavar="DURATION", help="Longest delay between attempts.")
]
BellOption = Annotated[Bell | None, typer.Option(help="off: workers only poll.")]
RetentionOption = Annotated[
    Any, typer.Option(parser=duration, metavar="DURATION", help="How long the archive keeps them.")
]


def duration_or_none(text: str) -> timedelta:
    """A duration, or `none`, which is 0."""
    return timedelta(0) if text == "none" else duration(text)


RetentionDeadOption = Annotated[
    Any,
    typer.Option(
        parser=duration_or_none,
        metavar="DURATION",
        help="How long it keeps what did not succeed; none: as the others.",
    ),
]
MaxBytesOption = Annotated[
    int | None,
    typer.Option(min=4096, max=2**28, help="Most bytes of a message and its headers, as JSON."),
]


class Overflow(enum.StrEnum):
    """What happens to messages beyond the capacity of a queue."""

    REJECT = "reject"
    DROP_OLDEST = "drop_oldest"


def limit(text: str) -> int:
    """A number of messages, or `none`, which is 0."""
    if text == "none":
        return 0
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise typer.BadParameter("give a number from 1 on, or none")
    return int(text)


def rate(text: str) -> tuple[int, timedelta | None]:
    """`100` and `100/s` are a hundred a second, `5/10m` five in ten minutes; `none` is no limit."""
    number, slash, period = text.partition("/")
    quantity = limit(number)
    if not slash:
        return quantity, timedelta(seconds=1) if quantity else None
    return quantity, duration(period if period[:1].isdecimal() else f"1{period}")


def weight(text: str) -> float:
    """The weight of a share, or `none`, which is 0."""
    if text == "none":
        return 0.0
    try:
        read = float(text)
    except ValueError:
        read = 0.0
    if not read > 0:
        raise typer.BadParameter("give a number like 3 or 0.5, or none")
    return read


def schema(text: str) -> object:
    """A JSON Schema, as it is or with @ the file that has it; `none` is no schema."""
    if text == "none":
        return True
    try:
        read = json.loads(Path(text[1:]).read_bytes() if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"give JSON, @file or none: {error}") from error
    if not isinstance(read, dict | bool):
        raise typer.BadParameter("a JSON Schema is an object")
    return read


def _limit(metavar: str, help: str) -> Any:
    return typer.Option(parser=limit, metavar=metavar, help=help, rich_help_panel=_LIMITS)


def _rate(help: str) -> Any:
    return typer.Option(parser=rate, metavar="N/PERIOD", help=help, rich_help_panel=_LIMITS)


ConcurrencyOption = Annotated[Any, _limit("N", "Most that are handled at a time, in the fleet.")]
KeyConcurrencyOption = Annotated[Any, _limit("N", "Most of one key that are handled at a time.")]
RateOption = Annotated[Any, _rate("Most handed out in a period, as in 100/s or 5/10m.")]
RateBurstOption = Annotated[Any, _limit("N", "Most handed out at once after a lull.")]
KeyRateOption = Annotated[Any, _rate("Most of one key handed out in a period.")]
KeyRateBurstOption = Annotated[Any, _limit("N", "Most of one key at once after a lull.")]
CapacityOption = Annotated[Any, _limit("N", "Most that wait or are scheduled.")]
OverflowOption = Annotated[
    Overflow | None,
    typer.Option(help="What happens beyond the capacity.", rich_help_panel=_LIMITS),
]
OrderedOption = Annotated[
    bool | None,
    typer.Option(
        "--ordered/--unordered",
        help="A message waits for all earlier ones of its key.",
        rich_help_panel=_LIMITS,
    ),
]
FairOption = Annotated[
    bool | None,
    typer.Option(
        "--fair/--unfair", help="Keys have equal shares of the workers.", rich_help_panel=_LIMITS
    ),
]
DurableOption = Annotated[
    bool | None,
    typer.Option(
        "--durable/--volatile", help="Volatile: its messages are gone after a crash of the server."
    ),
]
PayloadTypeOption = Annotated[
    str | None,
    typer.Option(metavar="TYPE", help="Messages are values of this type; - is none."),
]
PayloadSchemaOption = Annotated[
    Any,
    typer.Option(parser=schema, metavar="JSON", help="JSON Schema of its messages, @file or none."),
]
