-- Remove: drop a day's table, or write it anew without what is past retention.
--
-- Both need the archive for themselves for an instant: every finish would wait while they do. So
-- they are not even tried while somebody holds it for longer, and give up soon.
--
-- owns:    nothing
-- writes:  messages.redrive, messages.retention_day; drops and makes tables
--          messages.message_archive_YYYYMMDD and messages.attempt_YYYYMMDD
-- calls:   messages._is_in_lakes, messages._longest_keep, messages._plan_day
-- raises:  nothing

-- Whether some session has had a lock of one of these tables for a while.
create or replace function messages._is_held(relations regclass[])
  returns boolean
  language plpgsql
as $$
declare
  v_before text[];
  v_database oid := (select d.oid from pg_database as d where d.datname = current_database());
begin
  v_before := array(
    select l.virtualtransaction from pg_locks as l
    where l.locktype = 'relation' and l.database = v_database
      and l.relation = any (relations::oid[]) and l.pid <> pg_backend_pid()
  );
  if v_before = '{}' then
    return false;
  end if;
  -- A finish is through with it sooner.
  perform pg_sleep(0.02);
  return exists (
    select from pg_locks as l
    where l.locktype = 'relation' and l.database = v_database
      and l.relation = any (relations::oid[]) and l.pid <> pg_backend_pid()
      and l.virtualtransaction = any (v_before)
  );
end;
$$;

-- While its archived row is there, a dead message must stay known as redriven; no longer.
create or replace function messages._forget_redrives(plan messages.day_plan)
  returns void
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
begin
  if plan.relation ~ '^attempt' or not exists (select from messages.redrive) then
    return;
  end if;
  execute format(
    'delete from messages.redrive as r where r.archive_id in ('
    '  select a.id from messages.%I as a'
    '  where a.status <> ''success'' and a.queue <> all (%L) and a.queue <> all (%L))',
    plan.relation, coalesce(plan.queues, '{}'), coalesce(plan.dead, '{}')
  );
end;
$$;

-- False: it is in use, and nothing changed.
create or replace function messages._drop_day(relation text)
  returns boolean
  language plpgsql
  set lock_timeout = '100ms'
as $$
declare
  v_parent text := regexp_replace(relation, '_\d+$', '');
  v_plan messages.day_plan;
begin
  if messages._is_held(array[format('messages.%I', v_parent), format('messages.%I', relation)]) then
    return false;
  end if;
  -- First the day alone, which no finish looks at.
  execute format('lock table messages.%I in access exclusive mode', relation);
  v_plan.relation := relation;
  perform messages._forget_redrives(v_plan);
  delete from messages.retention_day as r where r.relation = _drop_day.relation;
  execute format('drop table messages.%I', relation);
  return true;
exception
  when lock_not_available or deadlock_detected then
    return false;
end;
$$;

create or replace function messages._drop_partitions()
  returns integer
  language plpgsql
  set timezone = 'UTC'
as $$
declare
  v_keep timestamptz := clock_timestamp() - messages._longest_keep();
  v_name text;
  v_dropped integer := 0;
  v_busy text[] := array[]::text[];
begin
  for v_name in
    select c.relname::text
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent in ('messages.message_archive'::regclass, 'messages.attempt'::regclass)
      and c.relname ~ '^(message_archive|attempt)_\d{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= v_keep::date
      and messages._is_in_lakes(c.relname::text)
    order by c.relname
    -- Each takes a dozen locks, of which a server has not very many.
    limit 10
  loop
    continue when regexp_replace(v_name, '_\d+$', '') = any (v_busy);
    if messages._drop_day(v_name) then
      v_dropped := v_dropped + 1;
    else
      v_busy := array_append(v_busy, regexp_replace(v_name, '_\d+$', ''));
    end if;
  end loop;
  return v_dropped;
end;
$$;
