"""Numbers, durations, sizes and untrusted texts as all tools show them."""

from datetime import timedelta

NONE = "\N{EN DASH}"
"""Shown where there is no value."""
# A character that is invisible or changes the direction of the text could make a queue resemble
# another one.
_UNSEEN = dict.fromkeys(
    [*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x200B, 0x200E, 0x200F, 0x2028,
     0x2029, *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF],
    "\N{REPLACEMENT CHARACTER}",
)  # fmt: skip


def clean(value: object) -> str:
    """A text with invisible characters and control characters replaced."""
    return str(value).translate(_UNSEEN)


def cut(value: object, length: int = 240) -> str:
    """A clean text of at most this length."""
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


def percent(share: float | None) -> str:
    """0.123 as 12.3 %; a share that is neither 0 nor 1 is never shown as 0 % or 100 %."""
    if share is None:
        return NONE
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return "> 99.9 %" if 0.9995 < share < 1 else f"{share * 100:.3g} %"


def span(value: timedelta | float | None) -> str:
    """A duration, or seconds: 80 µs, 12 ms, 3.4 s, 5 min, 2 h, 30 d."""
    if value is None:
        return NONE
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds == 0:
        return "0 s"
    sign, seconds = ("-" if seconds < 0 else ""), abs(seconds)
    limits = (
        (0.001, "µs", 1e-6), (1, "ms", 0.001), (120, "s", 1), (7200, "min", 60),
        (172_800, "h", 3600),
    )  # fmt: skip
    unit, length = next(((u, s) for limit, u, s in limits if seconds < limit), ("d", 86_400))
    amount = seconds / length
    return f"{sign}{amount:.3g} {unit}" if amount < 999.5 else f"{sign}{amount:,.0f} {unit}"


def size(value: float | None) -> str:
    """Bytes as 12.3 MB."""
    if value is None:
        return NONE
    for limit, unit in ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{int(value)} B"
