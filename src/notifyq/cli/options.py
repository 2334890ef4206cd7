"""Options and arguments that commands share, and how their texts are read."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.logs import LogFormat, LogLevel
from notifyq.config import exposure, from_environment, parse_duration
from notifyq.errors import ConfigurationError
from notifyq.models.payload import check_json
from notifyq.paths import lake_location, local_path

if TYPE_CHECKING:
    from notifyq.operations.masks import Masks

LONGEST = timedelta(days=365_000)
"""Longest duration; after the year 9999 Python has no dates to show."""


def duration(text: str) -> timedelta:
    """Read `30`, `30s`, `5m`, `1h30m`, `2d`, `250ms`."""
    try:
        read = parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if read > LONGEST:
        raise typer.BadParameter(f"{text!r} is longer than {LONGEST.days}d")
    return read


def duration_or_none(text: str) -> timedelta:
    """Read a duration, or `none`, which is 0."""
    return timedelta(0) if text == "none" else duration(text)


def path(text: str) -> Path:
    """Read the path of a file or folder and make it absolute; a URI is refused."""
    try:
        return local_path(text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error


def lake(text: str) -> str:
    """Read where a lake is: a folder, made absolute, or a URI of a known store."""
    try:
        return lake_location(text)
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
    from notifyq.operations.monitor import ConditionError, json_path

    try:
        return json_path(text)
    except ConditionError as error:
        raise typer.BadParameter(str(error)) from error


def headers(pairs: list[str] | None) -> dict[str, Any] | None:
    """Read NAME=VALUE; the value is JSON or a text."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--header {pair!r} is not NAME=VALUE")
        found[name] = _header(name, value)
    return found or None


def _header(name: str, value: str) -> Any:
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return value
    try:
        check_json(value)
    except ValueError as error:
        raise typer.BadParameter(f"--header {name}: {error}") from error
    return decoded


def require_json(what: str, text: str) -> None:
    """Raise ConfigurationError unless the text of this argument is JSON."""
    try:
        check_json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"the {what} is not JSON: {error}; a text needs quotes of its own, as in '\"hello\"'"
        ) from error


def pairs(option: str, texts: list[str] | None, form: str) -> dict[str, str]:
    """Read the values of a repeated option whose form is A=B; each A at most once."""
    found: dict[str, str] = {}
    for text in texts or []:
        left, equals, right = text.partition("=")
        if not (left and equals and right):
            raise typer.BadParameter(f"{option} {text!r} is not {form}")
        if left in found:
            raise typer.BadParameter(f"{option} has {left!r} twice")
        found[left] = right
    return found


def masks_of(keys: str | None = None, *, all_payloads: bool = False) -> Masks:
    """The masks of --mask, else of NOTIFYQ_MASK; a blank text is refused, as it hides nothing."""
    keys = from_environment("NOTIFYQ_MASK") if keys is None else keys
    from notifyq.operations.masks import Masks

    return Masks.parse(keys, all_payloads=all_payloads)


def read_secret(option: str, path: Path | None, variable: str) -> str | None:
    """The secret in the file of an option, which only its owner may read, else in a variable."""
    if path is None:
        return from_environment(variable)
    try:
        with path.open(encoding="utf-8") as file:
            fault = exposure(os.fstat(file.fileno()))
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option} {path} cannot be read: {error}") from error
    if fault:
        raise ConfigurationError(
            f"{option} {path} {fault.partition(',')[0]}: `chmod 600` it, and own it"
        )
    if not secret:
        raise ConfigurationError(f"{option} {path} is empty")
    return secret


def option(help: str, *names: str, default: Any = None, **details: Any) -> Any:
    """An option with a value."""
    return typer.Option(default, *names, help=help, **details)


def flag(name: str, help: str) -> Any:
    """An option without a value."""
    return typer.Option(False, name, help=help)


def repeated(help: str, *names: str, metavar: str | None = None) -> Any:
    """An option that may be given several times."""
    return typer.Option(None, *names, metavar=metavar, help=f"{help}; may be repeated.")


def instant_option(help: str) -> Any:
    """An option that is an instant."""
    return typer.Option(None, parser=instant, metavar="INSTANT", help=help)


def duration_option(help: str, default: str | None = None, *, name: str | None = None) -> Any:
    """An option that is a duration."""
    names = () if name is None else (name,)
    return typer.Option(default, *names, parser=duration, metavar="DURATION", help=help)


def limit_option(most: int) -> Any:
    """The option for the largest number of rows, up to `most`."""
    return typer.Option("--limit", "-n", min=1, max=most, help="At most this many.")


StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Option of the store of a lake; else the environment has it; may be repeated.",
    ),
]
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Database; else NOTIFYQ_DSN, else that of `notifyq server start`.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
IdsArgument = Annotated[list[int], typer.Argument(metavar="ID...", min=1, max=2**63 - 1)]
MaybeIdsArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID...", min=1, max=2**63 - 1, show_default=False),
]
QueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")]
SubscriberOption = Annotated[
    str | None, typer.Option("--subscriber", help="Only events of this subscriber.")
]
LimitOption = Annotated[int, limit_option(10_000)]
StreamArgument = Annotated[str, typer.Argument(metavar="STREAM", help="Name of the stream.")]
SubscriberArgument = Annotated[str, typer.Argument(help="Name of the subscriber.")]
MaybeQueueArgument = Annotated[str | None, typer.Argument(help="Name of the queue; else all.")]
FilterOption = Annotated[
    Any,
    typer.Option(
        "--filter",
        parser=payload_filter,
        metavar="CONDITION",
        help="Only payloads like this: \"customer = 'x' and n < 3\"; or a JSON path: '$.n < 3'.",
    ),
]
PriorityOption = Annotated[
    int, typer.Option(min=-(2**31), max=2**31 - 1, help="Larger is handed out first.")
]
TypeOption = Annotated[str | None, typer.Option("--type", help="Type of the message.")]
HeaderOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")
]
AttemptsOption = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Attempts; by default those of the queue.")
]
MaskOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEYS",
        help="Keys whose values are hidden in payloads: 'password,*.token,card.*'; "
        "else NOTIFYQ_MASK.",
    ),
]
HideOption = Annotated[bool, typer.Option("--hide-payloads", help="Show no payloads at all.")]
LogLevelOption = Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")]
LogFormatOption = Annotated[LogFormat, typer.Option(help="How to log.")]
GraceOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=duration, metavar="DURATION", help="How long a stop waits for work; by default 30s."
    ),
]
PollOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=duration, metavar="DURATION", help="Longest wait for a notification; by default 1s."
    ),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Serve /metrics, /healthz and /readyz on this port; 9464 is usual.",
    ),
]
MetricsHostOption = Annotated[
    str | None,
    typer.Option("--metrics-host", metavar="ADDRESS", help="By default 127.0.0.1."),
]
MaybeAppArgument = Annotated[
    str | None, typer.Argument(metavar="[MODULE:APP]", help="Where the App is.")
]
AppArgument = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is.")]
