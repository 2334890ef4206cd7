-- Count archive: roll-ups of the archive itself, for reports where no lake is rolled up.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- No finer than it is asked for: most of the time goes into the groups. Queues and types that are
-- not told apart are empty.
create or replace function messages._count_archive(
  since timestamptz,
  until timestamptz,
  step interval default '1 hour',
  by_queue boolean default true,
  by_type boolean default true
)
  returns setof messages.rollup
  language sql
  stable
  set jit = off
as $$
  with counted as materialized (
    select
      case
        when step is null then '-infinity'
        else date_bin(step, a.archived_at, '2000-01-03 00:00+00')
      end as bucket_at,
      case when by_queue then a.queue else '' end as queue,
      case when by_type then coalesce(a.type, '') else '' end as type, a.status, a.attempts,
      (extract(epoch from w.wait) * 1000000)::bigint as waited,
      (extract(epoch from w.run) * 1000000)::bigint as ran
    from messages.message_archive as a
    -- Clocks are set back now and then: no time is negative.
    cross join lateral (
      select
        case when a.locked_at is not null then
          greatest(
            interval '0', a.locked_at - greatest(a.created_at, nullif(a.available_at, 'infinity'))
          )
        end as wait,
        case when a.locked_at is not null then
          greatest(interval '0', a.archived_at - a.locked_at)
        end as run
    ) as w
    where (since is null or a.archived_at >= since)
      and (until is null or a.archived_at < until)
  ), sums as (
    select c.bucket_at, c.queue, c.type, c.status, count(*) as finished,
      count(*) filter (where c.attempts > 1) as retried, sum(c.attempts)::bigint as attempts,
      count(c.waited) as waited,
      coalesce(least(sum(c.waited), 9223372036854775807), 0)::bigint as wait_total,
      coalesce(max(c.waited), 0) as wait_max,
      count(c.ran) as ran,
      coalesce(least(sum(c.ran), 9223372036854775807), 0)::bigint as run_total,
      coalesce(max(c.ran), 0) as run_max
    from counted as c
    group by c.bucket_at, c.queue, c.type, c.status
  ), bins as (
    select c.bucket_at, c.queue, c.type, c.status, k.kind, b.bin, count(*) as n
    from counted as c
    cross join lateral (values ('wait', c.waited), ('run', c.ran)) as k (kind, us)
    cross join lateral (
      select case
        when k.us <= 0 then -349
        else ceil(ln(k.us / 1000.0::double precision) / ln(1.02::double precision))::integer
      end as bin
    ) as b
    where k.us is not null
    group by c.bucket_at, c.queue, c.type, c.status, k.kind, b.bin
  ), histograms as (
    select b.bucket_at, b.queue, b.type, b.status,
      array_agg(b.bin order by b.bin) filter (where b.kind = 'wait') as wait_bins,
      array_agg(b.n order by b.bin) filter (where b.kind = 'wait') as wait_counts,
      array_agg(b.bin order by b.bin) filter (where b.kind = 'run') as run_bins,
      array_agg(b.n order by b.bin) filter (where b.kind = 'run') as run_counts
    from bins as b
    group by b.bucket_at, b.queue, b.type, b.status
  )
  select 0::bigint, 'hour', s.bucket_at, s.queue, s.type, s.status, s.finished, s.retried,
    s.attempts, s.waited, s.wait_total, s.wait_max, coalesce(h.wait_bins, '{}'),
    coalesce(h.wait_counts, '{}'), s.ran, s.run_total, s.run_max, coalesce(h.run_bins, '{}'),
    coalesce(h.run_counts, '{}')
  from sums as s
  left join histograms as h using (bucket_at, queue, type, status);
$$;
