"""What publishing returns: the id of a message, which says whether it is that of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class Published(int):
    """The id of a message that was published, or that has the `dedup_key` of the payload."""

    is_duplicate: bool
    """No new message was published: an existing one has the `dedup_key`.

    It stays as it is, or gets this payload with `on_duplicate` replace or debounce.
    """

    def __new__(cls, message_id: int, *, is_duplicate: bool = False) -> Published:
        """Make one from a plain id."""
        self = super().__new__(cls, message_id)
        self.is_duplicate = is_duplicate
        return self


def of_batch(rows: Sequence[Sequence[Any]], *, keeps_first: bool) -> list[Published]:
    """The ids of an array of messages, of which one of each key was published.

    `rows` have an id, and whether it is of a message that existed before the call.
    """
    published: list[Published] = []
    known: set[int] = set()
    for number, was_there in rows if keeps_first else reversed(rows):
        published.append(Published(number, is_duplicate=was_there or number in known))
        known.add(number)
    return published if keeps_first else published[::-1]
