-- Retention: how long messages are kept, by queue and by outcome, and what the archive holds.
--
-- raises: NQ003 invalid argument

-- A day whose rows are all older is dropped whole.
create or replace function notifyq.longest_retention()
  returns interval language sql stable
as $$
  select greatest(
    (select max(greatest(q.retention, q.retention_dead)) from messages.queue as q),
    p.retention, p.retention_dead
  )
  from (select) as once
  left join messages.archive_policy as p on true;
$$;

-- A name that is no queue is a dropped queue, or a stream with dead events.
create or replace function notifyq.queue_retention(queues text[])
  returns setof notifyq.queue_keep language sql stable
as $$
  select u.name,
    coalesce(q.retention, p.retention, l.keep),
    coalesce(q.retention_dead, q.retention, p.retention_dead, p.retention, l.keep)
  from unnest(queue_retention.queues) as u (name)
  left join messages.archive_policy as p on true
  cross join notifyq.longest_retention() as l (keep)
  left join messages.queue as q on q.name = u.name;
$$;

-- Changes with every retention, also where a plain UPDATE changed it: all days are scanned again.
create or replace function notifyq.retention_hash()
  returns bigint language sql stable
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

-- Rows of the archive are kept until every lake has them. `notifyq doctor` reports a lake that is
-- not exported to any more.
create or replace function notifyq.is_in_lakes(relation text)
  returns boolean language plpgsql stable
as $$
begin
  return relation ~ '^attempt' or not exists (
    select from notifyq.lake as l where not notifyq.is_exported(l, relation)
  );
end;
$$;

-- The queues of the rows in the table of a day.
create or replace function notifyq.queues_of(relation text)
  returns text[] language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_queues text[];
begin
  if relation ~ '^attempt_[0-9]' then
    -- Attempts are few, and have no index by queue.
    execute format('select array(select distinct t.queue from notifyq.%I as t)', relation)
    into v_queues;
    return v_queues;
  end if;
  -- From one queue to the next by the index: one index scan for each queue, not for each row.
  execute format(
    'with recursive step as ('
    '  (select a.queue from notifyq.%I as a order by a.queue limit 1)'
    '  union all'
    '  select ('
    '    select a.queue from notifyq.%I as a where a.queue > s.queue order by a.queue limit 1'
    '  ) from step as s where s.queue is not null'
    ') select array(select s.queue from step as s where s.queue is not null)', relation, relation
  ) into v_queues;
  return v_queues;
end;
$$;

-- Which rows of the table of a day stay. A retention of a day or more ends for all rows of the day
-- at once; the rows of `brief` queues, whose retention is shorter, are removed as they age.
create or replace function notifyq.plan_day(relation text, now timestamptz)
  returns notifyq.day_plan language plpgsql stable
  set timezone = 'UTC'
as $$
declare
  v_from timestamptz := to_date(right(relation, 8), 'YYYYMMDD')::timestamptz;
  v_until timestamptz := v_from + interval '1 day';
  v_is_archive boolean := relation !~ '^attempt';
  v_shortest interval := (
    select min(least(q.retention, q.retention_dead)) from messages.queue as q
  );
  v_plan notifyq.day_plan;
begin
  select relation,
    coalesce(array_agg(c.queue) filter (where not c.past and not c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (where not c.past and c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (where c.past and not c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (where c.past and c.dead_past), '{}'),
    coalesce(array_agg(c.queue) filter (
      where c.is_brief and not (c.past and c.dead_past)), '{}'),
    -- A late commit can add a row to any day.
    least(min(c.next_at), plan_day.now + interval '1 day')
  into v_plan
  from (
    select k.queue,
      v_until + k.success <= plan_day.now as past,
      v_until + k.dead <= plan_day.now as dead_past,
      v_is_archive and least(k.success, k.dead) < interval '1 day'
        and v_from + least(k.success, k.dead) < plan_day.now as is_brief,
      least(
        case when v_until + k.success > plan_day.now then v_until + k.success end,
        case when v_until + k.dead > plan_day.now then v_until + k.dead end
      ) as next_at
    from (
      select n.queue,
        -- An attempt belongs to either: it stays while one of them does.
        case when v_is_archive then n.success else greatest(n.success, n.dead) end as success,
        case when v_is_archive then n.dead else greatest(n.success, n.dead) end as dead
      from notifyq.queue_retention(notifyq.queues_of(relation)) as n
    ) as k
  ) as c;
  -- A queue without a row in this day may still get one.
  if v_until > plan_day.now then
    v_plan.next_at := least(v_plan.next_at, v_until + v_shortest);
  end if;
  if v_is_archive and v_shortest < interval '1 day' and v_until + v_shortest > plan_day.now then
    v_plan.next_at := least(
      v_plan.next_at,
      greatest(v_from, plan_day.now) + greatest(v_shortest / 10, interval '10 seconds')
    );
  end if;
  return v_plan;
end;
$$;

create or replace function messages.alter_archive(
  retention interval default null,
  retention_dead interval default null,
  days_ahead integer default null
)
  returns messages.archive_policy language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_policy messages.archive_policy;
begin
  insert into messages.archive_policy (id) values (1)
  on conflict on constraint archive_policy_id_pk do nothing;
  select p.* into v_policy from messages.archive_policy as p for update;
  v_policy.retention := nullif(coalesce(retention, v_policy.retention), interval '0');
  v_policy.retention_dead :=
    nullif(coalesce(retention_dead, v_policy.retention_dead), interval '0');
  v_policy.days_ahead := coalesce(days_ahead, v_policy.days_ahead);
  perform notifyq.check_positive('retention', v_policy.retention);
  perform notifyq.check_positive('retention_dead', v_policy.retention_dead);
  perform notifyq.check_between('days_ahead', v_policy.days_ahead, 1, 366);
  update messages.archive_policy as p
  set retention = v_policy.retention, retention_dead = v_policy.retention_dead,
    days_ahead = v_policy.days_ahead;
  return v_policy;
end;
$$;
comment on function messages.alter_archive is
  'Change the policy of the whole archive and return it; null keeps a value, 0 removes a '
  'retention. retention: default for new queues, and retention of dropped queues and of dead '
  'events; retention_dead: the same for messages that did not succeed; days_ahead: for how many '
  'days after today partitions are created. Raises NQ003.';

-- How many rows of each queue the table of a day has. A small table is counted. A large one goes by
-- the statistics of the server: queues that are not among the most common values become one row
-- without a name, and dead is unknown.
create or replace function notifyq.weigh_queues(relation text)
  returns setof messages.retention_report language plpgsql stable
as $$
declare
  v_class regclass := format('notifyq.%I', relation)::regclass;
  v_day date := to_date(right(relation, 8), 'YYYYMMDD');
  v_bytes bigint := pg_total_relation_size(v_class);
  v_rows bigint;
begin
  if pg_relation_size(v_class) <= 8000000 then
    return query execute format(
      'select a.queue, true, null::interval, null::interval, count(*),'
      ' count(*) filter (where a.status <> ''success''),'
      ' (%L * count(*) / sum(count(*)) over ())::bigint, %L::date'
      ' from notifyq.%I as a group by a.queue', v_bytes, v_day, relation
    );
    return;
  end if;
  v_rows := notifyq.estimate_count(relation);
  return query
  with known as (
    select c._value as queue, c._share as share
    from notifyq.common_values(v_class, 'queue') as c
  )
  select k.queue, true, null::interval, null::interval, (v_rows * k.share)::bigint, null::bigint,
    (v_bytes * k.share)::bigint, v_day
  from (
    select n.queue, n.share from known as n
    union all
    select null, 1 - coalesce(sum(n.share), 0) from known as n
    having coalesce(sum(n.share), 0) < 0.9999
  ) as k;
end;
$$;

create or replace function messages.retention_info()
  returns setof messages.retention_report language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  with kept as (
    select w.queue, sum(w.rows)::bigint as rows,
      case when count(w.dead) = count(*) then sum(w.dead)::bigint end as dead,
      sum(w.bytes)::bigint as bytes, min(w.first_day) as first_day
    from notifyq.day_partition as d
    cross join lateral notifyq.weigh_queues(d.name) as w
    where d.parent = 'message_archive' and w.rows > 0
    group by w.queue
  ),
  each as (
    select coalesce(q.name, k.queue) as queue, q.name is not null as is_known, k.rows, k.dead,
      k.bytes, k.first_day
    from messages.queue as q
    full join kept as k on k.queue = q.name
  )
  select e.queue, e.is_known, p.success, p.dead, coalesce(e.rows, 0),
    case when e.rows is null then 0 else e.dead end, coalesce(e.bytes, 0), e.first_day
  from each as e
  left join lateral notifyq.queue_retention(array[e.queue]) as p on e.queue is not null
  order by e.bytes desc nulls last, e.queue;
$$;
comment on function messages.retention_info is
  'One row for each queue, and for each dropped queue or stream with archived messages (is_known '
  'false): how long messages that succeeded and those that did not are kept, how many are in the '
  'archive, how many of them did not succeed, their bytes with indexes, and the first day. Days of '
  'more than 8 MB go by the statistics of the server: figures are estimates, dead is null, and '
  'rare queues are one row without a name.';

create or replace function notifyq.next_step(relation text, now timestamptz)
  returns text language plpgsql stable
as $$
declare
  v_plan notifyq.day_plan := notifyq.plan_day(relation, next_step.now);
  v_weight record;
begin
  select w.* into v_weight from notifyq.weigh_day(v_plan, 50000) as w;
  return case
    when v_weight._has_gone and v_weight._is_few and v_plan.queues || v_plan.success || v_plan.dead
      = '{}' then 'drop'
    when v_weight._has_gone and v_weight._is_few then 'rewrite'
    when v_weight._has_gone then 'delete'
    when v_plan.brief <> '{}' then 'age'
  end;
end;
$$;

create or replace function messages.archive_info()
  returns setof messages.day_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_longest interval := notifyq.longest_retention();
  v_to_retain text[] := array(select notifyq.days_to_retain(v_now));
begin
  return query
  select d.day, w.rows, w.dead, pg_relation_size(d.class) <= 8000000,
    pg_total_relation_size(d.class),
    coalesce(pg_total_relation_size(to_regclass(
      'notifyq.' || notifyq.partition_name(d.day, 'attempt')
    )), 0) + coalesce(pg_total_relation_size(to_regclass(
      'notifyq.' || notifyq.partition_name(d.day, 'attempt_log')
    )), 0),
    coalesce(r.removed, 0), g.goes_at, r.next_at,
    case
      when d.day + 1 <= (v_now - v_longest)::date then 'drop'
      when d.name = any (v_to_retain) then notifyq.next_step(d.name, v_now)
    end,
    (
      select l.location from notifyq.lake as l
      where w.rows > 0 and g.goes_at <= v_now + interval '1 day'
        and not notifyq.is_exported(l, d.name)
      order by l.id limit 1
    )
  from notifyq.day_partition as d
  cross join lateral (
    select coalesce(sum(q.rows), 0)::bigint as rows,
      case when count(q.dead) = count(*) then coalesce(sum(q.dead), 0)::bigint else (
        select (sum(q.rows) * (1 - coalesce(sum(c._share), 0)))::bigint
        from notifyq.common_values(d.class, 'status') as c
        where c._value = 'success'
      ) end as dead
    from notifyq.weigh_queues(d.name) as q
  ) as w
  cross join lateral (
    select (d.day + 1)::timestamptz + max(greatest(k.success, k.dead)) as goes_at
    from notifyq.queue_retention(notifyq.queues_of(d.name)) as k
  ) as g
  left join notifyq.retention_day as r on r.relation = d.name
  where d.parent = 'message_archive'
  order by d.day;
end;
$$;
comment on function messages.archive_info is
  'Each day of the archive, also days to come: rows and those that did not succeed, counted '
  '(is_exact) or estimated by the server; bytes with indexes, and those of its attempts and logs; '
  'how many rows retention has removed; when its last row is due to go (goes_at); when it is '
  'scanned next (next_at), and what maintenance does next (next_step): drop it, rewrite it without '
  'what is past retention, delete that in steps, or age: delete what is kept for less than a day; '
  'awaits: the lake that must have it first.';
