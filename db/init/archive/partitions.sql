-- Partitions: archive and attempts have one for each day in UTC, made ahead.
--
-- raises: nothing; a table that is in use is left to the next run

create or replace function notifyq.partition_name(
  day date,
  parent text default 'message_archive'
)
  returns text
  language sql
  immutable
as $$
  select parent || '_' || to_char(day, 'YYYYMMDD');
$$;

-- Of the table parent, which is parted by the column instant.
create or replace function notifyq.make_partition(parent text, instant text, day date)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text := notifyq.partition_name(day, parent);
  v_default text := parent || '_default';
  v_from timestamptz := day::timestamp at time zone 'UTC';
  v_until timestamptz := (day + 1)::timestamp at time zone 'UTC';
begin
  -- Attached, not created in place: `create table ... partition of` would lock out every insert for
  -- as long as it waits for a reader of the archive.
  execute format(
    'create table notifyq.%I (like messages.%I including defaults including '
    'constraints including storage including comments)', v_name, parent
  );
  -- Else a message archived between the move and the attachment would fail the latter.
  execute format('lock table notifyq.%I in access exclusive mode', v_default);
  execute format(
    'with moved as ('
    '  delete from notifyq.%I where %I >= %L and %I < %L returning *'
    ') insert into notifyq.%I select * from moved',
    v_default, instant, v_from, instant, v_until, v_name
  );
  execute format(
    'alter table messages.%I attach partition notifyq.%I '
    'for values from (%L) to (%L)',
    parent, v_name, v_from, v_until
  );
end;
$$;

create or replace function notifyq.make_partitions(ahead integer default null)
  returns integer
  language plpgsql
  set lock_timeout = '500ms'
  set timezone = 'UTC'
as $$
declare
  v_today date := clock_timestamp()::date;
  v_parent text;
  v_instant text;
  v_day date;
  v_made integer := 0;
  v_ahead integer := ahead;
begin
  if v_ahead is null then
    v_ahead := coalesce((select p.days_ahead from messages.archive_policy as p), 3);
  end if;
  for v_parent, v_instant, v_day in
    select d.parent, d.instant, d.day
    from (
      select t.parent, t.instant, v_today + i as day
      from (values ('message_archive', 'archived_at'), ('attempt', 'ended_at'))
        as t (parent, instant)
      cross join generate_series(0, v_ahead) as g (i)
      union
      -- Days on which nobody made a partition, and rows went to the default one.
      select 'message_archive', 'archived_at', a.archived_at::date
      from notifyq.message_archive_default as a
      union
      select 'attempt', 'ended_at', a.ended_at::date from notifyq.attempt_default as a
    ) as d
    where to_regclass('notifyq.' || notifyq.partition_name(d.day, d.parent)) is null
    order by d.parent desc, d.day
  loop
    perform notifyq.make_partition(v_parent, v_instant, v_day);
    v_made := v_made + 1;
  end loop;
  return v_made;
exception
  -- A reader holds the archive, or another session makes the same day: there is time until the
  -- next run, days are made ahead and the default partition takes what comes before.
  when lock_not_available or duplicate_table or deadlock_detected then
    return 0;
end;
$$;

-- Today must be there before the first message is archived.
do $$ begin perform notifyq.make_partitions(3); end; $$;
