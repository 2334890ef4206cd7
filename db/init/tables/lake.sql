-- Lake: folders of exports, roll-ups and anomalies.

create table if not exists notifyq.lake (
  id bigint generated always as identity,
  token uuid not null default gen_random_uuid(),
  location text not null,
  position text not null,
  created_at timestamptz not null default clock_timestamp(),
  exported_at timestamptz not null default clock_timestamp(),
  unreadable text,
  constraint lake_id_pk primary key (id),
  constraint lake_token_uq unique (token)
);

comment on table notifyq.lake is
  'One row for each lake that the archive is exported into; retention waits for each of them.';
comment on column notifyq.lake.token is 'Identifies the lake, also in a file of its folder.';
comment on column notifyq.lake.position is
  'All that this snapshot sees has been exported; a text as notifyq.snapshot_of() takes it.';
comment on column notifyq.lake.unreadable is
  'Why the last export could not read the lake; retention waits until one can. Null: it could.';

create table if not exists notifyq.lake_batch (
  id bigint generated always as identity,
  lake bigint not null,
  dataset text not null,
  key text,
  low pg_snapshot,
  high pg_snapshot,
  committed_at timestamptz not null default clock_timestamp(),
  files bigint not null default 0,
  removed bigint not null default 0,
  rows bigint not null default 0,
  bytes bigint not null default 0,
  constraint lake_batch_id_pk primary key (id),
  constraint lake_batch_lake_dataset_key_uq unique (lake, dataset, key),
  constraint lake_batch_lake_fk foreign key (lake) references notifyq.lake (id) on delete cascade
);

create index if not exists lake_batch_lake_dataset_id_idx
  on notifyq.lake_batch (lake, dataset, id);

comment on table notifyq.lake_batch is
  'One row for each change of a lake, committed together with its files.';
comment on column notifyq.lake_batch.dataset is 'Which table of the lake: a folder in it.';
comment on column notifyq.lake_batch.key is
  'Name given by the writer: a second batch with the same key does nothing. Null: none.';
comment on column notifyq.lake_batch.low is 'Of an export: what was in the lake before.';
comment on column notifyq.lake_batch.high is 'Of an export: what is in the lake with it.';
comment on column notifyq.lake_batch.files is 'How many files were added.';
comment on column notifyq.lake_batch.removed is 'How many files were replaced.';

create table if not exists messages.lake_file (
  id bigint generated always as identity,
  lake bigint not null,
  dataset text not null,
  batch bigint not null,
  path text not null,
  day date,
  queue text,
  rows bigint not null,
  bytes bigint not null,
  checksum text not null,
  first_id bigint,
  last_id bigint,
  first_at timestamptz,
  last_at timestamptz,
  removed bigint,
  removed_at timestamptz,
  constraint lake_file_id_pk primary key (id),
  constraint lake_file_lake_path_uq unique (lake, path),
  -- Replaced files are deleted by their path: it must not leave the folder.
  constraint lake_file_path_ck check (path !~ '(^/|(^|/)[.][.](/|$))'),
  constraint lake_file_batch_fk foreign key (batch)
    references notifyq.lake_batch (id) on delete cascade,
  constraint lake_file_removed_fk foreign key (removed)
    references notifyq.lake_batch (id) on delete cascade
);

create index if not exists lake_file_batch_idx on messages.lake_file (batch);
create index if not exists lake_file_removed_idx on messages.lake_file (removed);
create index if not exists lake_file_lake_dataset_day_idx
  on messages.lake_file (lake, dataset, day);

comment on table messages.lake_file is
  'One row for each file of a lake; a file without a row is not part of the lake.';
comment on column messages.lake_file.lake is 'Number of the lake.';
comment on column messages.lake_file.dataset is 'Which table of the lake.';
comment on column messages.lake_file.batch is 'The batch that added it.';
comment on column messages.lake_file.path is 'Its path in the folder of the lake.';
comment on column messages.lake_file.day is 'The day in UTC of all its rows; null: more than one.';
comment on column messages.lake_file.queue is 'The queue of all its rows; null: more than one.';
comment on column messages.lake_file.rows is 'How many rows it has.';
comment on column messages.lake_file.bytes is 'Its size.';
comment on column messages.lake_file.checksum is 'SHA-256 of its bytes.';
comment on column messages.lake_file.first_id is 'The smallest id of its rows.';
comment on column messages.lake_file.last_id is 'The largest id of its rows.';
comment on column messages.lake_file.first_at is 'The first instant of its rows.';
comment on column messages.lake_file.last_at is 'The last instant of its rows.';
comment on column messages.lake_file.removed is
  'The batch that replaced it; null: it is part of the lake.';
comment on column messages.lake_file.removed_at is
  'When it was replaced: readers that began before may read it for one more day.';

create table if not exists notifyq.lake_stream (
  lake bigint not null,
  dataset text not null,
  stream text not null,
  position jsonb not null,
  moved_at timestamptz not null default clock_timestamp(),
  constraint lake_stream_lake_dataset_pk primary key (lake, dataset),
  constraint lake_stream_lake_fk foreign key (lake) references notifyq.lake (id) on delete cascade
);

comment on table notifyq.lake_stream is
  'How far each table of a lake has the events of a stream; updated together with its files.';
comment on column notifyq.lake_stream.dataset is 'Which table of the lake.';
comment on column notifyq.lake_stream.stream is 'Whose events it has.';
comment on column notifyq.lake_stream.position is
  'All events up to there are in the table: an offset of the reader of streams.';
comment on column notifyq.lake_stream.moved_at is 'When the last events came in.';

create table if not exists notifyq.lake_prune (
  day date not null,
  lake bigint not null,
  rows bigint not null,
  checksum numeric not null,
  pruned_at timestamptz not null default clock_timestamp(),
  constraint lake_prune_lake_day_pk primary key (lake, day),
  constraint lake_prune_lake_fk foreign key (lake) references notifyq.lake (id) on delete cascade
);

comment on table notifyq.lake_prune is
  'Days whose partition was dropped, because the files of a lake had the same rows.';
comment on column notifyq.lake_prune.checksum is
  'The sum of notifyq.archive_hashes() over its rows.';

create table if not exists notifyq.rollup (
  lake bigint not null,
  span text not null,
  bucket_at timestamptz not null,
  queue text not null,
  type text not null,
  status messages.message_status not null,
  finished bigint not null,
  dead bigint not null,
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
  constraint rollup_lake_fk foreign key (lake) references notifyq.lake (id) on delete cascade
);

-- Finds the hours that are old enough to be folded into days.
create index if not exists rollup_hour_idx on notifyq.rollup (bucket_at) where span = 'hour';

comment on table notifyq.rollup is
  'Messages of a lake, counted by hour of archived_at in UTC, queue, type and status; each roll-up '
  'folds hours older than 35 days into days. Wait and run times are histograms whose counts can be '
  'added; read them with notifyq.rollup_summary().';
comment on column notifyq.rollup.queue is 'Their queue; for dead events the stream.';
comment on column notifyq.rollup.type is 'Their type; empty for messages without one.';
comment on column notifyq.rollup.dead is
  'How many of them are dead: not those that were cancelled.';
comment on column notifyq.rollup.retried is 'How many of them took more than one attempt.';
comment on column notifyq.rollup.waited is
  'How many were claimed. Their wait time goes from when they could be claimed (available_at, or '
  'created_at if later) to the last lock.';
comment on column notifyq.rollup.wait_bins is
  'Bin b counts times over 1.02 ^ (b - 1) and up to 1.02 ^ b milliseconds; bin -349 counts zero.';
comment on column notifyq.rollup.wait_counts is 'How many messages are in each of the bins.';
comment on column notifyq.rollup.ran is
  'How many have a run time: from the last lock to archived_at.';

create table if not exists notifyq.rollup_error (
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
    references notifyq.lake (id) on delete cascade
);

create index if not exists rollup_error_hour_idx
  on notifyq.rollup_error (bucket_at) where span = 'hour';

comment on table notifyq.rollup_error is
  'Dead messages of a lake, counted by bucket and fingerprint of their details. Each bucket, queue '
  'and status has rows for the 100 most frequent, and one for the rest, named (others).';
comment on column notifyq.rollup_error.fingerprint is 'See notifyq.error_fingerprint().';
comment on column notifyq.rollup_error.sample is 'The details of the last one.';

create table if not exists notifyq.rollup_worker (
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
    references notifyq.lake (id) on delete cascade
);

create index if not exists rollup_worker_hour_idx
  on notifyq.rollup_worker (bucket_at) where span = 'hour';

comment on table notifyq.rollup_worker is
  'Messages of a lake, counted by bucket and the worker that held the last lock. Each bucket and '
  'queue has rows for the 20 busiest, and one for the rest, named (others).';
comment on column notifyq.rollup_worker.worker is 'handled_by; empty: no worker had it.';

create table if not exists notifyq.rollup_progress (
  lake bigint not null,
  batch bigint not null,
  messages bigint not null default 0,
  rolled_at timestamptz not null default clock_timestamp(),
  xid xid8 not null default pg_current_xact_id(),
  constraint rollup_progress_lake_pk primary key (lake),
  constraint rollup_progress_lake_fk foreign key (lake)
    references notifyq.lake (id) on delete cascade
);

comment on table notifyq.rollup_progress is 'How far each lake is rolled up.';
comment on column notifyq.rollup_progress.batch is 'The last of its batches that is rolled up.';
comment on column notifyq.rollup_progress.messages is 'How many messages are rolled up.';
comment on column notifyq.rollup_progress.xid is
  'The transaction that rolled it up last: only that one may add counts.';

create table if not exists messages.anomaly (
  bucket_at timestamptz not null,
  found_at timestamptz not null default clock_timestamp(),
  message_id bigint,
  value double precision not null,
  expected double precision not null,
  chance double precision not null,
  finished bigint not null,
  queue text not null,
  metric text not null,
  details text not null,
  constraint anomaly_queue_metric_bucket_at_pk primary key (queue, metric, bucket_at),
  constraint anomaly_metric_ck check (metric in ('wait', 'run', 'failures', 'errors'))
);

create index if not exists anomaly_found_at_idx on messages.anomaly (found_at);

comment on table messages.anomaly is
  'Hours in which a queue deviated from its own past; each is reported once, also if found again.';
comment on column messages.anomaly.bucket_at is 'When the hour begins.';
comment on column messages.anomaly.found_at is 'When it was found.';
comment on column messages.anomaly.message_id is
  'The message that was published about it; null: none.';
comment on column messages.anomaly.value is
  'The value of the metric: p95 in milliseconds for wait and run, the share of dead messages for '
  'failures, for errors how far their mix is from the past, 0 to 1 (Jensen-Shannon divergence).';
comment on column messages.anomaly.expected is 'The value that its past predicts.';
comment on column messages.anomaly.chance is
  'The probability that an hour like those of its past deviates at least as much.';
comment on column messages.anomaly.finished is 'Messages of the queue in that hour.';
comment on column messages.anomaly.queue is 'The queue.';
comment on column messages.anomaly.metric is 'What deviated: wait, run, failures or errors.';
comment on column messages.anomaly.details is 'The same in words.';

do $$
begin
  if to_regtype('notifyq.lake_entry') is null then
    create type notifyq.lake_entry as (
      path text,
      day date,
      queue text,
      rows bigint,
      bytes bigint,
      checksum text,
      first_id bigint,
      last_id bigint,
      first_at timestamptz,
      last_at timestamptz
    );
  end if;
  if to_regtype('messages.lake_report') is null then
    create type messages.lake_report as (
      id bigint,
      token uuid,
      location text,
      created_at timestamptz,
      exported_at timestamptz,
      files bigint,
      rows bigint,
      bytes bigint,
      obstacle text
    );
  end if;
  if to_regtype('notifyq.archive_part') is null then
    create type notifyq.archive_part as (
      day date,
      rows bigint,
      first_block bigint,
      until_block bigint
    );
  end if;
  if to_regtype('notifyq.rollup_report') is null then
    create type notifyq.rollup_report as (
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
  if to_regtype('notifyq.error_report') is null then
    create type notifyq.error_report as (
      fingerprint text,
      errors bigint,
      queues text[],
      statuses messages.message_status[],
      first_at timestamptz,
      last_at timestamptz,
      sample text
    );
  end if;
  if to_regtype('notifyq.worker_report') is null then
    create type notifyq.worker_report as (
      worker text,
      queues text[],
      finished bigint,
      dead bigint,
      run_total interval
    );
  end if;
  if to_regtype('notifyq.hour_report') is null then
    create type notifyq.hour_report as (
      bucket_at timestamptz,
      queue text,
      finished bigint,
      dead bigint,
      wait_p95 double precision,
      run_p95 double precision,
      errors jsonb
    );
  end if;
end;
$$;

comment on type notifyq.archive_part is
  'The rows of one day in a window, as notifyq.archive_parts() reports them.';
comment on type notifyq.lake_entry is 'A file as notifyq.commit_lake() takes it.';
comment on type messages.lake_report is
  'One lake as messages.lakes() reports it; obstacle: why the next export will fail.';
comment on type notifyq.rollup_report is
  'One group as notifyq.rollup_summary() reports it; what it was not grouped by is null.';
comment on type notifyq.error_report is 'One fingerprint as notifyq.rollup_errors() reports it.';
comment on type notifyq.worker_report is 'One worker as notifyq.rollup_workers() reports it.';
comment on type notifyq.hour_report is
  'One hour of one queue as notifyq.archive_hours() reports it.';
