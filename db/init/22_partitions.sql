-- Partitions: the archive has one for each day in UTC, made ahead and dropped when it is old.
--
-- owns:    the tables messages.message_archive_YYYYMMDD
-- writes:  messages.message_archive_default (rows move into their day), messages.redrive
-- calls:   nothing
-- raises:  nothing; a table that is in use is left to the next run

create or replace function messages._partition_name(day date)
  returns text
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select 'message_archive_' || to_char(day, 'YYYYMMDD');
$$;

create or replace function messages._make_partition(day date)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_name text := messages._partition_name(day);
  v_from timestamptz := day::timestamp at time zone 'UTC';
  v_until timestamptz := (day + 1)::timestamp at time zone 'UTC';
begin
  -- Attached, not created in place: `create table ... partition of` would lock out every insert for
  -- as long as it waits for a reader of the archive.
  execute format(
    'create table messages.%I (like messages.message_archive including defaults including '
    'constraints including storage including comments)', v_name
  );
  -- Else a message archived between the move and the attachment would fail the latter.
  lock table messages.message_archive_default in access exclusive mode;
  execute format(
    'with moved as ('
    '  delete from messages.message_archive_default'
    '  where archived_at >= %L and archived_at < %L returning *'
    ') insert into messages.%I select * from moved', v_from, v_until, v_name
  );
  execute format(
    'alter table messages.message_archive attach partition messages.%I '
    'for values from (%L) to (%L)',
    v_name, v_from, v_until
  );
end;
$$;

create or replace function messages._make_partitions(ahead integer default 3)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '500ms'
  set timezone = 'UTC'
as $$
declare
  v_today date := clock_timestamp()::date;
  v_day date;
  v_made integer := 0;
begin
  for v_day in
    select d.day
    from (
      select (v_today + i) as day from generate_series(0, ahead) as g (i)
      union
      -- Days on which nobody made a partition, and rows went to the default one.
      select a.archived_at::date from messages.message_archive_default as a
    ) as d
    where to_regclass('messages.' || messages._partition_name(d.day)) is null
    order by d.day
  loop
    perform messages._make_partition(v_day);
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

create or replace function messages._drop_partitions()
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '500ms'
  set timezone = 'UTC'
as $$
declare
  v_keep timestamptz := clock_timestamp() - (select max(q.retention) from messages.queue as q);
  v_name text;
  v_dropped integer := 0;
begin
  for v_name in
    select c.relname::text
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'messages.message_archive'::regclass
      and c.relname ~ '^message_archive_\d{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= v_keep::date
    order by c.relname
  loop
    execute format('drop table messages.%I', v_name);
    v_dropped := v_dropped + 1;
  end loop;
  if v_dropped > 0 then
    -- Not by age: while its archived row is there, a dead message must stay known as redriven.
    delete from messages.redrive as r
    where not exists (select from messages.message_archive as a where a.id = r.archive_id);
  end if;
  return v_dropped;
exception
  when lock_not_available or deadlock_detected then
    return 0;
end;
$$;

-- Today must be there before the first message is archived.
do $$ begin perform messages._make_partitions(); end; $$;
