-- Partitions: archive, attempts, logs and steps have one for each day in UTC, created in advance.
--
-- raises: nothing; a table that is in use is left to the next run

create or replace function notifyq.schema_of(parent text)
  returns text language sql immutable
as $$
  select case when parent in ('message_archive', 'attempt') then 'messages' else 'notifyq' end;
$$;

create or replace view notifyq.day_partition as
  select c.relname::text as name, p.relname::text as parent, c.oid::regclass as class,
    to_date(right(c.relname, 8), 'YYYYMMDD') as day
  from pg_inherits as i
  join pg_class as c on c.oid = i.inhrelid
  join pg_class as p on p.oid = i.inhparent
  where p.oid in (
    'messages.message_archive'::regclass, 'messages.attempt'::regclass,
    'notifyq.attempt_log'::regclass
  )
    and c.relname ~ '^(message_archive|attempt|attempt_log)_[0-9]{8}$';
comment on view notifyq.day_partition is
  'One row for each day of the archive, of the attempts and of the logs.';

create or replace function notifyq.partition_name(
  day date,
  parent text default 'message_archive'
)
  returns text language sql immutable
as $$
  select parent || '_' || to_char(day, 'YYYYMMDD');
$$;

-- instant: the column by which the table parent is partitioned.
create or replace function notifyq.make_partition(parent text, instant text, day date)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text := notifyq.partition_name(day, parent);
  v_default text := parent || '_default';
  v_schema text := notifyq.schema_of(parent);
  v_from timestamptz := day::timestamp at time zone 'UTC';
  v_until timestamptz := (day + 1)::timestamp at time zone 'UTC';
begin
  -- Attached after its creation: `create table ... partition of` would lock out every insert
  -- while it waits for a reader of the archive.
  execute format(
    'create table notifyq.%I (like %I.%I including defaults including '
    'constraints including storage including comments)', v_name, v_schema, parent
  );
  -- A message that is archived between the move and the attachment would make the latter fail.
  execute format('lock table notifyq.%I in access exclusive mode', v_default);
  execute format(
    'with moved as ('
    '  delete from notifyq.%I where %I >= %L and %I < %L returning *'
    ') insert into notifyq.%I select * from moved',
    v_default, instant, v_from, instant, v_until, v_name
  );
  execute format(
    'alter table %I.%I attach partition notifyq.%I for values from (%L) to (%L)',
    v_schema, parent, v_name, v_from, v_until
  );
end;
$$;

create or replace function notifyq.make_partitions(days_ahead integer default null)
  returns integer language plpgsql
  set lock_timeout = '500ms' set timezone = 'UTC'
as $$
declare
  v_last date := clock_timestamp()::date + coalesce(
    days_ahead, (select p.days_ahead from messages.archive_policy as p), 3
  );
  v_parent text;
  v_instant text;
  v_day date;
  v_made integer := 0;
begin
  for v_parent, v_instant, v_day in
    select d.parent, d.instant, d.day
    from (
      select t.parent, t.instant, g.day::date
      from (
        values ('message_archive', 'archived_at'), ('attempt', 'ended_at'),
          ('attempt_log', 'ended_at'), ('step_archive', 'archived_at')
      ) as t (parent, instant)
      cross join generate_series(clock_timestamp()::date, v_last, '1 day') as g (day)
      union
      -- Days without a partition, whose rows went to the default one.
      select 'message_archive', 'archived_at', a.archived_at::date
      from notifyq.message_archive_default as a
      union
      select 'attempt', 'ended_at', a.ended_at::date from notifyq.attempt_default as a
      union
      select 'attempt_log', 'ended_at', l.ended_at::date from notifyq.attempt_log_default as l
      union
      select 'step_archive', 'archived_at', s.archived_at::date
      from notifyq.step_archive_default as s
    ) as d
    where to_regclass('notifyq.' || notifyq.partition_name(d.day, d.parent)) is null
    order by d.parent desc, d.day
  loop
    perform notifyq.make_partition(v_parent, v_instant, v_day);
    v_made := v_made + 1;
  end loop;
  return v_made;
exception
  -- A reader holds the archive, or another session creates the same day. The next run is in time:
  -- days are created in advance, and the default partition takes rows until then.
  when lock_not_available or duplicate_table or deadlock_detected then
    return 0;
end;
$$;

-- The first message that is archived needs the partition of today.
do $$ begin perform notifyq.make_partitions(3); end; $$;
