-- Retain: drop, compact and sweep what is past retention, in bounded steps.

-- The days that may have rows past a retention, without those that are dropped whole.
create or replace function notifyq.days_to_retain(now timestamptz)
  returns setof text language plpgsql stable
  set timezone = 'UTC'
as $$
declare
  v_shortest interval := (
    select least(
      min(least(q.retention, q.retention_dead)),
      (select least(p.retention, p.retention_dead) from messages.archive_policy as p)
    )
    from messages.queue as q
  );
  v_longest interval := notifyq.longest_retention();
begin
  -- With one retention for all queues, every day is dropped whole.
  if v_shortest = v_longest then
    return;
  end if;
  return query
  select d.name
  from notifyq.day_partition as d
  where d.day::timestamptz + v_shortest <= days_to_retain.now
    and d.day + 1 > (days_to_retain.now - v_longest)::date
  order by d.name;
end;
$$;

-- One step for one day. _block: where the pass through its blocks continues; null: it is finished.
create or replace function notifyq.retain_day(
  relation text,
  now timestamptz,
  quantity bigint,
  few integer,
  inout _block bigint,
  out _removed bigint,
  out _next_at timestamptz
)
  returns record language plpgsql
as $$
declare
  v_plan notifyq.day_plan := notifyq.plan_day(relation, retain_day.now);
  v_weight record;
  v_blocks constant bigint := greatest(retain_day.quantity / 10, 1);
begin
  _removed := 0;
  _next_at := v_plan.next_at;
  if v_plan.brief <> '{}' then
    _removed := notifyq.sweep_brief(v_plan, retain_day.now, retain_day.quantity);
    if _removed >= retain_day.quantity then
      _next_at := retain_day.now;
      return;
    end if;
  end if;
  if v_plan.gone = '{}' and v_plan.success = '{}' and v_plan.dead = '{}' then
    _block := null;
    return;
  end if;
  if _block is null then
    select w.* into v_weight from notifyq.weigh_day(v_plan, retain_day.few) as w;
    if not v_weight._has_gone then
      return;
    elsif not notifyq.is_in_lakes(relation) then
      _next_at := least(_next_at, retain_day.now + interval '10 minutes');
      return;
    elsif v_weight._is_few then
      _removed := notifyq.compact_day(relation, retain_day.now);
      if _removed is null then
        _removed := 0;
        _next_at := retain_day.now + interval '5 seconds';
      end if;
      return;
    end if;
    _block := 0;
  end if;
  _removed := _removed + notifyq.sweep_blocks(v_plan, _block, v_blocks);
  _block := _block + v_blocks;
  if _block * current_setting('block_size')::bigint
    >= pg_relation_size(format('notifyq.%I', relation)::regclass)
  then
    _block := null;
  else
    _next_at := retain_day.now;
  end if;
end;
$$;

create or replace function notifyq.retain(
  quantity bigint default 10000,
  few integer default 50000
)
  returns bigint language plpgsql
  set lock_timeout = '100ms'
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_hash bigint := notifyq.retention_hash();
  v_relation text;
  v_block bigint;
  v_removed bigint := 0::bigint;
  v_step record;
begin
  for v_relation, v_block in
    select d.relation, case when r.policy = v_hash then r.block end
    from notifyq.days_to_retain(v_now) as d (relation)
    left join notifyq.retention_day as r on r.relation = d.relation
    where r.next_at is null or r.next_at <= v_now or r.policy <> v_hash
    order by r.next_at nulls first, d.relation
    limit 20
  loop
    begin
      select s.* into v_step
      from notifyq.retain_day(v_relation, v_now, retain.quantity, retain.few, v_block) as s;
    exception
      -- Another session deletes dead messages of that day.
      when lock_not_available or deadlock_detected then
        continue;
    end;
    v_removed := v_removed + v_step._removed;
    if to_regclass(format('notifyq.%I', v_relation)) is null then
      delete from notifyq.retention_day as r where r.relation = v_relation;
    else
      insert into notifyq.retention_day as r (relation, next_at, policy, block, removed)
      values (
        v_relation,
        -- Old snapshots make a step slow: it may take a sixth of the time, not all of it.
        greatest(v_step._next_at, clock_timestamp() + 5 * (clock_timestamp() - v_now)),
        v_hash, v_step._block, v_step._removed
      )
      on conflict on constraint retention_day_relation_pk do update
      set next_at = excluded.next_at, policy = excluded.policy, block = excluded.block,
        removed = r.removed + excluded.removed;
    end if;
    exit when v_removed > 0;
  end loop;
  return v_removed;
end;
$$;

-- drop_day and compact_day lock the whole archive for an instant, and every finish waits for them.
-- They are not tried while another session holds it for longer, and give up soon.

-- The transactions of other sessions that hold the table of a day or its parent.
create or replace function notifyq.holders_of(relation text)
  returns text[] language sql
as $$
  select array(
    select l.virtualtransaction
    from pg_locks as l
    cross join regexp_replace(holders_of.relation, '_[0-9]+$', '') as p (parent)
    where l.locktype = 'relation'
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
      and l.relation in (
        format('%I.%I', notifyq.schema_of(p.parent), p.parent)::regclass::oid,
        format('notifyq.%I', holders_of.relation)::regclass::oid
      )
      and l.pid <> pg_backend_pid()
  );
$$;

create or replace function notifyq.is_held(relation text)
  returns boolean language plpgsql
as $$
declare
  v_before text[] := notifyq.holders_of(relation);
begin
  if v_before = '{}' then
    return false;
  end if;
  -- A finish takes less time than this.
  perform pg_sleep(0.02);
  return notifyq.holders_of(relation) && v_before;
end;
$$;

-- A dead message must stay known as redriven as long as its archived row exists.
create or replace function notifyq.forget_redrives(plan notifyq.day_plan)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  if plan.relation ~ '^attempt' or not exists (select from notifyq.redrive) then
    return;
  end if;
  execute format(
    'delete from notifyq.redrive as r where r.archive_id in ('
    '  select a.id from notifyq.%I as a'
    '  where a.status <> ''success'' and a.queue <> all (%L) and a.queue <> all (%L))',
    plan.relation, coalesce(plan.queues, '{}'), coalesce(plan.dead, '{}')
  );
end;
$$;

-- The steps of a day go with its last message.
create or replace function notifyq.drop_steps(relation text)
  returns void language plpgsql
as $$
begin
  if relation ^@ 'message_archive_' then
    execute format(
      'drop table if exists notifyq.%I', replace(relation, 'message_archive', 'step_archive')
    );
  end if;
end;
$$;

-- False: the day is in use, and nothing changed.
create or replace function notifyq.drop_day(relation text)
  returns boolean language plpgsql
  set lock_timeout = '100ms'
as $$
declare
  v_plan notifyq.day_plan;
begin
  if notifyq.is_held(relation) then
    return false;
  end if;
  -- The day first: no finish uses it.
  execute format('lock table notifyq.%I in access exclusive mode', relation);
  v_plan.relation := relation;
  perform notifyq.forget_redrives(v_plan);
  delete from notifyq.retention_day as r where r.relation = drop_day.relation;
  execute format('drop table notifyq.%I', relation);
  perform notifyq.drop_steps(relation);
  return true;
exception
  when lock_not_available or deadlock_detected then
    return false;
end;
$$;

create or replace function notifyq.drop_partitions()
  returns integer language plpgsql
  set timezone = 'UTC'
as $$
declare
  v_until timestamptz := clock_timestamp() - notifyq.longest_retention();
  v_name text;
  v_parent text;
  v_dropped integer := 0;
  v_busy text[] := array[]::text[];
begin
  for v_name, v_parent in
    select d.name, d.parent
    from notifyq.day_partition as d
    where d.day + 1 <= v_until::date
      and notifyq.is_in_lakes(d.name)
    order by d.name
    -- Each takes a dozen of the server's locks, which are limited.
    limit 10
  loop
    continue when v_parent = any (v_busy);
    if notifyq.drop_day(v_name) then
      v_dropped := v_dropped + 1;
    else
      v_busy := v_busy || v_parent;
    end if;
  end loop;
  return v_dropped;
end;
$$;

-- Writes the rows that stay into a new table, which replaces that of the day; drops the day where
-- no row stays. Deleted one by one, rows leave a table of the same size, and much to vacuum. Null:
-- the day is in use; else about how many rows are gone.
create or replace function notifyq.compact_day(relation text, now timestamptz)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '100ms' set timezone = 'UTC' set jit = off
as $$
declare
  v_parent text := regexp_replace(relation, '_[0-9]+$', '');
  v_day timestamptz := to_date(right(relation, 8), 'YYYYMMDD')::timestamptz;
  v_new text := relation || '_new';
  v_plan notifyq.day_plan;
  v_rows bigint := notifyq.estimate_count(relation);
  v_left bigint;
begin
  if notifyq.is_held(relation) then
    return null;
  end if;
  -- Readers continue. A past day has few writers: a delete of dead messages, and transactions that
  -- archived and have not committed yet.
  execute format('lock table notifyq.%I in share mode', relation);
  v_plan := notifyq.plan_day(relation, compact_day.now);
  if not notifyq.is_in_lakes(relation) then
    return null;
  end if;
  execute format('create table notifyq.%I (like notifyq.%I including all)', v_new, relation);
  -- Attempts and logs belong to either: they have all or none of a queue.
  if relation ~ '^attempt' then
    execute format(
      'insert into notifyq.%I select a.* from notifyq.%I as a where a.queue = any (%L)',
      v_new, relation, v_plan.queues
    );
  else
    execute format(
      'insert into notifyq.%I select f.* from ('
      '  select a.* from notifyq.%I as a where a.queue = any (%L)'
      '  union all select a.* from notifyq.%I as a'
      '    where a.queue = any (%L) and a.status = ''success'''
      '  union all select a.* from notifyq.%I as a'
      '    where a.queue = any (%L) and a.status <> ''success'''
      ') as f', v_new, relation, v_plan.queues, relation, v_plan.success, relation, v_plan.dead
    );
  end if;
  get diagnostics v_left = row_count;
  perform notifyq.forget_redrives(v_plan);
  -- From here on the archive is locked.
  execute format('drop table notifyq.%I', relation);
  if v_left = 0 then
    execute format('drop table notifyq.%I', v_new);
    perform notifyq.drop_steps(relation);
  else
    execute format('alter table notifyq.%I rename to %I', v_new, relation);
    execute format(
      'alter table %I.%I attach partition notifyq.%I for values from (%L) to (%L)',
      notifyq.schema_of(v_parent), v_parent, relation, v_day, v_day + interval '1 day'
    );
  end if;
  return greatest(v_rows - v_left, 0);
exception
  when lock_not_available or deadlock_detected then
    return null;
end;
$$;

-- The sweeps delete rows past the retention of their queue from days of which many others stay.

-- What each lake has. Null: that is not known of one of them, and nothing may be deleted.
create or replace function notifyq.lake_positions()
  returns pg_snapshot[] language plpgsql stable
as $$
begin
  if exists (select from notifyq.lake as l where notifyq.lake_obstacle(l) is not null) then
    return null;
  end if;
  return array(select split_part(l.position, '/', 2)::pg_snapshot from notifyq.lake as l);
end;
$$;

-- Whether any row is past retention, and whether at most `most` rows stay.
create or replace function notifyq.weigh_day(
  plan notifyq.day_plan,
  most integer,
  out _has_gone boolean,
  out _is_few boolean
)
  returns record language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
begin
  if plan.relation ~ '^attempt' then
    execute format(
      'select exists (select from notifyq.%I as a where a.queue = any (%L)), count(*) <= %L'
      ' from (select from notifyq.%I as a where a.queue = any (%L) limit %L) as f',
      plan.relation, plan.gone, most, plan.relation, plan.queues, most::bigint + 1
    ) into _has_gone, _is_few;
    return;
  end if;
  execute format(
    'select exists (select from notifyq.%I as a where a.queue = any (%L))'
    ' or exists (select from notifyq.%I as a'
    '   where a.queue = any (%L) and a.status = ''success'')'
    ' or exists (select from notifyq.%I as a'
    '   where a.queue = any (%L) and a.status <> ''success'')',
    plan.relation, plan.gone, plan.relation, plan.dead, plan.relation, plan.success
  ) into _has_gone;
  if not _has_gone then
    return;
  end if;
  execute format(
    'select count(*) <= %L from ('
    '  select from notifyq.%I as a where a.queue = any (%L)'
    '  union all select from notifyq.%I as a'
    '    where a.queue = any (%L) and a.status = ''success'''
    '  union all select from notifyq.%I as a'
    '    where a.queue = any (%L) and a.status <> ''success'''
    '  limit %L) as f',
    most, plan.relation, plan.queues, plan.relation, plan.success, plan.relation, plan.dead,
    most::bigint + 1
  ) into _is_few;
end;
$$;

-- Deletes what is past retention from some blocks of a day. Each block is read once: a day of any
-- size is scanned in steps of one size.
create or replace function notifyq.sweep_blocks(
  plan notifyq.day_plan,
  block bigint,
  blocks bigint
)
  returns bigint language plpgsql
  set jit = off
as $$
declare
  v_removed bigint := 0::bigint;
  v_dead bigint[];
  v_exported pg_snapshot[] := notifyq.lake_positions();
  v_first text := '(' || block || ',0)';
  v_until text := '(' || block + blocks || ',0)';
begin
  if plan.relation ~ '^attempt' then
    execute format(
      'delete from notifyq.%I as t where t.ctid >= %L::tid and t.ctid < %L::tid'
      ' and t.queue = any (%L)',
      plan.relation, v_first, v_until, plan.gone
    );
    get diagnostics v_removed = row_count;
  elsif v_exported is not null then
    execute format(
      'with gone as ('
      '  delete from notifyq.%I as a where a.ctid >= %L::tid and a.ctid < %L::tid'
      '  and (a.queue = any (%L) or a.queue = any (%L) and a.status = ''success'''
      '    or a.queue = any (%L) and a.status <> ''success'')'
      '  and not exists (select from unnest(%L::pg_snapshot[]) as s (seen)'
      '    where not pg_visible_in_snapshot(a.xid, s.seen))'
      '  returning a.id, a.status'
      ') select count(*), array_agg(g.id) filter (where g.status <> ''success'') from gone as g',
      plan.relation, v_first, v_until, plan.gone, plan.dead, plan.success, v_exported
    ) into v_removed, v_dead;
    delete from notifyq.redrive as r where r.archive_id = any (v_dead);
  end if;
  return v_removed;
end;
$$;

-- Deletes up to quantity rows of queues that are kept for less than a day, the oldest first.
create or replace function notifyq.sweep_brief(
  plan notifyq.day_plan,
  now timestamptz,
  quantity bigint
)
  returns bigint language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_exported pg_snapshot[] := notifyq.lake_positions();
  v_queue text;
  v_success interval;
  v_dead interval;
  v_count bigint;
  v_removed bigint := 0::bigint;
  v_dead_ids bigint[];
begin
  if v_exported is null then
    return v_removed;
  end if;
  for v_queue, v_success, v_dead in
    select k.queue, k.success, k.dead from notifyq.queue_retention(plan.brief) as k order by k.queue
  loop
    execute format(
      'with gone as ('
      '  delete from notifyq.%I as a where a.ctid = any (array('
      '    select f.ctid from notifyq.%I as f where f.queue = %L and f.archived_at < %L'
      '    and (f.archived_at < %L or (f.status = ''success'') = %L)'
      '    order by f.archived_at limit %L))'
      '  and not exists (select from unnest(%L::pg_snapshot[]) as s (seen)'
      '    where not pg_visible_in_snapshot(a.xid, s.seen))'
      '  returning a.id, a.status'
      ') select count(*), array_agg(g.id) filter (where g.status <> ''success'') from gone as g',
      plan.relation, plan.relation, v_queue, sweep_brief.now - least(v_success, v_dead),
      sweep_brief.now - greatest(v_success, v_dead), v_success < v_dead,
      sweep_brief.quantity - v_removed, v_exported
    ) into v_count, v_dead_ids;
    delete from notifyq.redrive as r where r.archive_id = any (v_dead_ids);
    v_removed := v_removed + v_count;
    exit when v_removed >= sweep_brief.quantity;
  end loop;
  return v_removed;
end;
$$;
