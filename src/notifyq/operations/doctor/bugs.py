"""Bugs of minor releases of PostgreSQL that matter to a queue, and which release mended them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Bug:
    """What goes wrong, from which minor release on (0 if not given), and up to which."""

    what: str
    mended: Mapping[int, int]
    """By major version, the first minor release without it."""
    source: str
    since: Mapping[int, int] | None = None

    def is_in(self, major: int, minor: int) -> bool:
        """Whether a server of this version has it."""
        first = (self.since or {}).get(major, 0)
        return first <= minor < self.mended.get(major, 0)


BUGS = (
    Bug(
        "substring() of a stored text may fail with a complaint about its encoding",
        {15: 17, 16: 13, 17: 9, 18: 3},
        "release notes of 26 February 2026, after the mending of CVE-2026-2006",
        {15: 16, 16: 12, 17: 8, 18: 2},
    ),
    Bug(
        "a session that is slow to read its bells may lose them with 'could not access status of "
        "transaction'",
        {15: 16, 16: 12, 17: 8, 18: 2},
        "release notes of 12 February 2026",
    ),
    Bug(
        "a row lock may be taken on another row, so that claims wait or deadlock",
        {15: 16, 16: 12, 17: 8, 18: 2},
        "release notes of 12 February 2026",
    ),
    Bug(
        "a role that a user is given by ALTER ROLE … SET ROLE has no effect",
        {15: 10, 16: 6, 17: 2},
        "release notes of 21 November 2024, after the mending of CVE-2024-10978",
        {15: 9, 16: 5, 17: 1},
    ),
    Bug(
        "a change of the catalog may be lost when VACUUM meets GRANT, and ruin an index with it",
        {15: 9, 16: 5, 17: 1},
        "release notes of 14 November 2024, commit a07e03fd8f",
    ),
    Bug(
        "VACUUM may go on for ever once a standby with an old transaction reconnects",
        {15: 8, 16: 4},
        "release notes of 8 August 2024",
    ),
    Bug(
        "a session that gets bells may take more and more memory",
        {15: 8, 16: 4},
        "release notes of 8 August 2024",
    ),
)


def bugs_of(major: int, minor: int) -> list[Bug]:
    """Those of this version, the most recently mended first."""
    return [bug for bug in BUGS if bug.is_in(major, minor)]
