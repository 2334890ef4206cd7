"""The timeline of a message: what happened to it, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from notifyq.models.message import Attempt
    from notifyq.operations.monitor import Relative


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened, or will."""

    at: datetime
    what: str
    kind: str = "quiet"
    """good, warn, bad or quiet."""
    by: str | None = None
    """The worker."""
    link: int | None = None
    """Another message that has to do with it."""


def timeline(
    row: Mapping[str, Any], attempts: Sequence[Attempt], relatives: Sequence[Relative]
) -> list[Moment]:
    """Put together what is known of a message, in the order of time."""
    found = [Moment(row["created_at"], "Published")]
    found += [
        Moment(it.happened_at, text, kind, link=it.id)
        for it in relatives
        if it.happened_at is not None and it.kind in _OF_RELATIVES
        for text, kind in [_OF_RELATIVES[it.kind]]
    ]
    if row["available_at"] > row["created_at"] and not attempts:
        found.append(Moment(row["available_at"], "Due"))
    for one in attempts:
        found += _attempt(one)
    if row["locked_at"] not in {None, *(one.locked_at for one in attempts)}:
        text = f"Attempt {row['attempts']} began"
        found.append(Moment(row["locked_at"], text, by=row["worker"]))
    if row["lock_expires_at"] is not None:
        found.append(Moment(row["lock_expires_at"], "The lock ends, unless extended", "warn"))
    if row["archived_at"] is not None:
        kind = "good" if row["state"] == "success" else "bad"
        text = f"Finished: {row['state'].replace('_', ' ')}"
        # The last attempt is noted by the same statement, an instant later.
        ended_at = max([row["archived_at"], *(one.ended_at for one in attempts[-1:])])
        found.append(Moment(ended_at, text, kind, row["worker"]))
    # What happens at one instant stays as it is above.
    return sorted(found, key=lambda it: it.at)


_OF_RELATIVES = {
    "retry_of": ("Published again, as the retry of", "quiet"),
    "retried_as": ("Published again as", "good"),
    "after": ("A message that it runs after ended:", "quiet"),
}


def _attempt(one: Attempt) -> list[Moment]:
    kind = "bad" if one.retry_at is None else "warn"
    found = [
        Moment(one.locked_at, f"Attempt {one.number} began", by=one.handled_by),
        Moment(
            one.ended_at, f"Attempt {one.number}: {one.status.replace('_', ' ')}", kind,
            one.handled_by,
        ),
    ]  # fmt: skip
    if one.retry_at is not None:
        found.append(Moment(max(one.retry_at, one.ended_at), "Due again"))
    return found
