-- Alerts: hours of the archive by queue, and telling once which of them are not as they used to be.
--
-- owns:    nothing
-- writes:  messages.anomaly; a queue for alerts, and a message in it for each
-- calls:   messages.create_queue, messages.publish, messages.error_fingerprint
-- raises:  NQ003 a metric that there is not; else as messages.publish()

create or replace function messages.archive_hours(since timestamptz, until timestamptz)
  returns setof messages.hour_report
  language sql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set timezone = 'UTC'
  set jit = off
as $$
  with archived as (
    select
      date_trunc('hour', a.archived_at) as bucket_at, a.queue, a.status, a.details,
      extract(epoch from a.locked_at - greatest(a.available_at, a.created_at)) * 1000 as waited,
      extract(epoch from a.archived_at - a.locked_at) * 1000 as ran
    from messages.message_archive as a
    where a.archived_at >= since
      and a.archived_at < until
  ),
  -- Once, and not for each hour anew.
  error as materialized (
    select f.bucket_at, f.queue, jsonb_object_agg(f.fingerprint, f.n) as errors
    from (
      select a.bucket_at, a.queue, count(*) as n,
        messages.error_fingerprint(a.details) as fingerprint
      from archived as a
      where a.status <> 'success'
      group by a.bucket_at, a.queue, 4
    ) as f
    group by f.bucket_at, f.queue
  )
  select h.bucket_at, h.queue, h.finished, h.dead, h.wait_p95, h.run_p95, coalesce(e.errors, '{}')
  from (
    select
      a.bucket_at, a.queue, count(*) as finished,
      count(*) filter (where a.status <> 'success') as dead,
      percentile_cont(0.95) within group (order by a.waited::float8) as wait_p95,
      percentile_cont(0.95) within group (order by a.ran::float8) as run_p95
    from archived as a
    group by a.bucket_at, a.queue
  ) as h
  left join error as e on e.bucket_at = h.bucket_at and e.queue = h.queue;
$$;
comment on function messages.archive_hours(timestamptz, timestamptz) is
  'Hours (in UTC) of the archive in a span of time, by queue: messages, dead ones, p95 of the time '
  'of waiting and of running in milliseconds, and the errors of the dead by fingerprint.';

create or replace function messages.report_anomalies(anomalies jsonb, alerts text default null)
  returns setof messages.anomaly
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_row messages.anomaly;
begin
  -- What nobody would look at any more; a few more than one call adds in the long run.
  delete from messages.anomaly as a
  where (a.queue, a.metric, a.bucket_at) in (
    select o.queue, o.metric, o.bucket_at
    from messages.anomaly as o
    where o.found_at < clock_timestamp() - interval '400 days'
    order by o.found_at
    limit 10000
  );
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
        message = format('there is no metric %L', v_row.metric),
        hint = 'it is wait, run, failures or errors';
    end if;
    -- The row first: of two that find the same at once, one waits here and then passes over it.
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
comment on function messages.report_anomalies(jsonb, text) is
  'Keep what `notifyq spark anomalies` has found, and publish each as a message of type anomaly '
  'into the queue alerts, which is created if it is missing. An hour, queue and metric that is '
  'known is passed over. Returns the new ones. Those found 400 days ago are forgotten.';
