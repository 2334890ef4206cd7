"""The templates, and how they show instants."""

import hashlib
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from notifyq import __version__
from notifyq.operations import texts

_STATIC = files("notifyq.operations.dashboard") / "static"


@cache
def environment() -> Environment:
    """The templates with their filters and globals, compiled once for all apps of a process."""
    made = Environment(
        loader=PackageLoader("notifyq.operations.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        name: getattr(texts, name)
        for name in ("clean", "cut", "number", "percent", "short", "span")
    }
    made.filters |= {"ago": ago, "bytes": texts.size, "when": when}
    made.globals |= {"version": __version__}
    return made


@cache
def digest(name: str) -> str:
    """A hash of a static file: browsers may cache it because its address changes with it."""
    return hashlib.sha256((_STATIC / name).read_bytes()).hexdigest()[:12]


def when(value: datetime | None) -> str:
    """An instant in UTC; the script shows it in the time zone of the browser."""
    if value is None or value.year >= 9999:
        return texts.NONE if value is None else "never"
    return _time(value, f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}")


def ago(value: datetime | None, *, short: bool = False) -> Any:
    """How long ago an instant was, or in how long it will be, with the instant as a tooltip."""
    if value is None or value.year >= 9999:
        return texts.NONE if value is None else "never"
    passed = datetime.now(UTC) - value
    text = texts.span(max(1, round(abs(passed.total_seconds()))))
    if not short:
        text = f"{text} ago" if passed >= timedelta(0) else f"in {text}"
    return _time(value, text, is_relative=True)


def _time(value: datetime, text: str, *, is_relative: bool = False) -> Markup:
    utc = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC"{}>{}</time>').format(
        utc.isoformat(timespec="milliseconds"),
        utc.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        Markup(" data-relative") if is_relative else "",
        text,
    )
