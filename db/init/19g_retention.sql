-- Retention: for how long the archive is kept where no queue says it, and which days were swept.
--
-- owns:    messages.archive_policy, messages.retention_day, types queue_keep, day_plan,
--          retention_report and day_report
-- writes:  nothing
-- raises:  nothing

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
  'What holds for the whole archive; without a row nothing was said.';
comment on column messages.archive_policy.id is 'Always 1.';
comment on column messages.archive_policy.retention is
  'Of queues that are created without one, of dropped queues and of events that died; null: 30 '
  'days for the first, and the longest of all queues for the others.';
comment on column messages.archive_policy.retention_dead is
  'The same for messages that did not succeed; null: as retention.';
comment on column messages.archive_policy.days_ahead is
  'For how many days after today partitions are made ahead.';

create table if not exists messages.retention_day (
  relation text not null,
  next_at timestamptz not null,
  policy bigint not null,
  block bigint,
  removed bigint not null default 0,
  constraint retention_day_relation_pk primary key (relation)
);

comment on table messages.retention_day is
  'One row for each day of the archive and of the attempts that was looked through for rows past '
  'the retention of their queue.';
comment on column messages.retention_day.relation is 'The table of the day.';
comment on column messages.retention_day.next_at is 'When it is looked through again.';
comment on column messages.retention_day.policy is
  'A hash of the retentions that it was looked through by: others, and it is done again.';
comment on column messages.retention_day.block is
  'Where the pass through its blocks goes on; null: there is none on the way.';
comment on column messages.retention_day.removed is 'How many rows were removed from it.';

do $$
begin
  if to_regtype('messages.queue_keep') is null then
    create type messages.queue_keep as (
      queue text,
      success interval,
      dead interval
    );
  end if;
  if to_regtype('messages.day_plan') is null then
    create type messages.day_plan as (
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

comment on type messages.queue_keep is 'For how long messages of a queue stay in the archive.';
comment on type messages.day_plan is
  'Which rows of a day''s table are to stay: all of queues, and by status of success and dead.';
comment on type messages.retention_report is
  'What is kept of one queue, as messages.retention_info() reports it.';
comment on type messages.day_report is 'One day of the archive, as messages.archive_info() has it.';
