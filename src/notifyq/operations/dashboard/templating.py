"""Templates, and how they write numbers, durations and instants."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from notifyq import __version__

_STATIC = files("notifyq.operations.dashboard") / "static"
NONE = "\N{EN DASH}"
"""What is shown where there is no value."""
_LONGEST = 240
# What turns the direction of a text around it, or is not seen at all, could make one queue look
# like another.
_UNSEEN = dict.fromkeys(
    [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x200F, 0x2028,
     0x2029, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF],
    "\N{REPLACEMENT CHARACTER}",
)  # fmt: skip


def environment() -> Environment:
    """Everything that templates know."""
    made = Environment(
        loader=PackageLoader("notifyq.operations.dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    made.filters |= {
        "ago": ago, "bytes": size, "clean": clean, "cut": cut, "number": number,
        "percent": percent, "short": short, "span": span, "when": when,
    }  # fmt: skip
    made.globals |= {"version": __version__, "digest": digest}
    return made


@cache
def digest(name: str) -> str:
    """What tells one version of a file from the next, so that browsers may keep it."""
    return hashlib.sha256((_STATIC / name).read_bytes()).hexdigest()[:12]


def clean(value: object) -> str:
    """A text that shows what cannot be seen."""
    return str(value).translate(_UNSEEN)


def cut(value: object, length: int = _LONGEST) -> str:
    """A clean text that is not longer than this."""
    text = str(value)
    return clean(text if len(text) <= length else f"{text[: length - 1]}…")


def number(value: float | None) -> str:
    """1,234,567; 0.25."""
    if value is None:
        return NONE
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def short(value: float | None) -> str:
    """1,234, 12.3 k, 4.56 M: for tiles and axes."""
    if value is None:
        return NONE
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return number(round(value, 2))


def percent(value: float | None) -> str:
    """0 to 1 as 12.3 %."""
    return NONE if value is None else f"{value * 100:.3g} %"


def span(value: timedelta | float | None) -> str:
    """A duration as people read it: 12 ms, 3.4 s, 5 min, 2.0 h, 30 d."""
    if value is None:
        return NONE
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds == 0:
        return "0 s"
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    limits = ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600))
    unit, length = next(((u, s) for limit, u, s in limits if seconds < limit), ("d", 86_400))
    amount = seconds / length
    text = f"{amount:.3g}" if amount < 999.5 else f"{amount:,.0f}"
    return f"{sign}{text} {unit}"


def size(value: float | None) -> str:
    """Bytes as 12.3 MB."""
    if value is None:
        return NONE
    for limit, unit in ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{int(value)} B"


def when(value: datetime | None) -> str:
    """An instant, in UTC; a browser that runs scripts shows it in its own time."""
    if value is None:
        return NONE
    if value.year >= 9999:
        return "never"
    utc = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        utc.isoformat(timespec="milliseconds"),
        utc.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3],
        utc.strftime("%Y-%m-%d %H:%M:%S"),
    )


def ago(value: datetime | None, *, short: bool = False) -> Any:
    """How long ago an instant was, or in how long it will be, with the instant as a hint."""
    if value is None:
        return NONE
    if value.year >= 9999:
        return "never"
    passed = datetime.now(UTC) - value
    is_past = passed >= timedelta(0)
    seconds = abs(passed.total_seconds())
    text = span(max(1, round(seconds)))
    if not short:
        text = f"{text} ago" if is_past else f"in {text}"
    return Markup('<time datetime="{}" title="{} UTC" data-relative>{}</time>').format(
        value.astimezone(UTC).isoformat(timespec="milliseconds"),
        value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
        text,
    )
