"""Offsets of a streaming read: a window between two snapshots, and a cut in it.

A row is consumed when the snapshot `seen` sees its transaction, or when it is in the window up to
`until` and not after the cut (xid, id). The rows of a window never change: a batch that is read
again has the same rows, however late a transaction commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from psycopg import sql

from notifyq.spark.windows import Snapshot

Interval = tuple[int, int]
"""Numbers of transactions, from the first up to, but without, the second."""
Cut = tuple[int, int]
"""The number of a transaction, and the id of one of its rows."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a reader; `seen` and `until` are texts of messages.current_position()."""

    seen: str
    until: str
    cut: Cut = (0, 0)
    mark: str = ""
    """The oldest table that may have rows that are still to be read."""

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Self:
        """Return the position in an offset of Spark."""
        return cls(
            offset["seen"], offset["until"], (offset["xid"], offset["id"]), offset.get("mark", "")
        )

    def offset(self) -> dict[str, Any]:
        """Return the offset that Spark stores."""
        xid, number = self.cut
        return {
            "seen": self.seen, "until": self.until, "xid": xid, "id": number, "mark": self.mark
        }  # fmt: skip

    @property
    def is_within(self) -> bool:
        """Whether only a part of the window is consumed."""
        return self.cut != (0, 0)

    def at(self, cut: Cut) -> Self:
        """Return the position after a cut in the same window."""
        return replace(self, cut=cut)

    def done(self, mark: str) -> Self:
        """Return the position after the window."""
        return replace(self, seen=self.until, cut=(0, 0), mark=mark)


def snapshot(position: str) -> str:
    """Return the snapshot in a position."""
    return position.rpartition("/")[2]


def beginning(position: str) -> str:
    """Return the first position of the same server: no transaction has a number below 3."""
    return f"{position.rpartition('/')[0]}/3:3:"


def intervals(seen: str, until: str) -> list[Interval]:
    """Return the transactions that ended between two snapshots.

    Transactions that were still running are left out: their rows need not be read.
    """
    before, after = Snapshot.parse(seen), Snapshot.parse(until)
    first = before.xmax
    found = [(xid, xid + 1) for xid in sorted(before.running) if after.sees(xid)]
    for xid in [*sorted(xid for xid in after.running if xid >= first), after.xmax]:
        if xid > first:
            found.append((first, xid))
        first = xid + 1
    return found


def between(found: Sequence[Interval], after: Cut, upto: Cut | None) -> list[Interval]:
    """Return the part of intervals with rows after one cut and up to another."""
    last = upto[0] if upto else None
    clipped = (
        (max(low, after[0]), high if last is None else min(high, last + 1)) for low, high in found
    )
    return [(low, high) for low, high in clipped if low < high]


def within_cuts(after: Cut, upto: Cut | None) -> list[sql.Composable]:
    """Return the conditions of rows after one cut and up to another."""
    conditions: list[sql.Composable] = []
    if after != (0, 0):
        conditions.append(_compare(">", after))
    if upto is not None:
        conditions.append(_compare("<=", upto))
    return conditions


def _compare(operator: str, cut: Cut) -> sql.Composable:
    return sql.SQL("(r.xid, r.id) {} ({}::xid8, {})").format(
        sql.SQL(operator), sql.Literal(str(cut[0])), sql.Literal(cut[1])
    )


def in_intervals(found: Sequence[Interval]) -> sql.Composable:
    """Return the condition of rows whose transactions are in intervals."""
    if not found:
        return sql.SQL("false")
    # An index is scanned by the interval around all.
    around = (found[0][0], found[-1][1])
    if len(found) == 1:
        return _within(around)
    each = sql.SQL(" or ").join(map(_within, found))
    return sql.SQL("{} and ({})").format(_within(around), each)


def _within(found: Interval) -> sql.Composable:
    return sql.SQL("r.xid >= {}::xid8 and r.xid < {}::xid8").format(
        sql.Literal(str(found[0])), sql.Literal(str(found[1]))
    )
