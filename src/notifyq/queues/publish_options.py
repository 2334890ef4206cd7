"""What can be said of a message that is published."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from notifyq.arguments import LONGEST, seconds
from notifyq.errors import ConfigurationError
from notifyq.models.payload import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    KeyOf = Callable[[Any], str | None]

DedupScope = Literal["live", "waiting"]
"""How long a message has its `dedup_key`: until it is finished, or until it is claimed."""
OnDuplicate = Literal["keep", "replace", "debounce"]
"""What becomes of the message that has the key: it stays, is made the newer one, or put off too."""
OnFailure = Literal["cancel", "run", "hold"]
"""What becomes of a message if one of those dies that it waits for."""


class Options(TypedDict, total=False):
    """What holds for one message, or for each of many."""

    priority: int
    delay: timedelta | float | None
    """How long it is scheduled before it waits, a bare number in seconds; or `available_at`."""
    available_at: datetime | None
    type: str | None
    headers: dict[str, Any] | None
    max_attempts: int | None
    """Claims that it may use up; None: as many as its queue says."""
    dedup_scope: DedupScope | None
    """Until when it has its `dedup_key`; by default live, or waiting if it may be renewed."""
    dedup_window: timedelta | float | None
    """With keep: it has its key this long at least; debounce: it is put off no longer than this."""
    on_duplicate: OnDuplicate
    """What becomes of a message whose `dedup_key` is taken; by default it is not published."""
    after: Sequence[int] | None
    """Messages whose end it waits for; `delay` counts from the last of them."""
    on_failure: OnFailure
    """What if one of them dies; by default this one is cancelled."""


class MessageOptions(Options, total=False):
    """What holds for one message, its keys included."""

    dedup_key: str | None
    key: str | None


class ManyOptions(Options, total=False):
    """What holds for many messages, and what gives each its keys."""

    dedup_key: KeyOf | None
    key: KeyOf | None


def text(name: str, value: Any) -> str | None:
    """Return a key, or another text; raise TypeError for a value that is neither that nor None."""
    return None if value is None else _of(name, value, str, "a text")


def before_keys(options: Options) -> tuple[Any, ...]:
    """What the SQL functions take before the keys of a message, in their order.

    Raise TypeError for a value that is not of its option's type, and ValueError for one that is out
    of bounds: the driver would know its number in the statement, and not its name.
    """
    headers = options.get("headers")
    available_at = options.get("available_at")
    return (
        _integer("priority", options.get("priority", 0)),
        _duration("delay", options.get("delay")),
        None
        if available_at is None
        else _instant("available_at", _of("available_at", available_at, datetime, "a datetime")),
        text("type", options.get("type")),
        None if headers is None else encode(_of("headers", headers, Mapping, "a mapping")),
    )


def behind_keys(options: Options) -> tuple[Any, ...]:
    """What they take behind the keys; raise TypeError for an option that there is not."""
    known = {"dedup_key", "key", "connection", *Options.__annotations__}
    for name in options.keys() - Options.__annotations__.keys():
        close = get_close_matches(name, known, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise TypeError(f"there is no option {name!r} of a message{hint}")
    most, after = options.get("max_attempts"), options.get("after")
    if isinstance(after, int):
        raise TypeError(f"after must be a sequence of ids, as in [{int(after)}]")
    return (
        None if most is None else _integer("max_attempts", most),
        text("dedup_scope", options.get("dedup_scope")),
        _duration("dedup_window", options.get("dedup_window")),
        text("on_duplicate", options.get("on_duplicate", "keep")),
        None if after is None else [_integer("an id in after", it, 2**63) for it in after],
        text("on_failure", options.get("on_failure", "cancel")),
    )


def _of(name: str, value: Any, kind: Any, what: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, not {value!r}")
    return value


def _duration(name: str, value: Any) -> timedelta | None:
    if value is None:
        return None
    _of(name, value, timedelta | float | int, "a duration (timedelta or seconds)")
    try:
        read = seconds(value)
    except (ValueError, OverflowError):
        read = None  # no number, or too many seconds
    if read is None or not -LONGEST <= read <= LONGEST:
        raise ConfigurationError(f"{name} must be at most 1000 years, not {value!r}")
    return read


def _instant(name: str, value: datetime) -> datetime:
    try:
        value.astimezone(UTC)
    except (ValueError, OverflowError):
        # The last instant without a time zone is infinity, which means never.
        if value not in (datetime.max, datetime.min):  # noqa: DTZ901
            raise ConfigurationError(
                f"{name} must be between the years 1 and 9999 in UTC, not {value!r}"
            ) from None
    return value


def _integer(name: str, value: Any, most: int = 2**31) -> int:
    _of(name, value, int, "an integer")
    if not -most <= value < most:
        raise ConfigurationError(f"{name} must be between {-most} and {most - 1}, not {value}")
    return int(value)
