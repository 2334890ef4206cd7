"""Results of a run: from its history, or from counts alone where a history would be too long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.chaos.checker import CheckResult, Violation, check
from notifyq.chaos.final import Final
from notifyq.chaos.history import read

if TYPE_CHECKING:
    from pathlib import Path

    import asyncpg

_MOST = 20
"""Findings that are listed one by one."""
_COUNTS = """
select c.archived, c.ids, c.beyond, l.live, l.both, c.ids + l.live - l.both as messages
from (
  select count(*) as archived, count(distinct a.id) as ids,
    count(*) filter (
      where a.attempts > coalesce(a.max_attempts, q.max_attempts)
    ) as beyond
  from messages.message_archive as a
  join messages.queue as q on q.name = a.queue
) as c,
(
  select count(*) as live, count(*) filter (
    where exists (select from messages.message_archive as a where a.id = m.id)
  ) as both
  from messages.message as m
) as l
"""


def judge(folder: Path) -> CheckResult:
    """Check the history in `folder`; raises HistoryError where it is not complete."""
    final = Final.read(folder)
    return check(read(folder), final)


async def counted(
    connection: asyncpg.Connection[asyncpg.Record], acknowledged: int, unknown: int
) -> CheckResult:
    """Check by counts alone: the published messages against the two tables."""
    found = await connection.fetchrow(_COUNTS)
    assert found is not None  # noqa: S101  an aggregate has a row
    result = CheckResult(
        attempts=acknowledged + unknown,
        acknowledged=acknowledged,
        recovered=max(found["messages"] - acknowledged, 0),
        lost=max(acknowledged - found["messages"], 0),
        unexpected=max(found["messages"] - acknowledged - unknown, 0),
        doubled_archive=found["archived"] - found["ids"],
    )
    counts = {
        "lost": result.lost,
        "unexpected": result.unexpected,
        "I1": found["both"],
        "I2": result.doubled_archive,
        "I6": found["beyond"],
        "unusable": found["live"] + (acknowledged == 0),
    }
    result.violations = [Violation(name, f"{n} messages") for name, n in counts.items() if n]
    return result


def findings(result: CheckResult) -> list[str]:
    """List the violations; of very many only the first, and how many more there are."""
    texts = [f"{it.invariant}: {it.message}" for it in result.violations]
    more = len(texts) - _MOST
    return [*texts[:_MOST], f"and {more} more"] if more > 0 else texts
