"""Statements that only the dashboard needs; most are in `notifyq.operations.monitor`."""

from typing import Final

QUEUE_LIST: Final = "select * from notifyq.queue_list(queue => $1)"

# A larger payload is only in the download.
_LONG: Final = "case when octet_length(m.{0}::text) <= 500000 then m.{0}::text end as {0}"
_COLUMNS: Final = """
m.id, m.queue, m.created_at, m.available_at, m.locked_at, m.lock_token, m.priority, m.attempts,
m.type, m.dedup_key, m.key, m.max_attempts, m.details, octet_length(m.message::text) as bytes
"""
_LIVE: Final = """
select {}, {}, {}, m.state::text as state, m.locked_by as worker, m.lock_expires_at, m.blockers,
  null::timestamptz as archived_at, null as result, null as subscriber, null::bigint as event_id,
  null as cancelled_by
from messages.message_find(id => $1) as m
"""
_FINISHED: Final = """
select {}, {}, {}, {}, m.status::text as state, m.handled_by as worker, m.archived_at,
  m.subscriber, m.event_id, m.cancelled_by, null::timestamptz as lock_expires_at,
  null::integer as blockers
from messages.archive_find(id => $1) as m
"""
_MESSAGE, _HEADERS, _RESULT = (_LONG.format(name) for name in ("message", "headers", "result"))
MESSAGE: Final = _LIVE.format(_COLUMNS, _MESSAGE, _HEADERS)
FINISHED: Final = _FINISHED.format(_COLUMNS, _MESSAGE, _HEADERS, _RESULT)
PAYLOAD: Final = """
select m.message::text from messages.message_find(id => $1) as m
union all
select a.message::text from messages.archive_find(id => $1) as a
"""
FINGERPRINT: Final = """
select notifyq.error_fingerprint(details => m.details) from messages.archive_find(id => $1) as m
union all
select notifyq.error_fingerprint(details => m.details) from messages.message_find(id => $1) as m
where m.details is not null
"""
OPEN_BATCHES: Final = """
select b.batch, b.stream, b.subscriber, b.member, b.opened_at, b.is_retry, b.first_id, b.last_id
from notifyq.open_batches(stream => $1) as b
"""
CANCEL: Final = "select messages.cancel(id => $1, cancelled_by => $2)"
STOP: Final = """
select messages.cancel(id => $1, running => true, children => $2, cancelled_by => $3)
"""
OUTPUT: Final = """
select m.number, m.attempt, m.created_at, {}
from messages.output(id => $1, after => $2) as m
limit $3
""".format(_LONG.format("chunk"))
