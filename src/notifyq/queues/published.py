"""What publishing returns: the id of a message, and whether it is that of another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self


class Published(int):
    """The id of a message that was published, or that has the `dedup_key` of the payload."""

    is_duplicate: bool
    """No new message was published: an existing one has the `dedup_key`.

    It stays as it is, or gets this payload with `on_duplicate` replace or debounce.
    """

    def __new__(cls, message_id: int, *, is_duplicate: bool = False) -> Self:
        """Make one from a plain id."""
        self = super().__new__(cls, message_id)
        self.is_duplicate = is_duplicate
        return self


def of_batch(
    ids: Sequence[int], duplicates: Iterable[int] | None, *, keeps_first: bool
) -> list[Published]:
    """The ids of an array of messages, of which one of each key was published.

    `duplicates` are ids of messages that existed before the call; None where no message has a key.
    """
    if duplicates is None:
        return list(map(Published, ids))
    published: list[Published] = []
    known = set(duplicates)
    for number in ids if keeps_first else reversed(ids):
        published.append(Published(number, is_duplicate=number in known))
        known.add(number)
    return published if keeps_first else published[::-1]
