"""Rows of the archive for the tests of the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from psycopg import Connection

INSERT = """
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, message, headers
)
select %(first)s + i, at, at, at, at, 1, 0, 1,
  case when i %% 7 = 0 then 'failed' else 'success' end::messages.message_status,
  (%(queues)s::text[])[1 + i %% cardinality(%(queues)s::text[])], 'kind', 'worker-1',
  jsonb_build_object('n', i, 'text', repeat('x', %(length)s)), '{}'
from (
  select i, %(day)s::timestamptz + interval '1 ms' * (i %% 80000000) as at
  from generate_series(1, %(rows)s) as i
) as g
"""


def archive(
    session: Connection[Any],
    rows: int,
    *,
    day: str = "2026-03-01 00:00+00",
    queues: tuple[str, ...] = ("billing", "mail"),
    first: int = 0,
    length: int = 10,
) -> None:
    """Archive messages at a time of a day, the ids from `first` + 1 on."""
    values = {"first": first, "rows": rows, "day": day, "queues": list(queues), "length": length}
    session.execute(INSERT, values)
