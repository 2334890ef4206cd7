-- Durable: recorded steps of messages, what they wait for, signals, progress and output.

create table if not exists notifyq.step (
  message_id bigint not null,
  number integer not null,
  name text not null,
  kind text not null,
  state text,
  queue text not null,
  attempt integer not null,
  created_at timestamptz not null default clock_timestamp(),
  due_at timestamptz,
  child_id bigint,
  pending integer,
  value jsonb,
  constraint step_message_id_name_pk primary key (message_id, name),
  constraint step_message_id_number_uq unique (message_id, number),
  constraint step_kind_ck check (kind in ('step', 'sleep', 'signal', 'end')),
  constraint step_state_ck check (state in ('done', 'failed', 'received', 'timed_out'))
);

create index if not exists step_child_id_idx on notifyq.step (child_id)
  where child_id is not null;

create index if not exists step_open_idx on notifyq.step (queue) where state is null;

comment on table notifyq.step is
  'Steps of live messages: what a handler has done, and what it waits for. They move to '
  'step_archive with their message.';
comment on column notifyq.step.message_id is 'The message.';
comment on column notifyq.step.number is 'The order of recording, from 1 on.';
comment on column notifyq.step.name is 'Its name, once in a message.';
comment on column notifyq.step.kind is 'step, sleep, signal (a wait for one) or end (of messages).';
comment on column notifyq.step.state is
  'done, failed, received or timed_out; null: the message still waits for it.';
comment on column notifyq.step.queue is 'The queue of the message.';
comment on column notifyq.step.attempt is 'The attempt of the message that recorded it.';
comment on column notifyq.step.created_at is 'When it was recorded, or began to wait.';
comment on column notifyq.step.due_at is
  'The end of a sleep, or the deadline of a wait; infinity: none.';
comment on column notifyq.step.child_id is 'The message that this step published.';
comment on column notifyq.step.pending is 'For how many ends it waits.';
comment on column notifyq.step.value is 'What the step returned, or the payload received.';

create table if not exists notifyq.step_archive (
  like notifyq.step including comments,
  archived_at timestamptz not null default clock_timestamp(),
  constraint step_archive_message_id_name_archived_at_pk
    primary key (message_id, name, archived_at)
) partition by range (archived_at);

create table if not exists notifyq.step_archive_default
  partition of notifyq.step_archive default;

comment on table notifyq.step_archive is
  'Steps of finished messages, in a table for each day, which goes with that of the archive.';
comment on column notifyq.step_archive.archived_at is 'When the message was archived.';

create table if not exists notifyq.signal_wait (
  message_id bigint not null,
  step text not null,
  signal text not null,
  is_new boolean not null default true,
  constraint signal_wait_message_id_step_signal_pk primary key (message_id, step, signal)
);

create index if not exists signal_wait_signal_idx on notifyq.signal_wait (signal, message_id);
create index if not exists signal_wait_new_idx on notifyq.signal_wait (message_id)
  where is_new;

comment on table notifyq.signal_wait is 'Which step of which message waits for which signal.';
comment on column notifyq.signal_wait.message_id is 'The message that waits.';
comment on column notifyq.signal_wait.step is 'Its step.';
comment on column notifyq.signal_wait.signal is 'The name of the signal.';
comment on column notifyq.signal_wait.is_new is
  'Whether maintenance has yet to look for a signal, once after each parking.';

create table if not exists notifyq.end_wait (
  message_id bigint not null,
  step text not null,
  position integer not null,
  after_id bigint not null,
  queue text,
  attempts integer,
  status messages.message_status,
  details text,
  result jsonb,
  constraint end_wait_message_id_step_after_id_pk primary key (message_id, step, after_id)
);

create index if not exists end_wait_after_id_idx on notifyq.end_wait (after_id)
  where status is null;

comment on table notifyq.end_wait is 'Which step of which message waits for the end of which.';
comment on column notifyq.end_wait.message_id is 'The message that waits.';
comment on column notifyq.end_wait.step is 'Its step.';
comment on column notifyq.end_wait.position is 'The position of the other in the list, from 1 on.';
comment on column notifyq.end_wait.after_id is 'The message whose end it waits for.';
comment on column notifyq.end_wait.queue is 'Its queue.';
comment on column notifyq.end_wait.attempts is 'How many attempts it had.';
comment on column notifyq.end_wait.status is 'How that ended first; null: it has not.';
comment on column notifyq.end_wait.details is 'Why it did not succeed.';
comment on column notifyq.end_wait.result is 'What its handler returned.';

create table if not exists notifyq.signal (
  id bigint generated always as identity,
  name text not null,
  message_id bigint,
  payload jsonb not null,
  sent_at timestamptz not null default clock_timestamp(),
  forget_at timestamptz not null,
  is_new boolean not null default true,
  constraint signal_id_pk primary key (id)
);

create unique index if not exists signal_name_uq on notifyq.signal (name)
  where message_id is null;
create index if not exists signal_message_id_name_idx on notifyq.signal (message_id, name, id)
  where message_id is not null;
create index if not exists signal_forget_at_idx on notifyq.signal (forget_at);
create index if not exists signal_new_idx on notifyq.signal (id)
  where is_new;

comment on table notifyq.signal is
  'Signals that were sent: those to everybody, one for each name, and those to one message, until '
  'it has received them.';
comment on column notifyq.signal.id is 'Rises with each signal.';
comment on column notifyq.signal.name is 'The name that waits go by.';
comment on column notifyq.signal.message_id is 'The message that it is for; null: all.';
comment on column notifyq.signal.payload is 'What the waits receive.';
comment on column notifyq.signal.sent_at is 'When it was sent.';
comment on column notifyq.signal.forget_at is
  'When maintenance removes it, unless a live message may still receive it.';
comment on column notifyq.signal.is_new is
  'Whether maintenance has yet to look for waits, once after it was sent.';

create unlogged table if not exists notifyq.message_progress (
  message_id bigint not null,
  fraction real not null,
  note text,
  updated_at timestamptz not null default clock_timestamp(),
  constraint message_progress_message_id_pk primary key (message_id)
) with (fillfactor = 50);

comment on table notifyq.message_progress is 'How far handlers are; nothing survives a crash.';
comment on column notifyq.message_progress.message_id is 'The message.';
comment on column notifyq.message_progress.fraction is 'From 0 to 1.';
comment on column notifyq.message_progress.note is 'What it does now.';
comment on column notifyq.message_progress.updated_at is 'When that was reported.';

create table if not exists notifyq.message_output (
  message_id bigint not null,
  number bigint not null,
  attempt integer not null,
  created_at timestamptz not null default clock_timestamp(),
  forget_at timestamptz,
  chunk jsonb not null,
  constraint message_output_message_id_number_pk primary key (message_id, number)
);

create index if not exists message_output_forget_at_idx on notifyq.message_output (forget_at)
  where forget_at is not null;

comment on table notifyq.message_output is 'Partial output of handlers, until a day after the end.';
comment on column notifyq.message_output.message_id is 'The message.';
comment on column notifyq.message_output.number is 'Rises over all attempts, from 1 on.';
comment on column notifyq.message_output.attempt is 'The attempt that emitted it.';
comment on column notifyq.message_output.created_at is 'When it was emitted.';
comment on column notifyq.message_output.forget_at is
  'When maintenance removes it; null: its message is live.';
comment on column notifyq.message_output.chunk is 'The chunk.';

do $$
begin
  if to_regtype('messages.recorded_step') is null then
    create type messages.recorded_step as (
      name text,
      value jsonb,
      attempt integer,
      created_at timestamptz,
      kind text,
      state text
    );
  end if;
  if to_regtype('messages.end_report') is null then
    create type messages.end_report as (
      state text,
      message_id bigint,
      status messages.message_status,
      details text,
      result jsonb
    );
  end if;
  if to_regtype('messages.parked_report') is null then
    create type messages.parked_report as (
      id bigint,
      queue text,
      name text,
      kind text,
      waits_for text,
      since timestamptz,
      until timestamptz
    );
  end if;
  if to_regtype('messages.progress_report') is null then
    create type messages.progress_report as (
      fraction real,
      note text,
      updated_at timestamptz
    );
  end if;
  if to_regtype('messages.output_chunk') is null then
    create type messages.output_chunk as (
      number bigint,
      chunk jsonb,
      created_at timestamptz,
      attempt integer
    );
  end if;
end;
$$;

comment on type messages.recorded_step is 'One recorded step, as messages.steps() reports it.';
comment on type messages.end_report is 'How a message ended that another one has waited for.';
comment on type messages.parked_report is 'What a parked message waits for.';
comment on type messages.progress_report is 'How far the handler of a message is.';
comment on type messages.output_chunk is 'A part of the output of a handler.';
