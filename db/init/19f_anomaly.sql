-- Anomaly: hours in which a queue departed from its own past.
--
-- owns:    messages.anomaly, type messages.hour_report
-- writes:  nothing
-- raises:  nothing

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
  'Hours in which a queue departed from its own past; each is told once, also if found again.';
comment on column messages.anomaly.bucket_at is 'When the hour begins.';
comment on column messages.anomaly.found_at is 'When it was found.';
comment on column messages.anomaly.message_id is 'The alert; null if none was asked for.';
comment on column messages.anomaly.value is
  'What was found: p95 in milliseconds for wait and run, the part of dead messages for failures, '
  'for errors how far their mix is from the past, 0 to 1 (Jensen-Shannon divergence).';
comment on column messages.anomaly.expected is 'What its past led to expect.';
comment on column messages.anomaly.chance is
  'How likely an hour like those of its past is to be at least as far off.';
comment on column messages.anomaly.finished is 'Messages of the queue in that hour.';
comment on column messages.anomaly.queue is 'The queue.';
comment on column messages.anomaly.metric is 'What departed: wait, run, failures or errors.';
comment on column messages.anomaly.details is 'The same in words.';

do $$
begin
  if to_regtype('messages.hour_report') is null then
    create type messages.hour_report as (
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

comment on type messages.hour_report is
  'One hour of one queue as messages.archive_hours() reports it.';
