-- Report of errors: what went wrong most, who did the work, and from when to when there is any.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity, messages._rollup_lake, messages.error_fingerprint,
--          messages._span
-- raises:  NQ003 invalid argument

create or replace function messages.rollup_errors(
  since timestamptz default null,
  until timestamptz default null,
  queue text default null,
  quantity integer default 20,
  lake bigint default null
)
  returns setof messages.error_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
as $$
declare
  v_lake bigint := messages._rollup_lake(lake);
begin
  perform messages._check_quantity(quantity, 10000);
  return query
  with counted as (
    select e.fingerprint, e.queue, e.status, e.errors, e.first_at, e.last_at, e.sample
    from messages.rollup_error as e
    where e.lake = v_lake
      and (since is null or e.bucket_at >= since)
      and (until is null or e.bucket_at < until)
      and (rollup_errors.queue is null or e.queue = rollup_errors.queue)
    union all
    select messages.error_fingerprint(a.details), a.queue, a.status, 1, a.archived_at,
      a.archived_at, left(a.details, 1000)
    from messages.message_archive as a
    where v_lake = 0
      and a.status <> 'success'
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
comment on function messages.rollup_errors(
  timestamptz, timestamptz, text, integer, bigint
) is
  'Dead messages by fingerprint, the most frequent first: in which queues (the first ten), how '
  'they ended, when first and last, and the details of the last one. Of buckets that begin from '
  'since on and before until; of one queue (null: all). lake as in rollup_summary(). Raises NQ003.';

create or replace function messages.rollup_workers(
  since timestamptz default null,
  until timestamptz default null,
  queue text default null,
  quantity integer default 20,
  lake bigint default null
)
  returns setof messages.worker_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
as $$
declare
  v_lake bigint := messages._rollup_lake(lake);
begin
  perform messages._check_quantity(quantity, 10000);
  return query
  with counted as (
    select w.worker, w.queue, w.finished, w.dead, w.run_total_us
    from messages.rollup_worker as w
    where w.lake = v_lake
      and (since is null or w.bucket_at >= since)
      and (until is null or w.bucket_at < until)
      and (rollup_workers.queue is null or w.queue = rollup_workers.queue)
    union all
    select coalesce(a.handled_by, ''), a.queue, count(*),
      count(*) filter (where a.status <> 'success'),
      coalesce(
        sum(extract(epoch from greatest(interval '0', a.archived_at - a.locked_at))) * 1000000, 0
      )
    from messages.message_archive as a
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
    messages._span((sum(b.run_total_us) / 1000000)::double precision)
  from by_queue as b
  group by b.worker
  order by b.worker in ('', '(others)'), sum(b.finished) desc, b.worker
  limit rollup_workers.quantity;
end;
$$;
comment on function messages.rollup_workers(
  timestamptz, timestamptz, text, integer, bigint
) is
  'Workers, the busiest first: in which queues (the first ten), how many messages they finished, '
  'how many of them died, and how long they ran. Empty: no worker had them. Arguments as in '
  'rollup_errors(). Raises NQ003.';

create or replace function messages.rollup_range(
  lake bigint default null,
  out source bigint,
  out first_at timestamptz,
  out last_at timestamptz,
  out finished bigint,
  out rolled_at timestamptz
)
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  source := messages._rollup_lake(lake);
  if source = 0 then
    select min(a.archived_at), max(a.archived_at), count(*)
    into first_at, last_at, finished
    from messages.message_archive as a;
    return;
  end if;
  select min(r.bucket_at), max(r.bucket_at)
  into first_at, last_at
  from messages.rollup as r
  where r.lake = source;
  select p.messages, p.rolled_at
  into finished, rolled_at
  from messages.rollup_progress as p
  where p.lake = source;
end;
$$;
comment on function messages.rollup_range(bigint) is
  'What reports can be about: the number of the lake (source; 0: the archive itself), its first '
  'and its last bucket, how many messages there are, and when they were rolled up. lake as in '
  'rollup_summary(). Raises NQ003.';
