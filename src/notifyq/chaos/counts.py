"""A verdict by counts alone: for runs whose messages are too many for a history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.chaos.checker import Verdict, Violation

if TYPE_CHECKING:
    import asyncpg

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


async def counted(
    connection: asyncpg.Connection[asyncpg.Record], acknowledged: int, unknown: int
) -> Verdict:
    """Judge by counts alone: what was published, and what the two tables have."""
    found = await connection.fetchrow(_COUNTS)
    assert found is not None  # noqa: S101  counts are always there
    verdict = Verdict(
        attempts=acknowledged + unknown,
        acknowledged=acknowledged,
        recovered=max(found["messages"] - acknowledged, 0),
        lost=max(acknowledged - found["messages"], 0),
        unexpected=max(found["messages"] - acknowledged - unknown, 0),
        doubled_archive=found["archived"] - found["ids"],
    )
    broken = {
        "lost": verdict.lost,
        "unexpected": verdict.unexpected,
        "I1": found["both"],
        "I2": verdict.doubled_archive,
        "I6": found["beyond"],
        "unusable": found["live"] + (acknowledged == 0),
    }
    verdict.violations = [Violation(name, f"{n} messages") for name, n in broken.items() if n]
    return verdict
