"""Numbers and instants as a report writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def number(value: float) -> str:
    """A count with its thousands apart."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """A count as an axis has room for: 950, 12 k, 3.4 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share as a percentage that is never rounded to none or to all."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    if 0.9995 < share < 1:
        return "> 99.9 %"
    return f"{share * 100:.3g} %" if share < 0.995 else f"{share * 100:.1f} %"


def span(value: timedelta | float | None) -> str:
    """A duration, or seconds: 12 ms, 3.4 s, 5 min, 2 h, 30 d."""
    if value is None:
        return "-"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if 0 < seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    limits = ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172_800, "h", 3600))
    unit, size = next(((u, s) for limit, u, s in limits if seconds < limit), ("d", 86_400))
    found = seconds / size
    return f"{found:.3g} {unit}" if found < 999.5 else f"{found:,.0f} {unit}"


def change(value: float | None) -> str:
    """A growth: +12 %, -5 %, 3.4 times; "new" where nothing was before."""
    if value is None:
        return "new"
    return f"{value + 1:.3g} times" if value >= 1 else f"{value * 100:+.3g} %"


def when(value: datetime | None) -> str:
    """An instant in UTC, to the minute."""
    return "-" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def clean(text: str) -> str:
    """A text without what steers a terminal, turns the direction of writing, or is no character."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def cut(text: str, most: int) -> str:
    """A text of one line and at most so many characters."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"
