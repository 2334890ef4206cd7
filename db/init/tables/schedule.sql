-- Schedule: messages that are published by the clock.

create table if not exists messages.schedule (
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  cron text not null,
  timezone text not null,
  queue text not null,
  message jsonb not null,
  headers jsonb not null default '{}',
  type text,
  priority integer not null default 0,
  key text,
  max_attempts integer,
  jitter interval not null default interval '0',
  overlap text not null default 'allow',
  backfill integer not null default 1,
  grace interval not null default interval '5 minutes',
  when_unserved text not null default 'publish',
  enabled boolean not null default true,
  next_at timestamptz not null,
  last_at timestamptz,
  last_id bigint,
  skipped_at timestamptz,
  failed_at timestamptz,
  last_error text,
  unserved_at timestamptz,
  constraint schedule_name_pk primary key (name),
  constraint schedule_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint schedule_headers_ck check (jsonb_typeof(headers) = 'object'),
  constraint schedule_max_attempts_ck check (max_attempts between 1 and 1000),
  constraint schedule_jitter_ck check (jitter between interval '0' and interval '1 day'),
  constraint schedule_overlap_ck check (overlap in ('allow', 'skip_waiting', 'skip')),
  constraint schedule_backfill_ck check (backfill between 0 and 100),
  constraint schedule_grace_ck check (grace >= interval '0'),
  constraint schedule_when_unserved_ck check (when_unserved in ('publish', 'skip'))
);

create index if not exists schedule_next_idx on messages.schedule (next_at) where enabled;

comment on table messages.schedule is
  'Recurring messages; change it through the schedule functions.';
comment on column messages.schedule.name is
  '1 to 200 bytes, without control characters or outer blanks.';
comment on column messages.schedule.created_at is 'When it was first defined.';
comment on column messages.schedule.cron is
  'Five fields, six with leading seconds, @daily and similar names, or @every with an interval.';
comment on column messages.schedule.timezone is
  'The time zone of the expression, as pg_timezone_names lists it.';
comment on column messages.schedule.queue is 'The queue of its messages.';
comment on column messages.schedule.message is 'Payload of each message.';
comment on column messages.schedule.headers is
  'Headers of each message, beside `schedule` (the name) and `due` (the time of the run).';
comment on column messages.schedule.type is 'Type of each message.';
comment on column messages.schedule.priority is 'Priority of each message.';
comment on column messages.schedule.key is 'Key of each message.';
comment on column messages.schedule.max_attempts is
  'Most claims of each message; null: as many as the queue allows.';
comment on column messages.schedule.jitter is
  'Each message becomes available up to this much later, at random.';
comment on column messages.schedule.overlap is
  'allow: messages may pile up; skip_waiting: skip a run while the last message waits to be '
  'claimed; skip: skip a run while the last message is live.';
comment on column messages.schedule.backfill is
  'How many missed runs at most are made up for; the latest ones.';
comment on column messages.schedule.grace is 'With backfill 0: how late a run may be.';
comment on column messages.schedule.when_unserved is
  'publish, or skip: no run while messages wait in its queue and no worker serves it.';
comment on column messages.schedule.enabled is 'A disabled schedule does not run.';
comment on column messages.schedule.next_at is 'The time of the next run.';
comment on column messages.schedule.last_at is 'The time of the last run.';
comment on column messages.schedule.last_id is 'The message of the last run.';
comment on column messages.schedule.skipped_at is
  'The last run that was skipped, see backfill, overlap and when_unserved.';
comment on column messages.schedule.failed_at is
  'When publishing failed last; it is tried again every minute. Null: it works.';
comment on column messages.schedule.last_error is 'Why publishing failed.';
comment on column messages.schedule.unserved_at is
  'When a run first found that messages wait in its queue and no worker serves it. Null: the last '
  'run did not.';
