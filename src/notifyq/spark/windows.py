"""Windows between two snapshots: the rows that a later one sees and an earlier one does not.

The `xid` of a row is the transaction that wrote it. Transactions commit in any order: ids and
instants do not show which rows are new. A snapshot does, since it lists the running transactions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from psycopg import sql

from notifyq.errors import ConfigurationError

_TEXT = re.compile(r"(\d{1,20}):(\d{1,20}):((?:\d{1,20}(?:,\d{1,20})*)?)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A value of the type pg_snapshot."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a pg_snapshot: xmin, xmax, and running transactions between them."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ConfigurationError(
                f"{text[:100]!r} is not a snapshot: use the text of a pg_snapshot"
            )
        running = frozenset(int(xid) for xid in found[3].split(",") if xid)
        return cls(int(found[1]), int(found[2]), running)

    def sees(self, xid: int) -> bool:
        """Return whether the rows of a transaction are visible, provided that it committed."""
        return xid < self.xmax and xid not in self.running


def between(low: str, high: str, column: str = "xid") -> sql.Composed:
    """Return a condition: the row is visible in the snapshot `high` and not in `low`.

    Both halves can use an index: transactions that began between the two, and those that were
    running at `low` and have ended in `high`.
    """
    first, last = Snapshot.parse(low), Snapshot.parse(high)
    name = sql.Identifier(*column.split("."))
    fresh = sql.SQL("{name} >= {low}::xid8 and {name} < {high}::xid8").format(
        name=name, low=sql.Literal(str(first.xmax)), high=sql.Literal(str(last.xmax))
    )
    running = sorted(xid for xid in last.running if xid >= first.xmax)
    if running:
        fresh += sql.SQL(" and {name} <> all ({xids}::xid8[])").format(
            name=name, xids=_array(running)
        )
    late = sorted(xid for xid in first.running if last.sees(xid))
    if not late:
        return sql.SQL("({})").format(fresh)
    return sql.SQL("({fresh} or {name} = any ({xids}::xid8[]))").format(
        fresh=fresh, name=name, xids=_array(late)
    )


def _array(xids: list[int]) -> sql.Literal:
    return sql.Literal("{" + ",".join(map(str, xids)) + "}")
