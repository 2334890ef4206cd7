-- Alerts: hours of history by queue, and alerts about those that deviate, each once.
--
-- raises: NQ003 unknown metric; else as messages.publish()

-- Hours from roll-ups: the n-th values of the three arrays are one hour.
create or replace function notifyq.rolled_hours(
  lakes bigint[],
  hours timestamptz[],
  queues text[]
)
  returns setof notifyq.hour_report language sql stable
  set jit = off
as $$
  with rolled as materialized (
    select r.*
    from unnest(lakes, hours, queues) as w (lake, bucket_at, queue)
    join notifyq.rollup as r using (lake, bucket_at, queue)
    where r.span = 'hour'
  ), bins as (
    select r.bucket_at, r.queue, h.kind, h.bin, sum(h.n) as n
    from rolled as r
    cross join lateral (
      select 'wait' as kind, w.bin, w.n from unnest(r.wait_bins, r.wait_counts) as w (bin, n)
      union all
      select 'run', x.bin, x.n from unnest(r.run_bins, r.run_counts) as x (bin, n)
    ) as h
    group by r.bucket_at, r.queue, h.kind, h.bin
  ), ranked as (
    select b.*,
      sum(b.n) over (partition by b.bucket_at, b.queue, b.kind order by b.bin) as upto,
      sum(b.n) over (partition by b.bucket_at, b.queue, b.kind) as total
    from bins as b
  ), quantiles as (
    select k.bucket_at, k.queue,
      min(k.bin) filter (where k.kind = 'wait') as wait,
      min(k.bin) filter (where k.kind = 'run') as run
    from ranked as k
    where k.upto >= 0.95 * k.total
    group by k.bucket_at, k.queue
  ), errors as (
    select f.bucket_at, f.queue, jsonb_object_agg(f.fingerprint, f.n) as errors
    from (
      select e.bucket_at, e.queue, e.fingerprint, sum(e.errors) as n
      from unnest(lakes, hours, queues) as w (lake, bucket_at, queue)
      join notifyq.rollup_error as e using (lake, bucket_at, queue)
      where e.span = 'hour'
      group by e.bucket_at, e.queue, e.fingerprint
    ) as f
    group by f.bucket_at, f.queue
  )
  select s.bucket_at, s.queue, s.finished, s.dead,
    extract(epoch from notifyq.bin_span(q.wait, s.wait_max))::double precision * 1000,
    extract(epoch from notifyq.bin_span(q.run, s.run_max))::double precision * 1000,
    coalesce(e.errors, '{}')
  from (
    select r.bucket_at, r.queue, sum(r.finished)::bigint as finished,
      sum(r.dead)::bigint as dead,
      max(r.wait_max_us) as wait_max, max(r.run_max_us) as run_max
    from rolled as r
    group by r.bucket_at, r.queue
  ) as s
  left join quantiles as q using (bucket_at, queue)
  left join errors as e using (bucket_at, queue);
$$;

-- Pruned hours are in roll-ups only, the newest in the archive only. Where both have an hour, the
-- one with more messages has all of them.
create or replace function notifyq.archive_hours(since timestamptz, until timestamptz)
  returns setof notifyq.hour_report language sql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC' set jit = off
as $$
  with archived as (
    select
      date_trunc('hour', a.archived_at) as bucket_at, a.queue, a.details,
      notifyq.is_dead(a.status, a.cancelled_by) as is_dead,
      extract(epoch from a.wait) * 1000 as waited, extract(epoch from a.run) * 1000 as ran
    from notifyq.timed_message as a
    where a.archived_at >= since
      and a.archived_at < until
  ),
  -- Materialized: else it is computed again for each hour.
  error as materialized (
    select f.bucket_at, f.queue, jsonb_object_agg(f.fingerprint, f.n) as errors
    from (
      select a.bucket_at, a.queue, count(*) as n,
        notifyq.error_fingerprint(a.details) as fingerprint
      from archived as a
      where a.is_dead
      group by a.bucket_at, a.queue, 4
    ) as f
    group by f.bucket_at, f.queue
  ), counted as materialized (
    select
      a.bucket_at, a.queue, count(*) as finished,
      count(*) filter (where a.is_dead) as dead,
      percentile_cont(0.95) within group (order by a.waited::float8) as wait_p95,
      percentile_cont(0.95) within group (order by a.ran::float8) as run_p95
    from archived as a
    group by a.bucket_at, a.queue
  ), rolled as materialized (
    select distinct on (r.bucket_at, r.queue) r.lake, r.bucket_at, r.queue
    from (
      select l.lake, l.bucket_at, l.queue, sum(l.finished) as finished
      from notifyq.rollup as l
      where l.span = 'hour'
        and l.bucket_at >= since
        and l.bucket_at < until
      group by l.lake, l.bucket_at, l.queue
    ) as r
    left join counted as c using (bucket_at, queue)
    where r.finished > coalesce(c.finished, 0)
    order by r.bucket_at, r.queue, r.finished desc
  )
  select c.bucket_at, c.queue, c.finished, c.dead, c.wait_p95, c.run_p95, coalesce(e.errors, '{}')
  from counted as c
  left join error as e using (bucket_at, queue)
  where (c.bucket_at, c.queue) not in (select r.bucket_at, r.queue from rolled as r)
  union all
  select h.*
  from (
    select array_agg(r.lake) as lakes, array_agg(r.bucket_at) as hours, array_agg(r.queue) as queues
    from rolled as r
  ) as w
  cross join lateral notifyq.rolled_hours(w.lakes, w.hours, w.queues) as h;
$$;
comment on function notifyq.archive_hours is
  'Hours (in UTC) from since on and before until, by queue: messages, dead ones, p95 of wait and '
  'run time in milliseconds, and the errors of the dead ones by fingerprint. Counted from the '
  'archive; hours of which the roll-up of a lake has more messages, since the archive was pruned, '
  'come from there, with a p95 at most 1 % off.';

create or replace function notifyq.report_anomalies(anomalies jsonb, alerts text default null)
  returns setof messages.anomaly language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_year timestamptz := clock_timestamp() - interval '400 days';
  v_row messages.anomaly;
begin
  delete from messages.anomaly as a
  where a.ctid = any (array(
    select o.ctid
    from messages.anomaly as o
    where o.found_at < v_year
    order by o.found_at
    limit 10000
  ));
  if alerts is not null then
    perform messages.create_queue(alerts);
  end if;
  for v_row in
    select r.*
    from jsonb_populate_recordset(null::messages.anomaly, anomalies) as r
    order by r.bucket_at, r.queue, r.metric
  loop
    if v_row.metric is null or v_row.metric not in ('wait', 'run', 'failures', 'errors') then
      raise exception using
        errcode = 'NQ003',
        message = format('unknown metric %L', v_row.metric),
        hint = 'metrics are wait, run, failures and errors';
    end if;
    -- The row first: of two sessions with the same anomaly, one waits here and then skips it.
    insert into messages.anomaly (
      bucket_at, value, expected, chance, finished, queue, metric, details
    )
    values (
      v_row.bucket_at, v_row.value, v_row.expected, v_row.chance, v_row.finished, v_row.queue,
      v_row.metric, v_row.details
    )
    on conflict do nothing
    returning * into v_row;
    continue when not found;
    if alerts is not null then
      v_row.message_id := messages.publish(
        alerts, to_jsonb(v_row) - 'message_id', type => 'anomaly'
      );
      update messages.anomaly as a
      set message_id = v_row.message_id
      where a.queue = v_row.queue and a.metric = v_row.metric and a.bucket_at = v_row.bucket_at;
    end if;
    return next v_row;
  end loop;
end;
$$;
comment on function notifyq.report_anomalies is
  'Record what `notifyq spark anomalies` has found, and publish each as a message of type anomaly '
  'into the queue alerts, which is created if it is missing. An hour, queue and metric that is '
  'recorded already is skipped. Returns the new ones. Removes anomalies older than 400 days.';
