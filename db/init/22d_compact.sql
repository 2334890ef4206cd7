-- Compact: write a day's table anew without what is past retention.
--
-- Rows that are deleted one by one leave a table as large as it was, and much to vacuum.
--
-- owns:    nothing
-- writes:  messages.redrive; drops and makes tables messages.message_archive_YYYYMMDD and
--          messages.attempt_YYYYMMDD
-- calls:   messages._is_in_lakes, messages._plan_day, messages._is_held, messages._count_about,
--          messages._forget_redrives
-- raises:  nothing

-- The rows that are to stay go into a table that takes its place. Null: it is in use; else about
-- how many rows are gone. If none is to stay, the table is gone as well.
create or replace function messages._compact_day(relation text, now timestamptz)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '100ms'
  set timezone = 'UTC'
  set jit = off
as $$
declare
  v_parent text := regexp_replace(relation, '_\d+$', '');
  v_day timestamptz := to_date(right(relation, 8), 'YYYYMMDD')::timestamptz;
  v_new text := relation || '_new';
  v_plan messages.day_plan;
  v_rows bigint := messages._count_about(relation);
  v_left bigint;
begin
  if messages._is_held(array[format('messages.%I', v_parent), format('messages.%I', relation)]) then
    return null;
  end if;
  -- Its readers go on. Nobody writes into a day that is over, but for who deletes dead messages
  -- and transactions that have archived and not committed since.
  execute format('lock table messages.%I in share mode', relation);
  v_plan := messages._plan_day(relation, _compact_day.now);
  if not messages._is_in_lakes(relation) then
    return null;
  end if;
  execute format('create table messages.%I (like messages.%I including all)', v_new, relation);
  execute format(
    'insert into messages.%I select f.* from ('
    '  select a.* from messages.%I as a where a.queue = any (%L)'
    '  union all select a.* from messages.%I as a'
    '    where a.queue = any (%L) and a.status = ''success'''
    '  union all select a.* from messages.%I as a'
    '    where a.queue = any (%L) and a.status <> ''success'''
    ') as f', v_new, relation, v_plan.queues, relation, v_plan.success, relation, v_plan.dead
  );
  get diagnostics v_left = row_count;
  perform messages._forget_redrives(v_plan);
  -- From here on the archive is held.
  execute format('drop table messages.%I', relation);
  if v_left = 0 then
    execute format('drop table messages.%I', v_new);
  else
    execute format('alter table messages.%I rename to %I', v_new, relation);
    execute format(
      'alter table messages.%I attach partition messages.%I for values from (%L) to (%L)',
      v_parent, relation, v_day, v_day + interval '1 day'
    );
  end if;
  return greatest(v_rows - v_left, 0);
exception
  when lock_not_available or deadlock_detected then
    return null;
end;
$$;
