-- Backlog: how many messages wait in each queue, and how many were finished.
--
-- raises: NQ003 invalid argument

-- Since when the oldest message of a queue waits: the first of each priority is compared.
create or replace function notifyq.waits_since(queue text)
  returns timestamptz language sql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
  with recursive firsts as (
    (
      select m.priority, m.available_at, 1 as number
      from messages.message as m
      where m.queue = waits_since.queue and m.state = 'waiting'
      order by m.priority desc, m.id
      limit 1
    )
    union all
    select n.priority, n.available_at, f.number + 1
    from firsts as f
    cross join lateral (
      select m.priority, m.available_at
      from messages.message as m
      where m.queue = waits_since.queue and m.state = 'waiting' and m.priority < f.priority
      order by m.priority desc, m.id
      limit 1
    ) as n
    where f.number < 100
  )
  select min(f.available_at) from firsts as f;
$$;

-- The queues, among these, where messages have waited for a minute and that no worker serves.
-- Clients that call the functions themselves report no queues: the messages that they have locked
-- show that they serve it. locked: the queues that have some; null: they are looked up.
create or replace function notifyq.unserved_queues(among text[], locked text[] default null)
  returns text[] language sql stable
as $$
  with waiting as materialized (
    select q.name
    from messages.queue as q
    where q.name = any (among)
      and not notifyq.is_paused(q)
      and not exists (
        select from notifyq.worker as w
        where w.seen_at > clock_timestamp() - interval '30 seconds' and q.name = any (w.queues)
      )
      and notifyq.waits_since(q.name) <= clock_timestamp() - interval '1 minute'
  )
  -- Last, and once for all: others may have locked many messages.
  select array(
    select w.name from waiting as w
    where w.name <> all (coalesce(
      locked, array(select distinct m.queue from messages.message as m where m.state = 'locked')
    ))
  );
$$;

-- How many messages wait, or are scheduled, in queues with too many to count: the estimate of the
-- server, which each vacuum renews, divided among these queues.
create or replace function notifyq.estimate_counts(
  state text,
  among text[],
  counted bigint,
  out _name text,
  out _guess bigint
)
  returns setof record language sql stable
  set jit = off
as $$
  with shares as (
    select a.name, coalesce(c._share, 0.001) as share
    from unnest(estimate_counts.among) as a (name)
    left join notifyq.common_values('messages.message', 'queue') as c on c._value = a.name
  )
  select s.name, greatest(
    (
      select (
        c.reltuples * pg_relation_size(c.oid) / nullif(c.relpages::bigint * 8192, 0)
        - estimate_counts.counted
      )::bigint
      from pg_class as c
      where c.oid = to_regclass('messages.message_' || estimate_counts.state || '_idx')
        and c.reltuples > 0
    ) * s.share / sum(s.share) over (), 0
  )::bigint
  from shares as s;
$$;

create or replace function messages.backlog(
  queue text default null,
  most integer default 10000
)
  returns setof messages.backlog_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_readable text[] := notifyq.readable_names(queue, to_workers => true);
  v_queues text[] := array(
    select q.name from messages.queue as q
    where (backlog.queue is null or q.name = backlog.queue)
      and (v_readable is null or q.name = any (v_readable))
  );
  v_most integer;
begin
  perform notifyq.check_quantity(backlog.most, 1000000);
  -- With many queues, fewer are counted in each: a call stays cheap.
  v_most := least(most, greatest(1000, 200000 / greatest(cardinality(v_queues), 1)));
  return query
  with locks as materialized (
    select m.queue as name, count(*) as locked,
      count(*) filter (where m.lock_expires_at <= v_now) as expired,
      min(m.lock_expires_at) filter (where m.lock_expires_at <= v_now) as oldest_at
    from messages.message as m
    where m.state = 'locked'
    group by m.queue
  ), unserved as materialized (
    select notifyq.unserved_queues(v_queues, array(select l.name from locks as l)) as names
  ), dead as materialized (
    select d.name, count(*) as dead,
      count(*) filter (where d.archived_at > v_now - interval '10 minutes') as recently
    from (
      select a.queue as name, a.id, a.archived_at
      from messages.message_archive as a
      where notifyq.is_dead(a.status, a.cancelled_by)
        and a.archived_at > v_now - interval '1 day'
        and (v_readable is null or a.queue = any (v_readable))
      -- Bounded: each reads a row somewhere in the archive.
      order by a.archived_at desc
      limit 2000
    ) as d
    -- `offset 0`: as in notifyq.dead_rows().
    where not exists (select from notifyq.redrive as r where r.archive_id = d.id offset 0)
    group by d.name
  ), counted as materialized (
    select u.name, w.waiting, s.scheduled, s.next_at, p.parked
    from unnest(v_queues) as u (name)
    cross join lateral (
      select count(*) as waiting
      from (
        select from messages.message as m
        where m.queue = u.name and m.state = 'waiting'
        limit v_most
      ) as l
    ) as w
    cross join lateral (
      select count(*) as scheduled, min(l.available_at) as next_at
      from (
        select m.available_at
        from messages.message as m
        where m.queue = u.name and m.state = 'scheduled' and m.parked_at is null
        order by m.available_at
        limit v_most
      ) as l
    ) as s
    cross join lateral (
      select count(*) as parked
      from (
        select from notifyq.step as o
        join messages.message as m on m.id = o.message_id and m.parked_at is not null
        where o.queue = u.name and o.state is null
        limit v_most
      ) as l
    ) as p
  ), beyond as materialized (
    select g.*
    from (values ('waiting'), ('scheduled')) as t (state)
    cross join lateral (
      select array_agg(n.name) filter (where n.counted = v_most) as names,
        coalesce(sum(n.counted) filter (where n.counted < v_most), 0)::bigint as counted
      from counted as c
      cross join lateral (
        select c.name, case t.state when 'waiting' then c.waiting else c.scheduled end as counted
      ) as n
    ) as o
    cross join lateral (
      select t.state, e._name as name, e._guess as guess
      from notifyq.estimate_counts(t.state, o.names, o.counted) as e
      -- The estimate is of all queues: it would show how many messages wait in those of others.
      where v_readable is null
    ) as g
  )
  select q.name, notifyq.is_paused(q), greatest(c.waiting, w.guess), greatest(c.scheduled, s.guess),
    coalesce(l.locked, 0), coalesce(l.expired, 0), coalesce(d.dead, 0),
    c.waiting < v_most and c.scheduled < v_most,
    notifyq.waits_since(q.name), l.oldest_at, c.next_at,
    q.name = any (u.names), c.parked, coalesce(d.recently, 0)
  from counted as c
  -- A join would compare each with each, as sorting is off.
  cross join lateral (
    select o.* from messages.queue as o where o.name = c.name offset 0
  ) as q
  cross join unserved as u
  left join beyond as w on w.state = 'waiting' and w.name = c.name
  left join beyond as s on s.state = 'scheduled' and s.name = c.name
  left join locks as l on l.name = c.name
  left join dead as d on d.name = c.name
  order by q.name;
end;
$$;
comment on function messages.backlog is
  'For each queue: how many messages wait, are scheduled, are locked, and are locked past the end '
  'of their lock (expired); how many failed permanently within a day, or 10 minutes '
  '(dead_recently), and were not retried, among the latest 2000 of all queues; since when the '
  'oldest message waits and the oldest lock is expired, when the next scheduled message is due, '
  'and whether messages have waited for a minute and no worker serves the queue; how many are '
  'parked, which are not in scheduled. Cheap enough for frequent calls: up to most are counted in '
  'each queue, fewer with more than 20 queues; beyond that is_exact is false and the number is '
  'the larger of the count and an estimate of the server, which a viewer does not get. Raises '
  'NQ003.';

-- Until when the roll-up of a lake has all that was archived. No row: there is none, or more than
-- one.
create or replace function notifyq.rolled_until(out _lake bigint, out _until timestamptz)
  returns setof record language sql stable
as $$
  select p.lake,
    -- An export has what its snapshot saw, some time before its commit.
    date_trunc('hour', b.committed_at - interval '1 hour', 'UTC')
  from notifyq.rollup_progress as p
  join notifyq.lake_batch as b on b.id = p.batch
  where (select count(*) from notifyq.rollup_progress as o) = 1;
$$;

-- The rows of one span of time, counted. One row with is_complete false: there are more than most.
create or replace function notifyq.count_finished(
  queues text[],
  since timestamptz,
  until timestamptz,
  step interval,
  most integer,
  by_queue boolean
)
  returns setof messages.throughput_report language sql stable
  set plan_cache_mode = force_custom_plan set enable_seqscan = off set enable_bitmapscan = off
  set jit = off
as $$
  with found as materialized (
    select date_bin(step, r.archived_at, '2000-01-03 00:00+00') as bucket_at,
      case when by_queue then u.name else '' end as name, r.status, r.wait, r.run,
      notifyq.is_dead(r.status, r.cancelled_by) as is_dead
    from unnest(queues) as u (name)
    cross join lateral (
      select a.archived_at, a.status, a.cancelled_by, a.wait, a.run
      from notifyq.timed_message as a
      where a.queue = u.name and a.archived_at >= since and a.archived_at < until
    ) as r
    limit most + 1
  )
  -- Percentiles ignore nulls: messages that were never claimed.
  select f.bucket_at, nullif(f.name, ''), f.status, count(*),
    count(*) filter (where f.is_dead),
    percentile_disc(0.50) within group (order by f.wait),
    percentile_disc(0.95) within group (order by f.wait),
    percentile_disc(0.99) within group (order by f.wait),
    percentile_disc(0.50) within group (order by f.run),
    percentile_disc(0.95) within group (order by f.run),
    percentile_disc(0.99) within group (order by f.run),
    'archive', true
  from found as f
  where (select count(*) from found as n) <= most
  group by grouping sets ((f.bucket_at, f.name, f.status), (f.bucket_at, f.name))
  union all
  select null, null, null, null, null, null, null, null, null, null, null, null, false
  where (select count(*) from found as n) > most;
$$;

create or replace function messages.throughput(
  since timestamptz default null,
  until timestamptz default null,
  step interval default null,
  queue text default null,
  by_queue boolean default false,
  most integer default 100000
)
  returns setof messages.throughput_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
declare
  v_readable text[] := notifyq.readable_names(queue, to_workers => true);
  v_until timestamptz := coalesce(until, clock_timestamp());
  v_since timestamptz := coalesce(since, v_until - interval '1 hour');
  v_step interval := step;
  v_queues text[] := array(
    select n.name
    from (
      select q.name from messages.queue as q
      union
      -- Dead events are archived under the name of their stream.
      select s.name from messages.stream as s
    ) as n
    where (throughput.queue is null or n.name = throughput.queue)
      and (v_readable is null or n.name = any (v_readable))
  );
  v_lake bigint;
  v_rolled timestamptz;
  v_from timestamptz;
  v_to timestamptz := v_until;
  v_size integer := 1;
  v_left integer := most;
  v_rows messages.throughput_report[];
begin
  perform notifyq.check_quantity(throughput.most, 10000000);
  perform notifyq.check_instant('since', v_since);
  perform notifyq.check_instant('until', v_until);
  perform notifyq.check_duration('step', v_step);
  v_step := coalesce(v_step, (
    select s.step
    from unnest('{5 s,10 s,30 s,1 min,2 min,5 min,10 min,15 min,30 min,1 h,3 h,6 h,1 day,7 days}'
      ::interval[]) as s (step)
    where v_since + s.step * 120 >= v_until
    order by s.step
    limit 1
  ), interval '28 days');
  if v_since >= v_until or v_step not between interval '1 second' and interval '1000 days'
    or extract(month from v_step) <> 0 or extract(year from v_step) <> 0
  then
    perform notifyq.raise_invalid(
      'since must be before until, and step from a second to 1000 days, without months',
      'step null: chosen to fit'
    );
  elsif v_since + v_step * 2000 < v_until then
    perform notifyq.raise_invalid(
      format('more than 2000 steps of %s', v_step), 'use a longer step, or a later since'
    );
  end if;
  v_since := date_bin(v_step, v_since, '2000-01-03 00:00+00');
  -- Percentiles of a roll-up are those of all queues.
  if v_readable is null and v_step >= interval '1 hour' and date_trunc('hour', v_step) = v_step then
    select r._lake, date_bin(v_step, r._until, '2000-01-03 00:00+00')
    into v_lake, v_rolled
    from notifyq.rolled_until() as r;
  end if;
  v_rolled := greatest(v_since, coalesce(v_rolled, v_since));
  -- From the newest span of time backwards, each longer than the last, until enough rows are read.
  while v_to > v_rolled and v_left > 0 loop
    v_from := greatest(
      date_bin(v_step, v_to - interval '1 microsecond', '2000-01-03 00:00+00')
        - v_step * (v_size - 1),
      v_rolled
    );
    v_rows := array(
      select f from notifyq.count_finished(v_queues, v_from, v_to, v_step, v_left, by_queue) as f
    );
    if v_rows[1].is_complete is false then
      exit when v_size = 1;
      v_size := greatest(1, v_size / 8);
      continue;
    end if;
    return query select r.* from unnest(v_rows) as r;
    v_left := v_left - (
      select coalesce(sum(r.finished), 0)::integer
      from unnest(v_rows) as r
      where r.status is not null
    );
    v_to := v_from;
    v_size := least(v_size * 2, 512);
  end loop;
  if v_to > v_rolled then
    -- There is a gap between the roll-up and the rows that were read.
    return next row(
      v_to, null, null, null, null, null, null, null, null, null, null, null, false
    )::messages.throughput_report;
  end if;
  if v_lake is not null and v_since < v_rolled then
    return query
    select s.bucket_at, s.queue, s.status, s.finished, s.dead, s.wait_p50, s.wait_p95, s.wait_p99,
      s.run_p50, s.run_p95, s.run_p99, 'rollup', true
    from (values (true), (false)) as d (by_status)
    cross join lateral notifyq.rollup_summary(
      v_since, v_rolled, v_step,
      case when by_queue or throughput.queue is not null then '{queue}' else '{}' end::text[]
        || case when d.by_status then '{status}' else '{}' end::text[],
      v_lake
    ) as s
    where throughput.queue is null or s.queue = throughput.queue;
  end if;
end;
$$;
comment on function messages.throughput is
  'Messages that were finished from since (null: an hour before until) to until (null: now), of '
  'one queue or all, by steps (null: chosen to fit): a row for each step and status, and one for '
  'each step as a whole (status null); with by_queue, for each queue. Percentiles of the time '
  'waited, from available to the lock, and of the time run. Steps of whole hours come from the '
  'roll-up where exactly one lake has one (source rollup); the rest is read from the archive, the '
  'newest first and not more than about most rows: then a row without numbers, is_complete false, '
  'gives the instant (bucket_at) from which on everything was read. Dropped queues are in roll-ups '
  'only. Raises NQ003.';
