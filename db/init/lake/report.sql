-- Report: throughput, percentiles, errors and workers, from roll-ups or the archive.
--
-- raises: NQ003 invalid argument

create or replace function notifyq.rollup_lake(lake bigint)
  returns bigint language plpgsql stable
as $$
declare
  v_lakes bigint[];
begin
  if lake is not null then
    return lake;
  end if;
  v_lakes := array(select p.lake from notifyq.rollup_progress as p order by p.lake);
  if cardinality(v_lakes) > 1 then
    perform notifyq.raise_invalid(
      format('there are roll-ups of the lakes %s', array_to_string(v_lakes, ', ')),
      'pass one of them as lake; messages.lakes() lists them'
    );
  end if;
  return coalesce(v_lakes[1], 0);
end;
$$;

-- The middle of the bin: at most 1 % off any time in it.
create or replace function notifyq.bin_span(bin integer, most_us bigint)
  returns interval language sql immutable
as $$
  select case
    when bin is null then null
    when bin = -349 then interval '0'
    -- There are a few thousand bins; the power of a larger number would overflow.
    else notifyq.bounded_interval(
      least(power(1.02::double precision, least(bin, 10000)) / 1.01 * 1000, most_us) / 1000000
    )
  end;
$$;

create or replace function notifyq.rollup_summary(
  since timestamptz default null,
  until timestamptz default null,
  step interval default null,
  dimensions text[] default '{queue}',
  lake bigint default null
)
  returns setof notifyq.rollup_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
declare
  v_lake bigint := notifyq.rollup_lake(lake);
begin
  perform notifyq.check_duration('step', step);
  if not coalesce(dimensions <@ '{queue,type,status}', false) then
    perform notifyq.raise_invalid(
      format('dimensions must be some of queue, type and status, not %s', dimensions),
      'an empty array groups by none'
    );
  end if;
  if step < interval '1 hour' or date_trunc('hour', step) <> step
    or extract(month from step) <> 0 or extract(year from step) <> 0
  then
    perform notifyq.raise_invalid(
      format('step must be whole hours or days, not %s', step), 'null: all of the time as one'
    );
  end if;
  return query
  with rolled as materialized (
    select r.* from notifyq.rollup as r
    where r.lake = v_lake
      and (since is null or r.bucket_at >= since)
      and (until is null or r.bucket_at < until)
    union all
    select r.*
    from notifyq.count_archive(
      since, until, step, 'queue' = any (dimensions), 'type' = any (dimensions)
    ) as r
    where v_lake = 0
  ), picked as materialized (
    -- Not null, which would join with nothing.
    select
      case
        when step is null then '-infinity'
        else date_bin(step, r.bucket_at, '2000-01-03 00:00+00')
      end as at,
      case when 'queue' = any (dimensions) then r.queue else '' end as of_queue,
      case when 'type' = any (dimensions) then r.type else '' end as of_type,
      case when 'status' = any (dimensions) then r.status::text else '' end as of_status, r.*
    from rolled as r
  ), sums as (
    select p.at, p.of_queue, p.of_type, p.of_status, sum(p.finished)::bigint as finished,
      sum(p.dead)::bigint as dead, sum(p.retried)::bigint as retried,
      sum(p.attempts)::bigint as attempts,
      sum(p.wait_total_us) / nullif(sum(p.waited), 0) / 1000000 as wait_mean,
      max(p.wait_max_us) as wait_max,
      sum(p.run_total_us) / nullif(sum(p.ran), 0) / 1000000 as run_mean,
      max(p.run_max_us) as run_max
    from picked as p
    group by p.at, p.of_queue, p.of_type, p.of_status
  ), bins as (
    select p.at, p.of_queue, p.of_type, p.of_status, h.kind, h.bin, sum(h.n) as n
    from picked as p
    cross join lateral (
      select 'wait' as kind, w.bin, w.n from unnest(p.wait_bins, p.wait_counts) as w (bin, n)
      union all
      select 'run', x.bin, x.n from unnest(p.run_bins, p.run_counts) as x (bin, n)
    ) as h
    group by p.at, p.of_queue, p.of_type, p.of_status, h.kind, h.bin
  ), ranked as (
    select b.*, sum(b.n) over below as upto,
      sum(b.n) over (partition by b.at, b.of_queue, b.of_type, b.of_status, b.kind) as total
    from bins as b
    window below as (
      partition by b.at, b.of_queue, b.of_type, b.of_status, b.kind order by b.bin
    )
  ), quantiles as (
    select k.at, k.of_queue, k.of_type, k.of_status, k.kind,
      min(k.bin) filter (where k.upto >= 0.5 * k.total) as p50,
      min(k.bin) filter (where k.upto >= 0.95 * k.total) as p95,
      min(k.bin) filter (where k.upto >= 0.99 * k.total) as p99
    from ranked as k
    group by k.at, k.of_queue, k.of_type, k.of_status, k.kind
  )
  select nullif(s.at, '-infinity'), case when 'queue' = any (dimensions) then s.of_queue end,
    case when 'type' = any (dimensions) then s.of_type end,
    nullif(s.of_status, '')::messages.message_status, s.finished, s.dead, s.retried, s.attempts,
    notifyq.bounded_interval(s.wait_mean::double precision), notifyq.bin_span(w.p50, s.wait_max),
    notifyq.bin_span(w.p95, s.wait_max), notifyq.bin_span(w.p99, s.wait_max),
    case when s.wait_mean is not null then notifyq.bounded_interval(s.wait_max / 1000000.0) end,
    notifyq.bounded_interval(s.run_mean::double precision), notifyq.bin_span(x.p50, s.run_max),
    notifyq.bin_span(x.p95, s.run_max), notifyq.bin_span(x.p99, s.run_max),
    case when s.run_mean is not null then notifyq.bounded_interval(s.run_max / 1000000.0) end
  from sums as s
  left join quantiles as w
    on (w.at, w.of_queue, w.of_type, w.of_status) = (s.at, s.of_queue, s.of_type, s.of_status)
    and w.kind = 'wait'
  left join quantiles as x
    on (x.at, x.of_queue, x.of_type, x.of_status) = (s.at, s.of_queue, s.of_type, s.of_status)
    and x.kind = 'run'
  order by s.at, s.finished desc, s.of_queue, s.of_type, s.of_status;
end;
$$;
comment on function notifyq.rollup_summary is
  'Throughput, dead messages, retries, and percentiles of wait and run times, of buckets that '
  'begin from since on and before until, grouped by steps of whole hours or days in UTC (null: all '
  'of the time as one) and by some of queue, type and status. Percentiles are at most 1 % off. '
  'lake: number of the lake; null: the only one that is rolled up; 0, or where there is none: the '
  'archive itself is counted. Raises NQ003.';

create or replace function notifyq.rollup_errors(
  since timestamptz default null,
  until timestamptz default null,
  queue text default null,
  quantity integer default 20,
  lake bigint default null
)
  returns setof notifyq.error_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
declare
  v_lake bigint := notifyq.rollup_lake(lake);
begin
  perform notifyq.check_quantity(quantity, 10000);
  return query
  with counted as (
    select e.fingerprint, e.queue, e.status, e.errors, e.first_at, e.last_at, e.sample
    from notifyq.rollup_error as e
    where e.lake = v_lake
      and (since is null or e.bucket_at >= since)
      and (until is null or e.bucket_at < until)
      and (rollup_errors.queue is null or e.queue = rollup_errors.queue)
    union all
    select notifyq.error_fingerprint(a.details), a.queue, a.status, 1, a.archived_at,
      a.archived_at, left(a.details, 1000)
    from messages.message_archive as a
    where v_lake = 0
      and notifyq.is_dead(a.status, a.cancelled_by)
      and (since is null or a.archived_at >= since)
      and (until is null or a.archived_at < until)
      and (rollup_errors.queue is null or a.queue = rollup_errors.queue)
  ), by_queue as (
    select c.fingerprint, c.queue, sum(c.errors) as errors,
      array_agg(distinct c.status) as statuses, min(c.first_at) as first_at,
      max(c.last_at) as last_at, (array_agg(c.sample order by c.last_at desc))[1] as sample
    from counted as c
    group by c.fingerprint, c.queue
  )
  select b.fingerprint, sum(b.errors)::bigint, (array_agg(b.queue order by b.errors desc))[1:10],
    array(
      select distinct s.status
      from by_queue as o
      cross join unnest(o.statuses) as s (status)
      where o.fingerprint = b.fingerprint
      order by s.status
    ),
    min(b.first_at), max(b.last_at), (array_agg(b.sample order by b.last_at desc))[1]
  from by_queue as b
  group by b.fingerprint
  order by b.fingerprint = '(others)', sum(b.errors) desc, b.fingerprint
  limit rollup_errors.quantity;
end;
$$;
comment on function notifyq.rollup_errors is
  'Dead messages by fingerprint, the most frequent first: queues (the first ten), statuses, first '
  'and last time, and the details of the last one. Of buckets that begin from since on and before '
  'until; of one queue (null: all). lake as in rollup_summary(). Raises NQ003.';

create or replace function notifyq.rollup_workers(
  since timestamptz default null,
  until timestamptz default null,
  queue text default null,
  quantity integer default 20,
  lake bigint default null
)
  returns setof notifyq.worker_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
declare
  v_lake bigint := notifyq.rollup_lake(lake);
begin
  perform notifyq.check_quantity(quantity, 10000);
  return query
  with counted as (
    select w.worker, w.queue, w.finished, w.dead, w.run_total_us
    from notifyq.rollup_worker as w
    where w.lake = v_lake
      and (since is null or w.bucket_at >= since)
      and (until is null or w.bucket_at < until)
      and (rollup_workers.queue is null or w.queue = rollup_workers.queue)
    union all
    select coalesce(a.handled_by, ''), a.queue, count(*),
      count(*) filter (where notifyq.is_dead(a.status, a.cancelled_by)),
      coalesce(sum(extract(epoch from a.run)) * 1000000, 0)
    from notifyq.timed_message as a
    where v_lake = 0
      and (since is null or a.archived_at >= since)
      and (until is null or a.archived_at < until)
      and (rollup_workers.queue is null or a.queue = rollup_workers.queue)
    group by coalesce(a.handled_by, ''), a.queue
  ), by_queue as (
    select c.worker, c.queue, sum(c.finished) as finished, sum(c.dead) as dead,
      sum(c.run_total_us) as run_total_us
    from counted as c
    group by c.worker, c.queue
  )
  select b.worker, (array_agg(b.queue order by b.finished desc, b.queue))[1:10],
    sum(b.finished)::bigint, sum(b.dead)::bigint,
    notifyq.bounded_interval((sum(b.run_total_us) / 1000000)::double precision)
  from by_queue as b
  group by b.worker
  order by b.worker in ('', '(others)'), sum(b.finished) desc, b.worker
  limit rollup_workers.quantity;
end;
$$;
comment on function notifyq.rollup_workers is
  'Workers, the busiest first: queues (the first ten), how many messages they finished, how many '
  'of them failed permanently, and how long they ran. An empty name: no worker had them. Arguments '
  'as in rollup_errors(). Raises NQ003.';

create or replace function notifyq.rollup_range(
  lake bigint default null,
  out source bigint,
  out first_at timestamptz,
  out last_at timestamptz,
  out finished bigint,
  out rolled_at timestamptz
)
  language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  source := notifyq.rollup_lake(lake);
  if source = 0 then
    select min(a.archived_at), max(a.archived_at), count(*)
    into first_at, last_at, finished
    from messages.message_archive as a;
    return;
  end if;
  select min(r.bucket_at), max(r.bucket_at)
  into first_at, last_at
  from notifyq.rollup as r
  where r.lake = source;
  select p.messages, p.rolled_at
  into finished, rolled_at
  from notifyq.rollup_progress as p
  where p.lake = source;
end;
$$;
comment on function notifyq.rollup_range is
  'What reports can cover: the number of the lake (source; 0: the archive itself), its first and '
  'last bucket, how many messages there are, and when they were rolled up. lake as in '
  'rollup_summary(). Raises NQ003.';
