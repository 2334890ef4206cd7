-- Rollup: what became of the messages of a lake, counted by bucket of time.
--
-- owns:    messages.rollup, messages.rollup_error, messages.rollup_worker,
--          messages.rollup_progress, types rollup_report, error_report and worker_report of
--          messages
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.rollup (
  lake bigint not null,
  span text not null,
  bucket_at timestamptz not null,
  queue text not null,
  type text not null,
  status messages.message_status not null,
  finished bigint not null,
  retried bigint not null,
  attempts bigint not null,
  waited bigint not null,
  wait_total_us bigint not null,
  wait_max_us bigint not null,
  wait_bins integer[] not null,
  wait_counts bigint[] not null,
  ran bigint not null,
  run_total_us bigint not null,
  run_max_us bigint not null,
  run_bins integer[] not null,
  run_counts bigint[] not null,
  constraint rollup_bucket_pk primary key (lake, span, bucket_at, queue, type, status),
  constraint rollup_span_ck check (span in ('hour', 'day')),
  constraint rollup_lake_fk foreign key (lake) references messages.lake (id) on delete cascade
);

-- Folding looks for the oldest hours of any lake.
create index if not exists rollup_hour_idx on messages.rollup (bucket_at) where span = 'hour';

comment on table messages.rollup is
  'Messages that a lake holds, counted by hour of archived_at in UTC, queue, type and status; '
  'each roll-up folds hours older than 35 days into days. finished sums up to the messages that '
  'are rolled up. Times are histograms whose counts may be added; read them with '
  'messages.rollup_summary().';
comment on column messages.rollup.lake is 'Number of the lake.';
comment on column messages.rollup.span is 'Length of the bucket: hour or day.';
comment on column messages.rollup.bucket_at is 'When the bucket begins.';
comment on column messages.rollup.queue is 'Their queue; for dead events the stream.';
comment on column messages.rollup.type is 'Their type; empty for messages without one.';
comment on column messages.rollup.status is 'How they ended.';
comment on column messages.rollup.finished is 'How many they are.';
comment on column messages.rollup.retried is 'How many of them took more than one attempt.';
comment on column messages.rollup.attempts is 'How many attempts they took together.';
comment on column messages.rollup.waited is
  'How many were handed out, and so have a time of waiting: from when they could be claimed '
  '(available_at, or created_at if later) to the last lock.';
comment on column messages.rollup.wait_total_us is 'That time of all together, in microseconds.';
comment on column messages.rollup.wait_max_us is 'The longest, in microseconds.';
comment on column messages.rollup.wait_bins is
  'Which times there are: bin b holds times up to 1.02 ^ b milliseconds, above that of bin b - 1; '
  'bin -349 holds zero.';
comment on column messages.rollup.wait_counts is 'How many messages are in each of the bins.';
comment on column messages.rollup.ran is
  'How many have a time of running: from the last lock to archived_at.';
comment on column messages.rollup.run_total_us is 'That time of all together, in microseconds.';
comment on column messages.rollup.run_max_us is 'The longest, in microseconds.';
comment on column messages.rollup.run_bins is 'As wait_bins.';
comment on column messages.rollup.run_counts is 'As wait_counts.';

create table if not exists messages.rollup_error (
  lake bigint not null,
  span text not null,
  bucket_at timestamptz not null,
  queue text not null,
  status messages.message_status not null,
  fingerprint text not null,
  errors bigint not null,
  first_at timestamptz not null,
  last_at timestamptz not null,
  sample text,
  constraint rollup_error_bucket_pk
    primary key (lake, span, bucket_at, queue, status, fingerprint),
  constraint rollup_error_lake_fk foreign key (lake)
    references messages.lake (id) on delete cascade
);

create index if not exists rollup_error_hour_idx
  on messages.rollup_error (bucket_at) where span = 'hour';

comment on table messages.rollup_error is
  'Dead messages of a lake, counted by bucket and fingerprint of their details. Of a bucket, '
  'queue and status the 100 most frequent are kept apart; the others are one, named (others).';
comment on column messages.rollup_error.lake is 'Number of the lake.';
comment on column messages.rollup_error.span is 'Length of the bucket: hour or day.';
comment on column messages.rollup_error.bucket_at is 'When the bucket begins.';
comment on column messages.rollup_error.queue is 'Their queue; for dead events the stream.';
comment on column messages.rollup_error.status is 'How they ended.';
comment on column messages.rollup_error.fingerprint is 'See messages.error_fingerprint().';
comment on column messages.rollup_error.errors is 'How many they are.';
comment on column messages.rollup_error.first_at is 'When the first was archived.';
comment on column messages.rollup_error.last_at is 'When the last was archived.';
comment on column messages.rollup_error.sample is 'The details of the last one.';

create table if not exists messages.rollup_worker (
  lake bigint not null,
  span text not null,
  bucket_at timestamptz not null,
  queue text not null,
  worker text not null,
  finished bigint not null,
  dead bigint not null,
  run_total_us bigint not null,
  constraint rollup_worker_bucket_pk primary key (lake, span, bucket_at, queue, worker),
  constraint rollup_worker_lake_fk foreign key (lake)
    references messages.lake (id) on delete cascade
);

create index if not exists rollup_worker_hour_idx
  on messages.rollup_worker (bucket_at) where span = 'hour';

comment on table messages.rollup_worker is
  'Messages of a lake, counted by bucket and the worker that held the last lock. Of a bucket and '
  'queue the 20 busiest are kept apart; the others are one, named (others).';
comment on column messages.rollup_worker.lake is 'Number of the lake.';
comment on column messages.rollup_worker.span is 'Length of the bucket: hour or day.';
comment on column messages.rollup_worker.bucket_at is 'When the bucket begins.';
comment on column messages.rollup_worker.queue is 'The queue; for dead events the stream.';
comment on column messages.rollup_worker.worker is 'handled_by; empty where no worker had it.';
comment on column messages.rollup_worker.finished is 'How many messages.';
comment on column messages.rollup_worker.dead is 'How many of them did not succeed.';
comment on column messages.rollup_worker.run_total_us is
  'How long they ran together, in microseconds.';

create table if not exists messages.rollup_progress (
  lake bigint not null,
  batch bigint not null,
  messages bigint not null default 0,
  rolled_at timestamptz not null default clock_timestamp(),
  xid xid8 not null default pg_current_xact_id(),
  constraint rollup_progress_lake_pk primary key (lake),
  constraint rollup_progress_lake_fk foreign key (lake)
    references messages.lake (id) on delete cascade
);

comment on table messages.rollup_progress is 'How far each lake is rolled up.';
comment on column messages.rollup_progress.lake is 'Number of the lake.';
comment on column messages.rollup_progress.batch is 'The last of its batches that is.';
comment on column messages.rollup_progress.messages is 'How many messages are, in all.';
comment on column messages.rollup_progress.rolled_at is 'When that was.';
comment on column messages.rollup_progress.xid is
  'The transaction that did it, the only one that may add to the roll-up of the lake.';

do $$
begin
  if to_regtype('messages.rollup_report') is null then
    create type messages.rollup_report as (
      bucket_at timestamptz,
      queue text,
      type text,
      status messages.message_status,
      finished bigint,
      dead bigint,
      retried bigint,
      attempts bigint,
      wait_mean interval,
      wait_p50 interval,
      wait_p95 interval,
      wait_p99 interval,
      wait_max interval,
      run_mean interval,
      run_p50 interval,
      run_p95 interval,
      run_p99 interval,
      run_max interval
    );
  end if;
  if to_regtype('messages.error_report') is null then
    create type messages.error_report as (
      fingerprint text,
      errors bigint,
      queues text[],
      statuses messages.message_status[],
      first_at timestamptz,
      last_at timestamptz,
      sample text
    );
  end if;
  if to_regtype('messages.worker_report') is null then
    create type messages.worker_report as (
      worker text,
      queues text[],
      finished bigint,
      dead bigint,
      run_total interval
    );
  end if;
end;
$$;

comment on type messages.rollup_report is
  'One group as messages.rollup_summary() reports it; what it was not grouped by is null.';
comment on type messages.error_report is 'One fingerprint as messages.rollup_errors() reports it.';
comment on type messages.worker_report is 'One worker as messages.rollup_workers() reports it.';
