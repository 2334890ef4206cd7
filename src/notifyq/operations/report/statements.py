"""The statements of a report; behaviour is in the functions that they call."""

from typing import Final

DATABASE: Final = "select current_database()::text"
ROLLUP_RANGE: Final = "select r.* from notifyq.rollup_range(lake => $1) as r"
ROLLUP_SUMMARY: Final = """
select * from notifyq.rollup_summary(
  since => $1, until => $2, step => $3, dimensions => $4, lake => $5)
"""
ROLLUP_ERRORS: Final = """
select e.fingerprint, e.errors, e.queues, e.statuses::text[] as statuses, e.first_at, e.last_at,
  e.sample
from notifyq.rollup_errors(since => $1, until => $2, quantity => $3, lake => $4) as e
"""
ROLLUP_WORKERS: Final = """
select * from notifyq.rollup_workers(since => $1, until => $2, quantity => $3, lake => $4)
"""
