"""Rows of the archive for the tests of the lake and of anomalies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

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

INCIDENT = """
insert into messages.message_archive (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, message, headers, details
)
select %(first)s + 40 * h + m, t.at, t.at,
  t.at + interval '1 ms' * (case h when 0 then 60000 else 100 + m %% 7 end),
  t.at + interval '61 seconds',
  1, 0, 1, (case when h = 0 or m < 3 then 'failed' else 'success' end)::messages.message_status,
  %(queue)s, '1', '{}',
  case when h = 0 then 'no disk left on /dev/' || m when m < 3 then 'timeout ' || h end
from generate_series(0, %(hours)s - 1) as h
cross join generate_series(0, 39) as m
cross join lateral (
  select %(end)s::timestamptz - interval '1 hour' * (h + 1) + interval '1 minute' * m as at
) as t
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


def archive_incident(
    session: Connection[Any],
    end: datetime,
    *,
    queue: str = "mail",
    hours: int = 240,
    first: int = 0,
) -> None:
    """Archive 40 messages an hour until `end`; in the last hour they wait long and fail."""
    session.execute(INCIDENT, {"first": first, "queue": queue, "hours": hours, "end": end})
