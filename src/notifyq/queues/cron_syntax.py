"""Check a cron expression where it is written, with the grammar that the database has.

What needs a calendar, and the interval of `@every`, is left to the database.
"""

from __future__ import annotations

import re

from notifyq.errors import ConfigurationError

_NAMES = {"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_DAY, _WEEKDAY = "day of the month", "day of the week"
_FIELDS: list[tuple[str, int, int, list[str]]] = [
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    (_DAY, 1, 31, []),
    ("month", 1, 12, _MONTHS),
    (_WEEKDAY, 0, 7, _DAYS),
]
# First, last, step, which one of the month.
_TERM = re.compile(
    r"([*]|[0-9]{1,2}|[a-z]{3})(?:-([0-9]{1,2}|[a-z]{3}))?(?:/([0-9]{1,2}))?(l|#[1-5])?"
)


def check_cron(cron: str) -> None:
    """Raise ConfigurationError for what can be no expression."""
    words = cron.lower().split()
    if (words[:1] == ["@every"] and len(words) > 1) or (len(words) == 1 and words[0] in _NAMES):
        return
    if len(words) not in {5, 6} or words[0].startswith("@"):
        raise ConfigurationError(
            f"{cron!r} is not a cron expression: give minute, hour, day of the month, month and "
            "day of the week, as in '30 8 * * mon-fri'; seconds before them; '@daily'; or "
            "'@every 90s'"
        )
    for field, expression in zip(_FIELDS[-len(words) :], words, strict=True):
        name, lowest, highest, names = field
        for term in expression.split(","):
            if not _is_term(term, *field):
                known = f" or {names[0]} to {names[-1]}" if names else ""
                raise ConfigurationError(
                    f"{term!r} cannot be the {name} of the cron expression {cron!r}: give a number "
                    f"from {lowest} to {highest}{known}, a range, * for all, each with a step "
                    "like */2, or a list with commas"
                )


def _is_term(term: str, name: str, lowest: int, highest: int, names: list[str]) -> bool:
    if name == _DAY and term in {"l", "lw"}:
        return True
    if (found := _TERM.fullmatch(term)) is None:
        return False
    first, last, step, which = found.groups()
    if int(step or 1) == 0 or (which and (name != _WEEKDAY or first == "*" or last or step)):
        return False
    if first == "*":
        return last is None
    begin = _number(first, lowest, names)
    end = begin if last is None else _number(last, lowest, names)
    # A week may end with Sunday.
    if name == _WEEKDAY and begin > 0 and end == 0:
        end = 7
    return lowest <= begin <= end <= highest


def _number(word: str, lowest: int, names: list[str]) -> int:
    if word.isdigit():
        return int(word)
    return names.index(word) + lowest if word in names else -1
