-- Sweep: delete rows past the retention of their queue from days of which many others stay.
--
-- owns:    nothing
-- writes:  messages.message_archive, messages.attempt, messages.redrive
-- calls:   messages._keeps, messages._lake_obstacle
-- raises:  nothing

-- How far each lake is. Null: that is not known, and then nothing may go.
create or replace function messages._lake_places()
  returns pg_snapshot[]
  language plpgsql
  stable
as $$
begin
  if exists (select from messages.lake as l where messages._lake_obstacle(l) is not null) then
    return null;
  end if;
  return array(select split_part(l.place, '/', 2)::pg_snapshot from messages.lake as l);
end;
$$;

-- Whether any row is to go, and whether those that are to stay are few.
create or replace function messages._weigh_day(
  plan messages.day_plan,
  most integer,
  out _has_gone boolean,
  out _is_few boolean
)
  returns record
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
begin
  execute format(
    'select exists (select from messages.%I as a where a.queue = any (%L))'
    ' or exists (select from messages.%I as a'
    '   where a.queue = any (%L) and a.status = ''success'')'
    ' or exists (select from messages.%I as a'
    '   where a.queue = any (%L) and a.status <> ''success'')',
    plan.relation, plan.gone, plan.relation, plan.dead, plan.relation, plan.success
  ) into _has_gone;
  if not _has_gone then
    return;
  end if;
  execute format(
    'select count(*) <= %L from ('
    '  select from messages.%I as a where a.queue = any (%L)'
    '  union all select from messages.%I as a'
    '    where a.queue = any (%L) and a.status = ''success'''
    '  union all select from messages.%I as a'
    '    where a.queue = any (%L) and a.status <> ''success'''
    '  limit %L) as f',
    most, plan.relation, plan.queues, plan.relation, plan.success, plan.relation, plan.dead,
    most::bigint + 1
  ) into _is_few;
end;
$$;

-- Delete what is to go from some blocks of a day's table: each is read once, whatever it has, so
-- that a day of any size is gone through in steps of one size.
create or replace function messages._sweep_blocks(
  plan messages.day_plan,
  block bigint,
  blocks bigint
)
  returns bigint
  language plpgsql
  set jit = off
as $$
declare
  v_removed bigint := 0::bigint;
  v_dead bigint[];
  v_places pg_snapshot[] := messages._lake_places();
  v_first text := '(' || block || ',0)';
  v_until text := '(' || block + blocks || ',0)';
begin
  if plan.relation ~ '^attempt' then
    execute format(
      'delete from messages.%I as t where t.ctid >= %L::tid and t.ctid < %L::tid'
      ' and t.queue = any (%L)',
      plan.relation, v_first, v_until, plan.gone
    );
    get diagnostics v_removed = row_count;
  elsif v_places is not null then
    execute format(
      'with gone as ('
      '  delete from messages.%I as a where a.ctid >= %L::tid and a.ctid < %L::tid'
      '  and (a.queue = any (%L) or a.queue = any (%L) and a.status = ''success'''
      '    or a.queue = any (%L) and a.status <> ''success'')'
      '  and not exists (select from unnest(%L::pg_snapshot[]) as s (seen)'
      '    where not pg_visible_in_snapshot(a.xid, s.seen))'
      '  returning a.id, a.status'
      ') select count(*), array_agg(g.id) filter (where g.status <> ''success'') from gone as g',
      plan.relation, v_first, v_until, plan.gone,
      plan.dead, plan.success, v_places
    ) into v_removed, v_dead;
    delete from messages.redrive as r where r.archive_id = any (v_dead);
  end if;
  return v_removed;
end;
$$;

-- Delete up to quantity rows of queues that are kept for less than a day, the oldest first.
create or replace function messages._sweep_brief(
  plan messages.day_plan,
  now timestamptz,
  quantity bigint
)
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_places pg_snapshot[] := messages._lake_places();
  v_queue text;
  v_success interval;
  v_dead interval;
  v_count bigint;
  v_removed bigint := 0::bigint;
  v_died bigint[];
begin
  if v_places is null then
    return v_removed;
  end if;
  for v_queue, v_success, v_dead in
    select k.queue, k.success, k.dead from messages._keeps(plan.brief) as k order by k.queue
  loop
    execute format(
      'with gone as ('
      '  delete from messages.%I as a where a.ctid = any (array('
      '    select f.ctid from messages.%I as f where f.queue = %L and f.archived_at < %L'
      '    and (f.archived_at < %L or (f.status = ''success'') = %L)'
      '    order by f.archived_at limit %L))'
      '  and not exists (select from unnest(%L::pg_snapshot[]) as s (seen)'
      '    where not pg_visible_in_snapshot(a.xid, s.seen))'
      '  returning a.id, a.status'
      ') select count(*), array_agg(g.id) filter (where g.status <> ''success'') from gone as g',
      plan.relation, plan.relation, v_queue, _sweep_brief.now - least(v_success, v_dead),
      _sweep_brief.now - greatest(v_success, v_dead), v_success < v_dead,
      _sweep_brief.quantity - v_removed, v_places
    ) into v_count, v_died;
    delete from messages.redrive as r where r.archive_id = any (v_died);
    v_removed := v_removed + v_count;
    exit when v_removed >= _sweep_brief.quantity;
  end loop;
  return v_removed;
end;
$$;
