"""Checks of the arguments that users pass; an error names the argument."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import Field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from notifyq.errors import ConfigurationError, meant

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DURATION = "timedelta | float"
_A_DURATION = "a duration (timedelta or seconds) of at most 1000 years that is not negative"
_TEXT = (str, "a text")
LONGEST = timedelta(days=366_000)
"""Longest duration, about 1000 years: clients cannot read the instants of longer ones."""
_MOST = 2**31 - 1
"""Largest `integer` of PostgreSQL."""
_INFINITE = (datetime.max, datetime.min)  # noqa: DTZ901
"""The last and the first instant without a time zone are infinite for the driver."""
_KINDS: dict[str, tuple[type, str]] = {
    "Notify": _TEXT,
    "Overflow": _TEXT,
    "Overlap": _TEXT,
    "SqlType": _TEXT,
    "WhenUnserved": _TEXT,
    "bool": (bool, "True or False"),
    "dict[str, Any]": (Mapping, "a mapping"),
    "int": (int, "an integer"),
    "str": _TEXT,
}


def seconds(value: timedelta | float | None) -> timedelta | None:
    """A duration; a bare number counts seconds."""
    return timedelta(seconds=value) if isinstance(value, int | float) else value


def positive(value: Any) -> timedelta | None:
    """The duration, from zero on; None for anything else."""
    try:
        read = seconds(value)
    except (ValueError, OverflowError):
        return None
    return read if isinstance(read, timedelta) and timedelta(0) <= read <= LONGEST else None


def duration(name: str, value: timedelta | float | None) -> timedelta | None:
    """Return the option as a duration; raise ConfigurationError for anything else."""
    if value is not None and positive(value) is None:
        raise _wrong(name, _A_DURATION, value)
    return seconds(value)


def whole(name: str, value: Any, most: int) -> None:
    """Raise ConfigurationError unless the option of this name is unset, or from 1 to `most`."""
    if value is not None and not (_is(value, int) and 1 <= value <= most):
        raise _wrong(name, f"between 1 and {most}", value)


def text(name: str, value: Any) -> None:
    """Raise ConfigurationError unless the option of this name is a text."""
    if not isinstance(value, str):
        raise _wrong(name, "a text", value)


def wait_limit(name: str, value: Any) -> float | None:
    """For how many seconds a call may wait; raise ConfigurationError for no number of them.

    What is left of a longer wait may be less than 0: then the call looks once.
    """
    if value is None:
        return None
    limit = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(limit, int | float) or isinstance(limit, bool) or math.isnan(limit):
        raise _wrong(name, "a duration (timedelta or seconds)", value)
    return limit


def number(name: str, value: Any) -> None:
    """Raise ConfigurationError unless the option of this name is unset or a number."""
    if value is not None and not isinstance(value, int | float):
        raise _wrong(name, "a number", value)


def log_level(name: str, value: str | int) -> int:
    """The number of a level of logging; raise ConfigurationError for an unknown one."""
    known = logging.getLevelNamesMapping()
    found = known.get(value.upper()) if isinstance(value, str) else value
    if not isinstance(found, int) or isinstance(found, bool) or found <= 0:
        raise _wrong(name, "a level of logging, such as 'INFO'", value)
    return found


def of_type(name: str, value: Any, kind: Any, what: str) -> Any:
    """Return a value of this kind; raise TypeError for any other."""
    if not _is(value, kind):
        raise TypeError(f"{name} must be {what}, not {value!r}")
    return value


def instant(name: str, value: Any) -> datetime | None:
    """Return an instant or None; raise ConfigurationError for one that has no UTC time."""
    if value is None:
        return None
    of_type(name, value, datetime, "a datetime")
    try:
        zoned(value).astimezone(UTC)
    except (ValueError, OverflowError):
        if value not in _INFINITE:
            raise ConfigurationError(
                f"{name} must be between the years 1 and 9999 in UTC, not {value!r}"
            ) from None
    return cast("datetime", value)


def zoned(value: datetime) -> datetime:
    """The instant with its time zone: without one it is a local time, as for the driver."""
    return value if value.tzinfo is not None or value in _INFINITE else value.astimezone()


def integer(name: str, value: Any, most: int = 2**31) -> int:
    """Return an integer; raise ConfigurationError for one out of bounds."""
    of_type(name, value, int, "an integer")
    if not -most <= value < most:
        raise ConfigurationError(f"{name} must be between {-most} and {most - 1}, not {value}")
    return int(value)


def known_options(what: str, given: Iterable[str], options: Collection[str]) -> None:
    """Raise ConfigurationError for an unknown option, and suggest the most similar one."""
    for option in set(given).difference(options):
        raise ConfigurationError(f"{what} has no option {option!r}{meant(option, options)}")


def check_fields(definition: DataclassInstance) -> None:
    """Raise ConfigurationError for a field that does not fit its annotation.

    The driver would name its number in the statement only. The database checks what values mean.
    """
    for field in fields(definition):
        value = getattr(definition, field.name)
        if value is None and str(field.type).endswith(" | None"):
            continue
        kind = annotation(field)
        if kind == _DURATION and positive(value) is None:
            raise _wrong(field.name, _A_DURATION, value)
        if kind in _KINDS and not _is(value, _KINDS[kind][0]):
            raise _wrong(field.name, _KINDS[kind][1], value)
        if kind == "int" and abs(value) > _MOST:
            raise _wrong(field.name, f"between {-_MOST} and {_MOST}", value)


def plain(definition: DataclassInstance) -> dict[str, Any]:
    """The fields of a definition by name, durations as timedeltas."""
    given = {field: getattr(definition, field.name) for field in fields(definition)}
    return {
        field.name: seconds(value) if annotation(field) == _DURATION else value
        for field, value in given.items()
    }


def annotation(field: Field[Any]) -> str:
    """The annotation of a field as text, without its None."""
    return str(field.type).removesuffix(" | None")


def _is(value: Any, kind: Any) -> bool:
    """Whether the value is of this kind; True is no number, though Python takes it for one."""
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))


def _wrong(name: str, what: str, value: Any) -> ConfigurationError:
    return ConfigurationError(f"{name} must be {what}, not {value!r}")
