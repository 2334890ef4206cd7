-- Keep: for how long messages of each queue stay in the archive.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._is_exported
-- raises:  nothing

-- A day whose rows are all older is dropped as it is.
create or replace function messages._longest_keep()
  returns interval
  language sql
  stable
as $$
  select greatest(
    (select max(greatest(q.retention, q.retention_dead)) from messages.queue as q),
    p.retention, p.retention_dead
  )
  from (select) as once
  left join messages.archive_policy as p on true;
$$;

-- Of queues by name. One that is not there was dropped, or is a stream, whose events died.
create or replace function messages._keeps(queues text[])
  returns setof messages.queue_keep
  language sql
  stable
as $$
  select u.name,
    coalesce(q.retention, p.retention, l.keep),
    coalesce(
      q.retention_dead, q.retention, p.retention_dead, p.retention, l.keep
    )
  from unnest(_keeps.queues) as u (name)
  left join messages.archive_policy as p on true
  cross join messages._longest_keep() as l (keep)
  left join messages.queue as q on q.name = u.name;
$$;

-- What says that a day must be looked through again, also where an UPDATE changed a queue.
create or replace function messages._keep_hash()
  returns bigint
  language sql
  stable
  set intervalstyle = 'postgres'
as $$
  select hashtextextended(concat_ws(
    e'\n', p.retention, '/', p.retention_dead,
    (
      select string_agg(
        concat_ws('/', q.retention, q.retention_dead, q.name), e'\n' order by q.name
      )
      from messages.queue as q
    )
  ), 0)
  from (select) as once
  left join messages.archive_policy as p on true;
$$;

-- Whether a day's table may go: a lake comes first. One that is not exported any more is told of by
-- `notifyq doctor`.
create or replace function messages._is_in_lakes(relation text)
  returns boolean
  language plpgsql
  stable
as $$
begin
  return relation ~ '^attempt' or not exists (
    select from messages.lake as l where not messages._is_exported(l, relation)
  );
end;
$$;

-- The queues of the rows in a day's table.
create or replace function messages._queues_of(relation text)
  returns text[]
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_queues text[];
begin
  if relation ~ '^attempt' then
    -- They are few, and have no index by queue.
    execute format('select array(select distinct t.queue from messages.%I as t)', relation)
    into v_queues;
    return v_queues;
  end if;
  -- From one queue to the next by the index: as many looks as queues, not as many as rows.
  execute format(
    'with recursive step as ('
    '  (select a.queue from messages.%I as a order by a.queue limit 1)'
    '  union all'
    '  select ('
    '    select a.queue from messages.%I as a where a.queue > s.queue order by a.queue limit 1'
    '  ) from step as s where s.queue is not null'
    ') select array(select s.queue from step as s where s.queue is not null)', relation, relation
  ) into v_queues;
  return v_queues;
end;
$$;

-- What is to become of a day's table. Of the queues in it all rows of `queues` are to stay and none
-- of `gone`; of `success` and `dead` those that ended so. Retentions of a day and more are over
-- when they are for the whole day; what has a shorter one goes as it ages: `brief`, until then.
create or replace function messages._plan_day(relation text, now timestamptz)
  returns messages.day_plan
  language plpgsql
  stable
  set timezone = 'UTC'
as $$
declare
  v_from timestamptz := to_date(right(relation, 8), 'YYYYMMDD')::timestamptz;
  v_until timestamptz := v_from + interval '1 day';
  v_is_archive boolean := relation !~ '^attempt';
  v_shortest interval := (
    select min(least(q.retention, q.retention_dead)) from messages.queue as q
  );
  v_plan messages.day_plan;
begin
  select relation,
    coalesce(array_agg(c.queue) filter (where not c.past and not c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (where not c.past and c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (where c.past and not c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (where c.past and c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (
      where c.is_brief and not (c.past and c.dead_past)), '{}'),
    -- A late commit may bring a row into any day.
    least(min(c.next_at), _plan_day.now + interval '1 day')
  into v_plan
  from (
    select k.queue,
      v_until + k.success <= _plan_day.now as past,
      v_until + k.dead <= _plan_day.now as dead_past,
      v_is_archive and least(k.success, k.dead) < interval '1 day'
        and v_from + least(k.success, k.dead) < _plan_day.now as is_brief,
      least(
        case when v_until + k.success > _plan_day.now then v_until + k.success end,
        case when v_until + k.dead > _plan_day.now then v_until + k.dead end
      ) as next_at
    from (
      select n.queue,
        -- An attempt may be of either: it stays while one of them does.
        case when v_is_archive then n.success else greatest(n.success, n.dead) end as success,
        case when v_is_archive then n.dead else greatest(n.success, n.dead) end as dead
      from messages._keeps(messages._queues_of(relation)) as n
    ) as k
  ) as c;
  -- A queue may have no row in it yet.
  if v_until > _plan_day.now then
    v_plan.next_at := least(v_plan.next_at, v_until + v_shortest);
  end if;
  if v_is_archive and v_shortest < interval '1 day' and v_until + v_shortest > _plan_day.now then
    v_plan.next_at := least(
      v_plan.next_at,
      greatest(v_from, _plan_day.now) + greatest(v_shortest / 10, interval '10 seconds')
    );
  end if;
  return v_plan;
end;
$$;
