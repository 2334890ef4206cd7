"""What can be said of a message that is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

from notifyq.payload import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

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
    delay: timedelta | None
    """How long it is scheduled before it waits; instead of `available_at`."""
    available_at: datetime | None
    type: str | None
    headers: dict[str, Any] | None
    max_attempts: int | None
    """Claims that it may use up; None: as many as its queue says."""
    dedup_scope: DedupScope | None
    """Until when it has its `dedup_key`; by default live, or waiting if it may be renewed."""
    dedup_window: timedelta | None
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


def before_keys(options: Options) -> tuple[Any, ...]:
    """What the SQL functions take before the keys of a message, in their order."""
    headers = options.get("headers")
    return (
        options.get("priority", 0),
        options.get("delay"),
        options.get("available_at"),
        options.get("type"),
        None if headers is None else encode(headers),
    )


def behind_keys(options: Options) -> tuple[Any, ...]:
    """What they take behind the keys; raise TypeError for an option that there is not."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise TypeError(f"there is no option {min(unknown)!r} of a message")
    return (
        options.get("max_attempts"),
        options.get("dedup_scope"),
        options.get("dedup_window"),
        options.get("on_duplicate", "keep"),
        None if (after := options.get("after")) is None else list(after),
        options.get("on_failure", "cancel"),
    )
