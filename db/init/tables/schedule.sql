-- Schedule: what is published again and again, by the clock.

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
  enabled boolean not null default true,
  next_at timestamptz not null,
  last_at timestamptz,
  last_id bigint,
  skipped_at timestamptz,
  failed_at timestamptz,
  last_error text,
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
  constraint schedule_grace_ck check (grace >= interval '0')
);

create index if not exists schedule_next_idx on messages.schedule (next_at) where enabled;

comment on table messages.schedule is
  'What is published again and again; change it through the schedule functions.';
comment on column messages.schedule.name is
  '1 to 200 bytes, without control characters or outer blanks.';
comment on column messages.schedule.created_at is 'When it was first defined.';
comment on column messages.schedule.cron is
  'When: five fields, six with leading seconds, @daily and the like, or @every with an interval.';
comment on column messages.schedule.timezone is
  'The time zone whose clocks the expression means, as pg_timezone_names has it.';
comment on column messages.schedule.queue is 'Where its messages go.';
comment on column messages.schedule.message is 'The payload of each.';
comment on column messages.schedule.headers is
  'Headers of each, beside `schedule` (the name) and `due` (the time it was meant for).';
comment on column messages.schedule.type is 'Type of each.';
comment on column messages.schedule.priority is 'Priority of each.';
comment on column messages.schedule.key is 'Key of each.';
comment on column messages.schedule.max_attempts is
  'Claims that each may use up; null: as many as its queue says.';
comment on column messages.schedule.jitter is
  'Each becomes available up to this much later, at random.';
comment on column messages.schedule.overlap is
  'allow: messages may pile up; skip_waiting: a run is left out while the last one waits to be '
  'claimed; skip: a run is left out while the last one is live.';
comment on column messages.schedule.backfill is
  'How many runs at most are made up for after nobody was there to fire them; the latest count.';
comment on column messages.schedule.grace is 'A run that is late by less was not missed.';
comment on column messages.schedule.enabled is 'A disabled schedule does not fire.';
comment on column messages.schedule.next_at is 'The time of the next run.';
comment on column messages.schedule.last_at is 'The time that the last run was meant for.';
comment on column messages.schedule.last_id is 'The message of the last run.';
comment on column messages.schedule.skipped_at is
  'The last run that was left out: missed, or because of an earlier one, see backfill and overlap.';
comment on column messages.schedule.failed_at is
  'When it could last not be fired; it is tried again every minute. Null: all is well.';
comment on column messages.schedule.last_error is 'Why not.';
