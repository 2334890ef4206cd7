"""Values that users give: one of the wrong kind is refused by the name that it goes by."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import Field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from _typeshed import DataclassInstance

_DURATION = "timedelta | float"
_A_DURATION = "a duration (timedelta or seconds) of at most 1000 years that is not negative"
_TEXT = (str, "a text")
LONGEST = timedelta(days=366_000)
"""Of a duration, about 1000 years: longer ones lead to instants that no client can read."""
_MOST = 2**31 - 1
"""Larger is no integer of the database."""
_KINDS: dict[str, tuple[type, str]] = {
    "Bell": _TEXT,
    "Overflow": _TEXT,
    "Overlap": _TEXT,
    "bool": (bool, "True or False"),
    "dict[str, Any]": (Mapping, "a mapping"),
    "int": (int, "an integer"),
    "str": _TEXT,
}


def seconds(value: timedelta | float | None) -> timedelta | None:
    """A duration; a bare number counts seconds."""
    return timedelta(seconds=value) if isinstance(value, int | float) else value


def positive(value: Any) -> timedelta | None:
    """The duration, also one of zero; None for anything else."""
    try:
        read = seconds(value)
    except (ValueError, OverflowError):
        return None
    return read if isinstance(read, timedelta) and timedelta(0) <= read <= LONGEST else None


def duration(name: str, value: timedelta | float | None) -> timedelta | None:
    """Return what an option of this name says; raise ConfigurationError where it is none."""
    if value is not None and positive(value) is None:
        raise _wrong(name, _A_DURATION, value)
    return seconds(value)


def whole(name: str, value: Any, most: int) -> None:
    """Raise ConfigurationError unless the option of this name is unset, or from 1 to `most`."""
    if value is not None and not (isinstance(value, int) and 1 <= value <= most):
        raise _wrong(name, f"between 1 and {most}", value)


def text(name: str, value: Any) -> None:
    """Raise ConfigurationError unless what goes by this name is a text."""
    if not isinstance(value, str):
        raise _wrong(name, "a text", value)


def number(name: str, value: Any) -> None:
    """Raise ConfigurationError unless what goes by this name is unset or a number."""
    if value is not None and not isinstance(value, int | float):
        raise _wrong(name, "a number", value)


def known_options(what: str, given: Iterable[str], options: Collection[str]) -> None:
    """Raise ConfigurationError for an option that there is not, with the one that is most alike."""
    for option in set(given).difference(options):
        close = difflib.get_close_matches(option, options, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise ConfigurationError(f"{what} has no option {option!r}{hint}")


def check_fields(definition: DataclassInstance) -> None:
    """Raise ConfigurationError for a field that is not of the kind that its annotation says.

    The driver would know its number in the statement, and not its name. What a value of the right
    kind means is checked by the database.
    """
    for field in fields(definition):
        value = getattr(definition, field.name)
        if value is None and str(field.type).endswith(" | None"):
            continue
        kind = _kind(field)
        if kind == _DURATION and positive(value) is None:
            raise _wrong(field.name, _A_DURATION, value)
        if kind in _KINDS and not isinstance(value, _KINDS[kind][0]):
            raise _wrong(field.name, _KINDS[kind][1], value)
        if kind == "int" and abs(value) > _MOST:
            raise _wrong(field.name, f"between {-_MOST} and {_MOST}", value)


def plain(definition: DataclassInstance) -> dict[str, Any]:
    """The fields of a definition by name, durations as timedeltas."""
    given = {field: getattr(definition, field.name) for field in fields(definition)}
    return {
        field.name: seconds(value) if _kind(field) == _DURATION else value
        for field, value in given.items()
    }


def _kind(field: Field[Any]) -> str:
    """Its annotation, a text in modules like ours, but for the None."""
    return str(field.type).removesuffix(" | None")


def _wrong(name: str, what: str, value: Any) -> ConfigurationError:
    return ConfigurationError(f"{name} must be {what}, not {value!r}")
