-- Archive: finished messages, the history of their attempts, and how long they are kept.

create table if not exists messages.message_archive (
  id bigint not null,
  created_at timestamptz not null,
  available_at timestamptz not null,
  locked_at timestamptz,
  archived_at timestamptz not null default clock_timestamp(),
  lock_token bigint not null,
  xid xid8 not null default pg_current_xact_id(),
  priority integer not null,
  attempts integer not null,
  status messages.message_status not null,
  queue text not null,
  type text,
  handled_by text,
  dedup_key text,
  message jsonb not null,
  headers jsonb not null,
  details text,
  result jsonb,
  key text,
  max_attempts integer,
  awaited boolean not null default false,
  subscriber text,
  event_id bigint,
  root_id bigint,
  -- Null costs no bytes: the bitmap of nulls has room for it.
  cancelled_by text,
  -- A primary key of a partitioned table includes the partition column. It cannot prevent a second
  -- row for an id: the fenced delete in notifyq.archive() does.
  constraint message_archive_id_archived_at_pk primary key (id, archived_at)
) partition by range (archived_at);

-- Takes rows of days without a partition; messages.maintain() moves them into their day.
create table if not exists notifyq.message_archive_default
  partition of messages.message_archive default;

-- Readers that follow the archive compare xid with snapshots: by id or time they miss late commits.
create index if not exists message_archive_xid_idx on messages.message_archive (xid);
create index if not exists message_archive_queue_archived_at_idx
  on messages.message_archive (queue, archived_at);
create index if not exists message_archive_failed_archived_at_idx
  on messages.message_archive (archived_at) where status <> 'success';
-- The condition of notifyq.is_dead(): readers of dead messages skip any number of cancelled ones.
create index if not exists message_archive_dead_archived_at_idx
  on messages.message_archive (archived_at) where status <> 'success' and cancelled_by is null;
-- Dead messages of one queue, counted by an index-only scan.
create index if not exists message_archive_dead_queue_archived_at_id_idx
  on messages.message_archive (queue, archived_at, id) include (status, subscriber, cancelled_by)
  where status <> 'success';
create index if not exists message_archive_dead_xid_idx
  on messages.message_archive (xid) where status <> 'success' and cancelled_by is null;

comment on table messages.message_archive is
  'One row for each finished message under the same id; rows never change.';
comment on column messages.message_archive.locked_at is
  'When the last lock was granted; null for a message that was never claimed.';
comment on column messages.message_archive.handled_by is 'The worker that held the last lock.';
comment on column messages.message_archive.xid is
  'The transaction that archived it: incremental readers compare it with snapshots.';
comment on column messages.message_archive.details is 'Why it did not succeed.';
comment on column messages.message_archive.root_id is
  'The message whose recorded steps this one continued, see messages.message.root_id.';
comment on column messages.message_archive.cancelled_by is
  'Who cancelled it, or a message that it waited for: as given to cancel(), else the user of the '
  'session. Null: it was not cancelled. A cancelled message is not dead.';
comment on column messages.message_archive.result is 'What the handler returned.';

create table if not exists messages.attempt (
  message_id bigint not null,
  lock_token bigint not null,
  locked_at timestamptz not null,
  ended_at timestamptz not null default clock_timestamp(),
  retry_at timestamptz,
  number integer not null,
  status messages.message_status not null,
  queue text not null,
  handled_by text,
  error_type text,
  details text,
  traceback text,
  constraint attempt_message_id_lock_token_ended_at_pk
    primary key (message_id, lock_token, ended_at)
) partition by range (ended_at);

create table if not exists notifyq.attempt_default
  partition of messages.attempt default;

comment on table messages.attempt is
  'One row for each attempt that did not succeed; read it with messages.attempts().';
comment on column messages.attempt.message_id is 'The message, live or archived.';
comment on column messages.attempt.lock_token is 'The lock that the attempt was made under.';
comment on column messages.attempt.locked_at is 'When the attempt began.';
comment on column messages.attempt.ended_at is
  'When it ended; after a crash of the worker, when its lock was found expired.';
comment on column messages.attempt.retry_at is
  'From when the message could be claimed again; null: this was the last attempt.';
comment on column messages.attempt.number is 'The number of the attempt; the first is 1.';
comment on column messages.attempt.status is 'How it ended; the status of the last one is final.';
comment on column messages.attempt.queue is 'The queue of the message.';
comment on column messages.attempt.handled_by is 'The worker that held the lock.';
comment on column messages.attempt.error_type is
  'The class of the error; null: there was none, or the worker did not report it.';
comment on column messages.attempt.details is 'The text of the error, or what else went wrong.';
comment on column messages.attempt.traceback is
  'The traceback of the error, with the errors that caused it.';

do $$
begin
  if to_regtype('notifyq.log_line') is null then
    create type notifyq.log_line as (
      created_at timestamptz,
      level text,
      logger text,
      text text
    );
  end if;
end;
$$;

comment on type notifyq.log_line is 'One log record of a call of a handler, as it is stored.';

create table if not exists notifyq.attempt_log (
  message_id bigint not null,
  lock_token bigint not null,
  ended_at timestamptz not null default clock_timestamp(),
  attempt integer not null,
  queue text not null,
  lines notifyq.log_line[] not null,
  constraint attempt_log_message_id_lock_token_ended_at_pk
    primary key (message_id, lock_token, ended_at)
) partition by range (ended_at);

create table if not exists notifyq.attempt_log_default
  partition of notifyq.attempt_log default;

create index if not exists attempt_log_queue_idx on notifyq.attempt_log (queue);

comment on table notifyq.attempt_log is
  'The log records of each call of a handler, where the App captures them; read them with '
  'messages.logs().';
comment on column notifyq.attempt_log.message_id is 'The message, live or archived.';
comment on column notifyq.attempt_log.lock_token is 'The lock that the call was made under.';
comment on column notifyq.attempt_log.ended_at is 'When the call had ended.';
comment on column notifyq.attempt_log.attempt is
  'The number of the attempt; a parked message is called again under the same number.';
comment on column notifyq.attempt_log.queue is 'The queue of the message at that time.';
comment on column notifyq.attempt_log.lines is 'The records, in their order.';

create table if not exists messages.archive_policy (
  id bigint not null default 1,
  retention interval,
  retention_dead interval,
  days_ahead integer not null default 3,
  constraint archive_policy_id_pk primary key (id),
  constraint archive_policy_id_ck check (id = 1),
  constraint archive_policy_retention_ck check (
    retention > interval '0' and retention_dead > interval '0'
  ),
  constraint archive_policy_days_ahead_ck check (days_ahead between 1 and 366)
);

comment on table messages.archive_policy is
  'The policy of the whole archive; without a row, the defaults apply.';
comment on column messages.archive_policy.id is 'Always 1.';
comment on column messages.archive_policy.retention is
  'Default for new queues (null: 30 days), and retention of dropped queues and of dead events '
  '(null: the longest of all queues).';
comment on column messages.archive_policy.retention_dead is
  'The same for messages that did not succeed; null: as retention.';
comment on column messages.archive_policy.days_ahead is
  'For how many days after today partitions are created.';

create table if not exists notifyq.retention_day (
  relation text not null,
  next_at timestamptz not null,
  policy bigint not null,
  block bigint,
  removed bigint not null default 0,
  constraint retention_day_relation_pk primary key (relation)
);

comment on table notifyq.retention_day is
  'One row for each day of the archive, the attempts and the logs that was scanned for rows past '
  'the retention of their queue.';
comment on column notifyq.retention_day.relation is 'The table of the day.';
comment on column notifyq.retention_day.next_at is 'When it is scanned again.';
comment on column notifyq.retention_day.policy is
  'A hash of all retentions at that scan: when they change, the day is scanned again.';
comment on column notifyq.retention_day.block is
  'Where the pass through its blocks continues; null: no pass is running.';

do $$
begin
  if to_regtype('messages.log_record') is null then
    create type messages.log_record as (
      attempt integer,
      level text,
      logger text,
      text text,
      created_at timestamptz,
      lock_token bigint
    );
  end if;
  if to_regtype('notifyq.queue_keep') is null then
    create type notifyq.queue_keep as (
      queue text,
      success interval,
      dead interval
    );
  end if;
  if to_regtype('notifyq.day_plan') is null then
    create type notifyq.day_plan as (
      relation text,
      queues text[],
      success text[],
      dead text[],
      gone text[],
      brief text[],
      next_at timestamptz
    );
  end if;
  if to_regtype('messages.retention_report') is null then
    create type messages.retention_report as (
      queue text,
      is_known boolean,
      retention interval,
      retention_dead interval,
      rows bigint,
      dead bigint,
      bytes bigint,
      first_day date
    );
  end if;
  if to_regtype('messages.day_report') is null then
    create type messages.day_report as (
      day date,
      rows bigint,
      dead bigint,
      is_exact boolean,
      bytes bigint,
      attempt_bytes bigint,
      removed bigint,
      goes_at timestamptz,
      next_at timestamptz,
      next_step text,
      awaits text
    );
  end if;
end;
$$;

comment on type messages.log_record is
  'One log record of a handler, as messages.logs() reports it; its time is that of the worker.';
comment on type notifyq.queue_keep is 'How long the messages of a queue stay in the archive.';
comment on type notifyq.day_plan is
  'Which rows of a day stay: all of the queues in queues, those that succeeded in success, and '
  'those that did not in dead; none of those in gone.';
comment on type messages.retention_report is 'One queue as messages.retention_info() reports it.';
comment on type messages.day_report is 'One day as messages.archive_info() reports it.';
