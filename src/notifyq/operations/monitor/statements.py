"""The statements of the monitor; behaviour is in the functions that they call."""

from typing import Final

BACKLOG: Final = "select * from messages.backlog(queue => $1, most => $2)"
THROUGHPUT: Final = """
select * from messages.throughput(
  since => $1, until => $2, step => $3, queue => $4, by_queue => $5, most => $6)
"""
WORKERS: Final = "select * from messages.workers(most => $1)"
HOLDERS: Final = "select * from messages.activity(most => $1, holding => true)"
ACTIVITY: Final = "select * from messages.activity(most => $1)"
CRON_ENTRIES: Final = "select * from messages.cron_entries()"
LAGS: Final = "select * from notifyq.subscription_lags(most => $1)"
HEALTH: Final = "select * from messages.health()"
MAY_AUDIT: Final = """
select coalesce(has_function_privilege(
  to_regprocedure('notifyq.note_audit(text, text, text, jsonb, text, bigint)'), 'execute'), false)
"""
AUDIT_LIST: Final = """
select a.id, a.acted_at, a.role, a.actor, a.action, a.subject, a.origin, a.details::text as details
from messages.audit_list(
  before => $1, actor => $2, action => $3, subject => $4, quantity => $5, since => $6) as a
"""
SEARCH_LIVE: Final = """
select * from notifyq.search_live(
  conditions => $1, quantity => $2, before_id => $3, budget => $4)
"""
SEARCH_ARCHIVE: Final = """
select * from notifyq.search_archive(
  conditions => $1, quantity => $2, before_at => $3, before_id => $4, budget => $5)
"""
DEAD_GROUPS: Final = """
select g.fingerprint, g.dead, g.first_at, g.last_at, g.last_id, g.queues,
  g.statuses::text[] as statuses, g.sample
from notifyq.dead_groups(
  conditions => $1, quantity => $2, before_at => $3, before_id => $4, budget => $5) as g
"""
_STEP: Final = """
select * from {}(
  conditions => $1, quantity => $2, position_at => $3, position_id => $4, budget => $5)
"""
DEAD_MATCHING: Final = _STEP.format("notifyq.count_dead_matching")
DEAD_RETRY_MATCHING: Final = _STEP.format("messages.dead_retry_matching")
DEAD_DELETE_MATCHING: Final = _STEP.format("messages.dead_delete_matching")
LIVE_MATCHING: Final = """
select * from notifyq.count_live_matching(
  conditions => $1, quantity => $2, position_id => $3, budget => $4, states => $5)
"""
RELATIVES: Final = "select * from notifyq.message_relatives(id => $1)"
RETENTION: Final = "select * from messages.retention_info()"
ARCHIVE_DAYS: Final = "select * from messages.archive_info()"
ALTER_ARCHIVE: Final = """
select p.retention, p.retention_dead, p.days_ahead
from messages.alter_archive(retention => $1, retention_dead => $2, days_ahead => $3) as p
"""
