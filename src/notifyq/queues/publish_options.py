"""The options of a message that is published."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from notifyq.arguments import LONGEST, instant, integer, of_type, seconds
from notifyq.errors import ConfigurationError, meant
from notifyq.models.payload import encode

if TYPE_CHECKING:
    KeyOf = Callable[[Any], str | None]

DedupScope = Literal["live", "waiting"]
"""How long a message holds its `dedup_key`: until it is finished, or until it is claimed."""
OnDuplicate = Literal["keep", "replace", "debounce"]
"""The message that holds the key stays, is replaced, or is replaced and delayed."""
OnFailure = Literal["cancel", "run", "hold"]
"""What happens to a message if one that it waits for fails permanently."""


class Options(TypedDict, total=False):
    """Options of one message, or of each of many."""

    priority: int
    delay: timedelta | float | None
    """How long until it becomes available, as a timedelta or seconds; or `available_at`."""
    available_at: datetime | None
    type: str | None
    headers: dict[str, Any] | None
    max_attempts: int | None
    """Most attempts; None: as many as its queue allows."""
    dedup_scope: DedupScope | None
    """How long it holds its `dedup_key`; by default live, or waiting if it may be replaced."""
    dedup_window: timedelta | float | None
    """With keep: least time that it holds its key. With debounce: most time that it is delayed."""
    on_duplicate: OnDuplicate
    """What happens if the `dedup_key` is taken; by default the new message is not published."""
    after: Sequence[int] | None
    """Messages that must end before it; `delay` counts from the last end."""
    on_failure: OnFailure
    """What happens if one of them fails permanently; by default this one is cancelled."""
    expires_in: timedelta | float | None
    """A new message that nobody has claimed by then is archived as rejected."""
    cost: int | None
    """Tokens that each attempt takes from the rates of its queue and key; None: one."""


class MessageOptions(Options, total=False):
    """Options of one message, with its keys."""

    dedup_key: str | None
    key: str | None


class ManyOptions(Options, total=False):
    """Options of many messages, with functions that return the keys of a payload."""

    dedup_key: KeyOf | None
    key: KeyOf | None


def text(name: str, value: Any) -> str | None:
    """Return a text or None; raise TypeError for any other value."""
    return None if value is None else of_type(name, value, str, "a text")


def before_keys(options: Options) -> tuple[Any, ...]:
    """The arguments of the SQL functions before the keys of a message, in their order.

    Raises TypeError for a value of the wrong type, and ConfigurationError for one out of bounds:
    the driver would name its number in the statement instead of the option.
    """
    headers = options.get("headers")
    return (
        integer("priority", options.get("priority", 0)),
        _duration("delay", options.get("delay")),
        instant("available_at", options.get("available_at")),
        text("type", options.get("type")),
        None if headers is None else encode(of_type("headers", headers, Mapping, "a mapping")),
    )


def after_keys(options: Options) -> tuple[Any, ...]:
    """The arguments after the keys; raises TypeError for an unknown option."""
    known = {"dedup_key", "key", "connection", *Options.__annotations__}
    for name in options.keys() - Options.__annotations__.keys():
        raise TypeError(f"a message has no option {name!r}{meant(name, known)}")
    most, after = options.get("max_attempts"), options.get("after")
    cost = options.get("cost")
    if isinstance(after, int):
        raise TypeError(f"after must be a sequence of ids, as in [{int(after)}]")
    return (
        None if most is None else integer("max_attempts", most),
        text("dedup_scope", options.get("dedup_scope")),
        _duration("dedup_window", options.get("dedup_window")),
        text("on_duplicate", options.get("on_duplicate", "keep")),
        None if after is None else [integer("an id in after", it, 2**63) for it in after],
        text("on_failure", options.get("on_failure", "cancel")),
        _duration("expires_in", options.get("expires_in")),
        None if cost is None else integer("cost", cost),
    )


def _duration(name: str, value: Any) -> timedelta | None:
    if value is None:
        return None
    of_type(name, value, timedelta | float | int, "a duration (timedelta or seconds)")
    try:
        read = seconds(value)
    except (ValueError, OverflowError):
        read = None  # not a number, or too large
    if read is None or not -LONGEST <= read <= LONGEST:
        raise ConfigurationError(f"{name} must be at most 1000 years, not {value!r}")
    return read
