-- Retain: go through the days of which some rows are past their retention, in bounded steps.
--
-- owns:    nothing
-- writes:  messages.retention_day
-- calls:   messages._plan_day, messages._weigh_day, messages._compact_day, messages._is_in_lakes,
--          messages._sweep_blocks, messages._sweep_brief, messages._keep_hash,
--          messages._longest_keep, messages._partition_name
-- raises:  nothing

-- The tables of days that may have rows past a retention, and that are not dropped as they are.
create or replace function messages._days_to_look_at(now timestamptz)
  returns setof text
  language plpgsql
  stable
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
  v_longest interval := messages._longest_keep();
begin
  -- One retention for all: days are dropped whole, and nothing is to be looked for in them.
  if v_shortest = v_longest then
    return;
  end if;
  return query
  select c.relname::text
  from pg_inherits as i
  join pg_class as c on c.oid = i.inhrelid
  where i.inhparent in ('messages.message_archive'::regclass, 'messages.attempt'::regclass)
    and c.relname ~ '^(message_archive|attempt)_\d{8}$'
    and to_date(right(c.relname, 8), 'YYYYMMDD')::timestamptz + v_shortest <= _days_to_look_at.now
    and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 > (_days_to_look_at.now - v_longest)::date
  order by c.relname;
end;
$$;

-- One step with one day. Null: it is done for now; else where to go on.
create or replace function messages._retain_day(
  relation text,
  now timestamptz,
  quantity bigint,
  few integer,
  inout _block bigint,
  out _removed bigint,
  out _next_at timestamptz
)
  returns record
  language plpgsql
as $$
declare
  v_plan messages.day_plan := messages._plan_day(relation, _retain_day.now);
  v_weight record;
  v_blocks constant bigint := greatest(_retain_day.quantity / 10, 1);
begin
  _removed := 0;
  _next_at := v_plan.next_at;
  if v_plan.brief <> '{}' then
    _removed := messages._sweep_brief(v_plan, _retain_day.now, _retain_day.quantity);
    if _removed >= _retain_day.quantity then
      _next_at := _retain_day.now;
      return;
    end if;
  end if;
  if v_plan.gone = '{}' and v_plan.success = '{}' and v_plan.dead = '{}' then
    _block := null;
    return;
  end if;
  if _block is null then
    select w.* into v_weight from messages._weigh_day(v_plan, _retain_day.few) as w;
    if not v_weight._has_gone then
      return;
    elsif not messages._is_in_lakes(relation) then
      _next_at := least(_next_at, _retain_day.now + interval '10 minutes');
      return;
    elsif v_weight._is_few then
      _removed := messages._compact_day(relation, _retain_day.now);
      if _removed is null then
        _removed := 0;
        _next_at := _retain_day.now + interval '5 seconds';
      end if;
      return;
    end if;
    _block := 0;
  end if;
  _removed := _removed + messages._sweep_blocks(v_plan, _block, v_blocks);
  _block := _block + v_blocks;
  if _block * current_setting('block_size')::bigint
    >= pg_relation_size(format('messages.%I', relation)::regclass)
  then
    _block := null;
  else
    _next_at := _retain_day.now;
  end if;
end;
$$;

create or replace function messages._retain(
  quantity bigint default 10000,
  few integer default 50000
)
  returns bigint
  language plpgsql
  set lock_timeout = '100ms'
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_hash bigint := messages._keep_hash();
  v_relation text;
  v_block bigint;
  v_removed bigint := 0::bigint;
  v_step record;
begin
  for v_relation, v_block in
    select d.relation, case when r.policy = v_hash then r.block end
    from messages._days_to_look_at(v_now) as d (relation)
    left join messages.retention_day as r on r.relation = d.relation
    where r.next_at is null or r.next_at <= v_now or r.policy <> v_hash
    order by r.next_at nulls first, d.relation
    limit 20
  loop
    begin
      select s.* into v_step
      from messages._retain_day(v_relation, v_now, _retain.quantity, _retain.few, v_block) as s;
    exception
      -- Somebody deletes dead messages of that day.
      when lock_not_available or deadlock_detected then
        continue;
    end;
    v_removed := v_removed + v_step._removed;
    if to_regclass(format('messages.%I', v_relation)) is null then
      delete from messages.retention_day as r where r.relation = v_relation;
    else
      insert into messages.retention_day as r (relation, next_at, policy, block, removed)
      values (
        v_relation,
        -- Where old snapshots make a step slow, it must not become all that happens.
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
