-- Attempt: one row for each attempt that did not succeed, kept by day and dropped by day.
--
-- owns:    messages.attempt, messages.attempt_default
-- writes:  nothing
-- raises:  nothing

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
