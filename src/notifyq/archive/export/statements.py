"""The statements of an export: one snapshot, and COPY, which the server writes as text."""

from __future__ import annotations

from typing import Final

# Before the snapshot is taken: no day is dropped or written anew under it.
HOLD: Final = "lock table messages.message_archive in access share mode"
SETTINGS: Final = """
select set_config('statement_timeout', '0', true),
  set_config('idle_in_transaction_session_timeout', '0', true),
  set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true),
  set_config('synchronize_seqscans', 'off', true),
  set_config('max_parallel_workers_per_gather', '0', true)
"""
DAYS: Final = "select notifyq.archive_extent(since => $1, until => $2)"

# Names and order are those of a lake's rows, and queue beside the id.
COLUMNS: Final = {
    "id": "a.id",
    "queue": "a.queue",
    "type": "a.type",
    "status": "a.status",
    "priority": "a.priority",
    "attempts": "a.attempts",
    "max_attempts": "a.max_attempts",
    "key": "a.key",
    "dedup_key": "a.dedup_key",
    "created_at": "a.created_at",
    "available_at": "a.available_at",
    "locked_at": "a.locked_at",
    "archived_at": "a.archived_at",
    "lock_token": "a.lock_token",
    "xid": "a.xid",
    "handled_by": "a.handled_by",
    "subscriber": "a.subscriber",
    "event_id": "a.event_id",
    "message": "a.message",
    "headers": "a.headers",
    "details": "a.details",
    "result": "a.result",
}
INSTANTS: Final = ("created_at", "available_at", "locked_at", "archived_at")
# Parquet has neither infinity nor text for an instant: microseconds, and the last there is.
_MICROSECONDS: Final = """
(extract(epoch from least(greatest(a.{0}, '0001-01-01 00:00+00'),
  '9999-12-31 23:59:59.999999+00')) * 1000000)::bigint
"""
_FROM: Final = """
from messages.message_archive as a
where ($1::text is null or a.queue = $1)
  and ($2::messages.message_status is null or a.status = $2)
  and ($3::timestamptz is null or a.archived_at >= $3)
  and ($4::timestamptz is null or a.archived_at < $4)
"""
CSV: Final = f"select {', '.join(COLUMNS.values())} {_FROM}"
MICROSECONDS: Final = (
    "select "
    + ", ".join(
        _MICROSECONDS.format(name)
        if name in INSTANTS
        # Its upper half is not reached, and no number of Parquet's that lakes have.
        else "least(a.xid::text::numeric, 9223372036854775807)"
        if name == "xid"
        else column
        for name, column in COLUMNS.items()
    )
    + _FROM
)
# What is JSON goes in as it is: no digit is lost.
_PAIRS: Final = ", ".join(f"'{name}', {column}" for name, column in COLUMNS.items())
JSON: Final = f"select json_build_object({_PAIRS}) {_FROM}"
