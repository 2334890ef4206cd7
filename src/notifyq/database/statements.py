"""Every statement that notifyq sends, except those of advisory_locks.py and probes.py.

They only call functions of the database, which hold the behaviour.
"""

import re
from functools import cache

SCHEMA_VERSION = 1
"""The version of the schema that these calls need."""

VERSION = "select messages.version()"
VERSIONS = "select messages.version() as version, notifyq.oldest_client() as serves"

# JSON is sent as text: a caller's connection may have its own codec for jsonb.
PUBLISH = """
select p.id, $8::text is not null and messages.is_duplicate(p.id) as is_duplicate
from messages.publish(
  queue => $1, message => $2::text::jsonb, priority => $3, delay => $4, available_at => $5,
  type => $6, headers => $7::text::jsonb, dedup_key => $8, key => $9, max_attempts => $10,
  dedup_scope => $11, dedup_window => $12, on_duplicate => $13, after => $14,
  on_failure => $15, expires_in => $16, cost => $17) as p (id)
"""
# A transaction may wait for the source of its stream: it is not a forgotten one.
NO_IDLE_TIMEOUT = "set local idle_in_transaction_session_timeout = 0"
# A handler and its statements may be slow. If its host crashes, its transaction must not block
# vacuum for two hours.
TRANSACTION = """
select set_config('idle_in_transaction_session_timeout', '0', true),
  set_config('tcp_keepalives_idle', '10', true), set_config('tcp_keepalives_interval', '5', true),
  set_config('tcp_keepalives_count', '3', true),
  case
    when current_setting('transaction_timeout', true) <> '0'
      then set_config('transaction_timeout', '0', true)
  end
"""
PUBLISH_MANY = """
select p.ids,
  case when $8::text[] is not null then coalesce(notifyq.noted_duplicates(), '{}') end as duplicates
from (
  -- First, as the other column depends on it: the offset keeps this a query of its own.
  select array(select messages.publish_many(
    queue => $1, messages => $2::text[]::jsonb[], priority => $3, delay => $4, available_at => $5,
    type => $6, headers => $7::text::jsonb, dedup_keys => $8, keys => $9, max_attempts => $10,
    dedup_scope => $11, dedup_window => $12, on_duplicate => $13, after => $14,
    on_failure => $15, expires_in => $16, cost => $17)) as ids
  offset 0
) as p
"""

# The columns of a Message only: each one costs the server and the worker.
CLAIM = """
select id, queue, created_at, available_at, locked_at, lock_token, priority, attempts, type,
  dedup_key, key, max_attempts, message, headers, details, state, locked_by, lock_expires_at,
  root_id
from messages.claim(
  queues => $1, quantity => $2, lock_duration => $3, worker => $4, filter => $5::jsonpath,
  full_scan => $6, max_attempts => $7, filters => $8::text[]::jsonpath[])
"""
FINISH_MANY = """
select messages.finish_many(
  ids => $1, lock_tokens => $2, statuses => $3::messages.message_status[], details => $4,
  results => $5::text[]::jsonb[])
"""
RETRY_MANY = """
select * from messages.retry_many(
  ids => $1, lock_tokens => $2, delays => $3, details => $4,
  statuses => $5::messages.message_status[], error_types => $6, errors => $7, tracebacks => $8,
  give_ups => $9)
"""
SUPPRESS = "select notifyq.suppress(queue => $1, eager => $2)"
UNSUPPRESS = "select notifyq.unsuppress(queues => $1)::text"
IS_TRANSACTION_OVER = "select notifyq.is_transaction_over(number => $1::text::xid8)"
TAKE_WAKE_SLOTS = "select notifyq.take_wake_slots(queues => $1)"
LEAVE_WAKE_SLOTS = "select notifyq.leave_wake_slots(queues => $1, held => $2)"
NEXT_DUE = "select notifyq.next_due(queues => $1, since => $2)"
RATE_LIMIT_WAIT = "select notifyq.rate_limit_wait(queues => $1, since => $2)"
WAKE_ALL = "select notifyq.wake_all(queues => $1, always => $2)"
RELEASE_MANY = "select messages.release_many(ids => $1, lock_tokens => $2)"
SNOOZE_MANY = "select messages.release_many(ids => $1, lock_tokens => $2, delay => $3)"
RELEASE_ORPHANS = "select notifyq.release_orphans(worker => $1, known => $2)"
KEEP_LOGS = """
select notifyq.keep_logs(
  ids => $1, lock_tokens => $2, attempts => $3, logs => $4::text[]::json[])
"""
EXTEND_MANY = "select messages.extend_many(ids => $1, lock_tokens => $2, lock_duration => $3)"
CANCEL = "select messages.cancel(id => $1)"
CANCEL_ALSO = """
select messages.cancel(
  id => $1, running => $2, children => $3, reason => $4, cancelled_by => $5)
"""
AMEND = """
select messages.amend(
  id => $1, message => $2::text::jsonb, priority => $3, available_at => $4,
  headers => $5::text::jsonb)
"""

DROP_QUEUE = "select messages.drop_queue(name => $1, force => $2)"
PAUSE_QUEUE = "select messages.pause_queue(name => $1)"
PAUSE_QUEUE_UNTIL = """
select messages.pause_queue(
  name => $1, until => coalesce($2::timestamptz, clock_timestamp() + $3::interval)
)
"""
RESUME_QUEUE = "select messages.resume_queue(name => $1)"
GRANT_QUEUE = "select messages.grant_queue(queue => $1, role => $2, publish => $3, consume => $4)"
REVOKE_QUEUE = "select messages.revoke_queue(queue => $1, role => $2)"
GRANT_READ = "select messages.grant_read(queue => $1, role => $2)"
REVOKE_READ = "select messages.revoke_read(queue => $1, role => $2)"
QUEUE_GRANTS = "select * from messages.queue_grants(queue => $1)"
SET_SHARE = "select messages.set_share(queue => $1, key => $2, weight => $3)"
SET_LIMIT = """
select messages.set_limit(queue => $1, key => $2, concurrency => $3, rate => $4)
"""
QUEUE_LIMITS = "select * from messages.queue_limits(queue => $1)"
QUEUE_SHARES = "select * from messages.queue_shares(queue => $1)"
QUEUE_INFO = "select * from messages.queue_info(queue => $1)"

SCHEDULE = """
select messages.schedule(
  name => $1, cron => $2, queue => $3, message => $4::text::jsonb, timezone => $5, type => $6,
  headers => $7::text::jsonb, priority => $8, key => $9, max_attempts => $10, jitter => $11,
  overlap => $12, backfill => $13, grace => $14, when_unserved => $15)
"""
UNSCHEDULE = "select messages.unschedule(name => $1)"
ENABLE_SCHEDULE = "select messages.resume_schedule(name => $1)"
DISABLE_SCHEDULE = "select messages.pause_schedule(name => $1)"
RUN_SCHEDULE = "select messages.run_schedule(name => $1)"
SCHEDULE_INFO = "select * from messages.schedule_info(name => $1)"
CRON_NEXT = "select messages.cron_next(cron => $1, timezone => $2, later_than => $3)"

# A worker learns of an upgrade by the versions.
MAINTAIN = """
select messages.version() as version, notifyq.oldest_client() as serves,
  array(select d.error from notifyq.failing_duties() as d where d.failures > 0) as failing, m.*
from notifyq.maintain(urgently => false) as m
"""
REAP_AND_STAGE = "select * from notifyq.reap_and_stage()"
FIRE_SCHEDULES = """
select f.fired, f.unserved, notifyq.next_schedule() as next_schedule
from notifyq.fire_schedules() as f
"""
DIAGNOSE = "select * from notifyq.diagnose()"

MESSAGE_LIST = """
select * from messages.message_list(
  queue => $1, state => $2::messages.message_state, quantity => $3)
"""
MESSAGE_FIND = "select * from messages.message_find(id => $1)"
ARCHIVE_LIST = """
select * from messages.archive_list(
  queue => $1, status => $2::messages.message_status, quantity => $3, since => $4)
"""
ARCHIVE_FIND = "select * from messages.archive_find(id => $1)"
STEP_ORIGIN = "select notifyq.step_origin()"
RECORDED_STEPS = """
select r.name, r.kind, r.state, r.value::text as value
from notifyq.recorded_steps(id => $1, lock_token => $2) as r"""
RECORD_STEPS = """
select r.number, r.stored::text as stored, r.state
from notifyq.record_steps(
  ids => $1, lock_tokens => $2, names => $3, contents => $4::text[]::jsonb[], failed => $5) as r"""
RECORD_STEP = """
select r.stored::text as stored, r.state, r.is_new
from notifyq.record_step(
  id => $1, lock_token => $2, name => $3, value => $4::text::jsonb, failed => $5) as r"""
RECORD_STEP_IN = """
select r.stored::text as stored, r.state, r.is_new
from notifyq.record_step(
  id => $1, lock_token => $2, name => $3, value => $4::text::jsonb, child_id => $5) as r"""
SLEEP = "select messages.sleep(id => $1, lock_token => $2, name => $3, until => $4, delay => $5)"
WAIT_FOR_SIGNAL = """
select w.state, w.payload::text as payload, w.signal
from messages.await_any(
  id => $1, lock_token => $2, name => $3, signals => $4, timeout => $5) as w"""
WAIT_FOR_ENDS = """
select w.state, w.ends::text as ends
from notifyq.wait_for_ends(id => $1, lock_token => $2, name => $3, ids => $4, timeout => $5) as w"""
SIGNAL = "select messages.signal(name => $1, payload => $2::text::jsonb, id => $3)"
PARKED = "select p.* from messages.parked(queue => $1, quantity => $2, id => $3) as p"
STEPS = """
select s.name, s.value::text as value, s.attempt, s.created_at, s.kind, s.state
from messages.steps(id => $1) as s"""
REPORT_PROGRESS = """
select messages.progress(id => $1, lock_token => $2, fraction => $3::float8::real, note => $4)"""
PROGRESS = "select p.* from messages.progress(id => $1) as p"
EMIT = "select messages.emit(id => $1, lock_token => $2, chunk => $3::text::jsonb)"
OUTPUT = """
select o.number, o.chunk::text as chunk, o.created_at, o.attempt
from messages.output(id => $1, after => $2) as o"""
RESULT = "select r.* from messages.result(id => $1) as r"
AWAIT_RESULT = "select r.* from messages.await_result(id => $1) as r"
DEPENDENCIES = "select r.* from messages.dependencies(id => $1) as r"
UNBLOCK = "select messages.unblock(id => $1)"
RUN_NOW = "select messages.run_now(id => $1)"
CANCEL_MATCHING = """
select * from messages.cancel_matching(
  conditions => $1, quantity => $2, position_id => $3, budget => $4,
  running => $5, children => $6, reason => $7, cancelled_by => $8)"""
RUN_NOW_MATCHING = """
select * from messages.run_now_matching(
  conditions => $1, quantity => $2, position_id => $3, budget => $4)"""
MOVE_MATCHING = """
select * from messages.move_matching(
  conditions => $1, quantity => $2, position_id => $3, budget => $4, queue => $5)"""
AMEND_MATCHING = """
select * from messages.amend_matching(
  conditions => $1, quantity => $2, position_id => $3, budget => $4, priority => $5)"""
CLOCK = "select clock_timestamp()"
ATTEMPTS = "select * from messages.attempts(id => $1)"
LOGS = "select * from messages.logs(id => $1)"
ARCHIVE_SUMMARY = "select * from messages.archive_summary(queue => $1, since => $2)"

DEAD_LIST = "select * from messages.dead_list($1, $2, $3, subscriber => $4)"
CANCELLED_LIST = "select * from messages.dead_list($1, $2, $3, subscriber => $4, cancelled => true)"
DEAD_COUNT = "select messages.dead_count(queue => $1, subscriber => $2)"
CANCELLED_COUNT = "select messages.dead_count(queue => $1, subscriber => $2, cancelled => true)"
DEAD_RETRY = "select messages.dead_retry(variadic ids => $1::bigint[])"
DEAD_RETRY_FROM = "select messages.dead_retry_from(id => $1, step => $2)"
DEAD_AMONG = """
select a.id from unnest($1::bigint[]) as u (id), messages.archive_find(u.id) as a
where a.status <> 'success' and not ($2::boolean and (
  exists (select from notifyq.message_relatives(id => a.id) as r where r.kind = 'retried_as')
  or (a.subscriber is not null and a.event_id is null)))
"""
AUDIT = "select notifyq.note_audit($1, $2, $3, $4::jsonb, $5, id => $6)"
DEAD_DELETE = "select messages.dead_delete(variadic ids => $1::bigint[])"
REDRIVE_IDS = "select unnest(notifyq.redrive_ids($1, $2::messages.message_status, $3, $4, $5, $6))"
REDRIVE = "select messages.redrive($1, $2::messages.message_status, $3, $4, $5, $6)"
NOTIFY = "select true from pg_notify($1, '')"
KEEP_ALIVE = """
select a.pid, a.backend_start, set_config('tcp_keepalives_idle', '10', false),
  set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false)
from pg_stat_activity as a
where a.pid = pg_backend_pid()
"""
END_SESSION = """
select pg_terminate_backend(a.pid)
from pg_stat_activity as a
where a.pid = $1
  and a.backend_start = $2
"""
RUN_BROKER = "call messages.run_broker(idle => interval '0')"
LOCK_RELAY = "select pg_try_advisory_lock(hashtextextended($1, 7305427014))"
LOCK_BROKER = "select pg_try_advisory_lock(hashtextextended(session_user, 7305427011))"
WANT_BROKER = "select notifyq.want_broker(role => session_user, wanted => true)"
BROKER_OF = "select session_user::text as role, current_database()::text as database"
BROKER_STATUS = "select * from messages.status_broker()"
STOP_BROKER = "select messages.stop_broker(patience => $1)"
CURRENT_XACT_ID = "select pg_current_xact_id()::text"
POSITION = "select messages.current_position()"
KNOWN_POSITION = "select messages.known_position($1)"
# One statement, so one snapshot: the position belongs to the rows.
DEAD_SINCE = """
select messages.current_position() as position, d.*
from (select) as once
left join messages.dead_since(seen => $1, queue => $2) as d on true
"""
DEAD_FROM = """
select messages.current_position() as position, d.*
from (select) as once
left join messages.dead_since(queue => $2) as d on d.archived_at >= $1
"""
RECEIVE = "select * from messages.receive(source => $1, messages => $2::text::jsonb)"
# One row of arrays: values that only go on to another database need no decoding.
RELAY_CLAIM = """
select array_agg(c.id) as ids, array_agg(c.lock_token) as tokens, array_agg(b.us) as created,
  array_agg(c.queue) as queues, array_agg(c.message::text) as messages,
  array_agg(c.priority) as priorities, array_agg(c.type) as types,
  array_agg(c.headers::text) as headers, array_agg(c.key) as keys,
  array_agg(coalesce(c.dedup_key, c.given_up_key)) as dedup_keys,
  array_agg(c.dedup_scope) as dedup_scopes, array_agg(c.max_attempts) as max_attempts,
  array_agg(c.attempts) as attempts, max(b.age) as age
from (select r.* from notifyq.relay_claim(queues => $1, quantity => $2, lock_duration => $3,
  worker => $4, filter => $5::jsonpath, full_scan => $6) as r order by r.id) as c,
  lateral (select
    case when isfinite(c.created_at) then (extract(epoch from c.created_at) * 1000000)::bigint
      else 0 end as us,
    case when isfinite(c.available_at) then
      extract(epoch from clock_timestamp() - c.available_at)::float8 end as age) as b
"""
RELAY_FINISH = """
select notifyq.relay_finish(
  target => $1, source => $2, \"position\" => $3, ids => $4, lock_tokens => $5, created => $6,
  statuses => $7::messages.message_status[], details => $8, results => $9::text[]::jsonb[])
"""
RELAY_SOURCE = "select notifyq.relay_source()"
RELAY_TARGET = "select notifyq.relay_target()"
RELAY_MARKS = "select notifyq.relay_marks(target => $1, source => $2, within => $3)"
RELAY_FORGET = "select notifyq.relay_forget(target => $1)"
RECEIVE_MANY = """
select r.* from notifyq.receive_many(source => $1, positions => $2, queues => $3,
  messages => $4::text[]::jsonb[], priorities => $5, types => $6, headers => $7::text[]::jsonb[],
  keys => $8, dedup_keys => $9, dedup_scopes => $10, max_attempts => $11, after => $12,
  remember => $13) as r
"""
RECEIVE_DEAD = """
select notifyq.receive_dead(source => $1, receipt => $2, queue => $3,
  message => $4::text::jsonb, type => $5, headers => $6::text::jsonb, key => $7, details => $8,
  remember => $9)
"""
IS_FOREIGN = "select notifyq.is_foreign(notifyq.current_origin())"
ADOPT = "select messages.adopt()"

DROP_STREAM = "select messages.drop_stream(name => $1, force => $2)"
PAUSE_STREAM = "select messages.pause_stream(name => $1)"
RESUME_STREAM = "select messages.resume_stream(name => $1)"
STREAM_INFO = "select * from messages.stream_info(stream => $1)"
SUBSCRIBE = 'select messages.subscribe(stream => $1, subscriber => $2, "position" => $3)'
UNSUBSCRIBE = "select messages.unsubscribe(stream => $1, subscriber => $2)"
FORWARD = 'select messages.forward($1, $2, $3, "position" => $4, filter => $5::text::jsonpath)'
UNFORWARD = "select messages.unforward(stream => $1, subscriber => $2, keep => $3)"
FORWARDS = "select * from messages.forwards(stream => $1)"
SEEK = 'select messages.seek(stream => $1, subscriber => $2, "position" => $3)'
TICK = "select messages.tick(stream => $1)"
SUBSCRIPTION_INFO = "select * from messages.subscription_info(stream => $1, subscriber => $2)"
NEXT_BATCH = "select messages.next_batch($1, $2, quantity => $3, member => $4, takeover => $5)"
# One round trip. The offset keeps batch_events() from being called without a batch.
NEXT_EVENTS = """
select b.id as batch, e.*
from messages.next_batch($1, $2, quantity => $3, member => $4, takeover => $5) as b (id)
left join lateral (
  select v.* from messages.batch_events(batch => b.id) as v where b.id is not null offset 0
) as e on true
"""
# It outlives its transaction: none is open while the caller works on the fetched events.
HOLD_EVENTS = """
declare notifyq_events cursor with hold for select * from messages.batch_events(batch => $1)
"""
FETCH_EVENTS = "fetch 1000 from notifyq_events"
CLOSE_EVENTS = "close notifyq_events"
RETRY_EVENT = "select messages.retry_event(batch => $1, event => $2, delay => $3, reason => $4)"
FAIL_EVENT = "select messages.fail_event(batch => $1, event => $2, reason => $3)"
RETRY_EVENTS = """
select messages.retry_event(batch => $1, event => u.event, delay => u.delay, reason => u.reason)
from unnest($2::bigint[], $3::interval[], $4::text[]) as u (event, delay, reason)
"""
FAIL_EVENTS = """
select messages.fail_event(batch => $1, event => u.event, reason => u.reason, status => u.status)
from unnest($2::bigint[], $3::text[], $4::messages.message_status[]) as u (event, reason, status)
"""
FINISH_BATCH = "select messages.finish_batch(batch => $1)"
RELEASE_BATCH = "select messages.release_batch(batch => $1)"
RECOVER_BATCH = """
select messages.recover_batch($1, $2, max_attempts => $3, member => $4, keeps_order => $5)
"""
NEXT_RETRY = "select notifyq.next_retry(stream => $1, subscriber => $2)"
# One statement, so one snapshot: the position belongs to the rows.
EVENTS_SINCE = """
select messages.current_position() as position, e.*
from (select) as once
left join messages.events_since(stream => $2, seen => $1) as e on true
"""
SUPPRESS_STREAM = "select notifyq.suppress_stream(stream => $1, eager => $2)"
UNSUPPRESS_STREAMS = "select notifyq.unsuppress_streams(streams => $1)::text"
NOTIFY_STREAMS = "select true from unnest($1::text[]) as u (name), pg_notify('new_event', u.name)"
ENCRYPTED_NAMES = "select e.name from notifyq.encrypted_names() as e (name)"
PAYLOAD_SCHEMA = "select messages.payload_schema(queue => $1)"
LAKES = "select l.*, clock_timestamp() - l.exported_at as idle from messages.lakes() as l"
FORGET = """
    select jsonb_build_array(f.counts, f.next)::text
    from messages.forget(
      $1, $2::text::jsonpath, $3, after => $4::text::jsonb, live => $5, dry_run => $6
    ) as f
"""
LAKE_FILES = """
    select count(*), min(f.day), max(f.day)
    from messages.lake_files($1) as f
    where coalesce(f.queue = $2, true)
"""

NEW_EVENT = "new_event"
NEW_MESSAGE = "new_message"
DEAD_MESSAGE = "dead_message"
FINISHED_MESSAGE = "finished_message"
CANCELLED_MESSAGE = "cancelled_message"
MESSAGE_OUTPUT = "message_output"

SESSION = """
select count(*)
from pg_stat_activity as a
where a.application_name = $1
  and a.datname = current_database()
  and a.client_addr is not distinct from inet_client_addr()
"""

WORKER_HEARTBEAT = """
select notifyq.worker_heartbeat(
  worker => $1, queues => $2, streams => $3, concurrency => $4, running => $5,
  is_stopping => $6, host => $7, pid => $8, version => $9, blocked_for => $10)
"""
REMOVE_WORKER = "select notifyq.remove_worker(worker => $1)"


@cache
def with_logs(statement: str) -> str:
    """The statement that also keeps logs: the arguments of KEEP_LOGS follow its own."""
    own = statement.count("$")
    keep = re.sub(r"\$(\d)", lambda found: f"${own + int(found[1])}", KEEP_LOGS)
    # Both are constants of this module.
    return f"with kept as ({keep}) select s.* from kept, lateral ({statement}) as s"  # noqa: S608
