"""The statements of an export: a snapshot, and COPY queries."""

from __future__ import annotations

from typing import Final

# Run it before the snapshot is taken: no day may be dropped or rewritten after that.
HOLD: Final = "lock table notifyq.readable_archive in access share mode"
SETTINGS: Final = """
select set_config('statement_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '0', true),
  set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true),
  set_config('synchronize_seqscans', 'off', true),
  set_config('max_parallel_workers_per_gather', '0', true)
"""
DAYS: Final = "select notifyq.archive_extent(since => $1, until => $2)"

# Names and order of a lake's rows, with the queue after the id.
COLUMNS: Final = (
    "id", "queue", "type", "status", "priority", "attempts", "max_attempts", "key", "dedup_key",
    "created_at", "available_at", "locked_at", "archived_at", "lock_token", "xid", "handled_by",
    "subscriber", "event_id", "message", "headers", "details", "result",
    "cancelled_by",
)  # fmt: skip
INSTANTS: Final = ("created_at", "available_at", "locked_at", "archived_at")
# Parquet has neither infinity nor text for an instant: write microseconds within its range.
_MICROSECONDS: Final = """
(extract(epoch from least(greatest(a.{0}, '0001-01-01 00:00+00'),
  '9999-12-31 23:59:59.999999+00')) * 1000000)::bigint
"""
_FROM: Final = """
from notifyq.readable_archive as a
where ($1::text is null or a.queue = $1)
  and ($2::messages.message_status is null or a.status = $2)
  and ($3::timestamptz is null or a.archived_at >= $3)
  and ($4::timestamptz is null or a.archived_at < $4)
"""
CSV: Final = f"select {', '.join(f'a.{name}' for name in COLUMNS)} {_FROM}"
MICROSECONDS: Final = (
    "select "
    + ", ".join(
        _MICROSECONDS.format(name)
        if name in INSTANTS
        # Lakes have no unsigned numbers; the upper half of the range is never reached.
        else "least(a.xid::text::numeric, 9223372036854775807)"
        if name == "xid"
        else f"a.{name}"
        for name in COLUMNS
    )
    + _FROM
)
# JSON columns are written unchanged: no digit is lost.
_PAIRS: Final = ", ".join(f"'{name}', a.{name}" for name in COLUMNS)
JSON: Final = f"select json_build_object({_PAIRS}) {_FROM}"
