-- Archive: finished messages and attempts that did not succeed, kept by day and dropped by day.
--
-- owns:    messages.message_archive, messages.message_archive_default, messages.attempt,
--          messages.attempt_default
-- writes:  nothing
-- raises:  nothing

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
  -- A key over partitions must hold the partition column, so it cannot forbid a second row for an
  -- id: the fenced delete in messages._archive() does.
  constraint message_archive_id_archived_at_pk primary key (id, archived_at)
) partition by range (archived_at);

-- Catches rows for which no day was made; messages.maintain() moves them into their day.
create table if not exists messages.message_archive_default
  partition of messages.message_archive default;

-- Readers that follow the archive go by snapshots over xid: by id or time a late commit is lost.
create index if not exists message_archive_xid_idx on messages.message_archive (xid);
create index if not exists message_archive_queue_archived_at_idx
  on messages.message_archive (queue, archived_at);
create index if not exists message_archive_dead_archived_at_idx
  on messages.message_archive (archived_at) where status <> 'success';
-- Of one queue, and counted without a look at the rows.
create index if not exists message_archive_dead_queue_archived_at_id_idx
  on messages.message_archive (queue, archived_at, id) include (status, subscriber)
  where status <> 'success';
create index if not exists message_archive_dead_xid_idx
  on messages.message_archive (xid) where status <> 'success';

comment on table messages.message_archive is
  'One row for each finished message under the same id; rows never change.';
comment on column messages.message_archive.locked_at is
  'When the last lock was granted; null for a message that was never claimed.';
comment on column messages.message_archive.handled_by is 'The worker that held the last lock.';
comment on column messages.message_archive.xid is
  'The transaction that archived it: incremental readers compare it with snapshots.';
comment on column messages.message_archive.details is 'Why it did not succeed.';
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

-- Catches rows for which no day was made, as that of the archive does.
create table if not exists messages.attempt_default
  partition of messages.attempt default;

comment on table messages.attempt is
  'One row for each attempt that did not succeed; read it with messages.attempts().';
comment on column messages.attempt.message_id is 'The message, live or archived.';
comment on column messages.attempt.lock_token is 'The lock that the attempt was made under.';
comment on column messages.attempt.locked_at is 'When the attempt began.';
comment on column messages.attempt.ended_at is
  'When it ended; for a worker that died, when its lock was found expired.';
comment on column messages.attempt.retry_at is
  'When the message was to be handed out again; null: this was the last attempt.';
comment on column messages.attempt.number is 'Which attempt of the message it was, from 1 on.';
comment on column messages.attempt.status is 'How it ended; the status of the last one is final.';
comment on column messages.attempt.queue is 'The queue of the message.';
comment on column messages.attempt.handled_by is 'The worker that held the lock.';
comment on column messages.attempt.error_type is
  'The class of the error; null where there was none, or the worker did not tell.';
comment on column messages.attempt.details is 'The text of the error, or what else went wrong.';
comment on column messages.attempt.traceback is
  'Where the error came from, with the errors that caused it.';
