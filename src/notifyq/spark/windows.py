"""Windows between two snapshots: which rows a later one sees and an earlier one does not.

A row says by its `xid` which transaction wrote it. Transactions commit in any order, so neither an
id nor an instant tells what is new: a snapshot does, as it names those that were running.
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
        """Read the text that PostgreSQL writes: xmin, xmax, and what runs in between."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ConfigurationError(f"{text[:100]!r} is not a snapshot: take one of PostgreSQL")
        running = frozenset(int(xid) for xid in found[3].split(",") if xid)
        return cls(int(found[1]), int(found[2]), running)

    def sees(self, xid: int) -> bool:
        """Tell whether the rows of a transaction, if it committed, are visible."""
        return xid < self.xmax and xid not in self.running


def between(low: str, high: str, column: str = "xid") -> sql.Composed:
    """Say in SQL that a row is visible in the snapshot `high` and not in `low`.

    Both halves are conditions for an index: transactions that began between the two, and those that
    ran when `low` was taken and are over in `high`.
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
