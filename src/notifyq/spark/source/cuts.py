"""Where a stream of rows is cut: windows between two snapshots, walked by transaction and id.

A row is consumed when its transaction is seen by the snapshot `seen`, or when it is in the window
that ends with `until` and does not lie behind the cut (xid, id). Rows of a window never change, so
that a batch that is read again has the same ones, however late a transaction commits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from psycopg import sql

from notifyq.spark.windows import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Interval = tuple[int, int]
"""Numbers of transactions, from the first up to, and without, the second."""
Cut = tuple[int, int]
"""The number of a transaction, and the id of a row of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader has come; positions are those of messages.current_position()."""

    seen: str
    until: str
    cut: Cut = (0, 0)
    mark: str = ""
    """The oldest table that may have held what was yet to be read."""

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Self:
        """Take what Spark has kept of a place."""
        return cls(
            offset["seen"], offset["until"], (offset["xid"], offset["id"]), offset.get("mark", "")
        )

    def offset(self) -> dict[str, Any]:
        """Give what Spark shall keep."""
        xid, number = self.cut
        return {
            "seen": self.seen, "until": self.until, "xid": xid, "id": number, "mark": self.mark
        }  # fmt: skip

    @property
    def is_within(self) -> bool:
        """Whether a part of the window is consumed, and the rest is not."""
        return self.cut != (0, 0)

    def at(self, cut: Cut) -> Self:
        """Give the place in the same window behind a cut."""
        return replace(self, cut=cut)

    def done(self, mark: str) -> Self:
        """Give the place behind the window."""
        return replace(self, seen=self.until, cut=(0, 0), mark=mark)


def snapshot(position: str) -> str:
    """Give the snapshot in a position."""
    return position.rpartition("/")[2]


def beginning(position: str) -> str:
    """Give the position before everything, of the server of this one: no number is below 3."""
    return f"{position.rpartition('/')[0]}/3:3:"


def intervals(seen: str, until: str) -> list[Interval]:
    """Give the transactions that are over in one snapshot and were not in an earlier one.

    What still ran is left out, so that nobody has to look at all that it may have written.
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
    """Give the part of intervals that holds rows behind one cut and not behind another."""
    last = upto[0] if upto else None
    clipped = (
        (max(low, after[0]), high if last is None else min(high, last + 1)) for low, high in found
    )
    return [(low, high) for low, high in clipped if low < high]


def behind(after: Cut, upto: Cut | None) -> list[sql.Composable]:
    """Tell, of rows of these transactions, those between two cuts."""
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


def of(found: Sequence[Interval]) -> sql.Composable:
    """Tell rows whose transactions are in intervals."""
    if not found:
        return sql.SQL("false")
    # The one around all is what an index is good for.
    around = (found[0][0], found[-1][1])
    if len(found) == 1:
        return _within(around)
    each = sql.SQL(" or ").join(map(_within, found))
    return sql.SQL("{} and ({})").format(_within(around), each)


def _within(found: Interval) -> sql.Composable:
    return sql.SQL("r.xid >= {}::xid8 and r.xid < {}::xid8").format(
        sql.Literal(str(found[0])), sql.Literal(str(found[1]))
    )
