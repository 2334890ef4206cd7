-- name: rows
-- Messages that finished in one hour of the sample. Each row is a pure function of its number and
-- the seed. Late ones are inserted by a transaction of their own, which commits a day later.
with
profile as (
  select *
  from jsonb_to_recordset(%(profiles)s::jsonb) as p (
    number integer, queue text, types text[], wait float8, wait_spread float8, run float8,
    run_spread float8, failure float8, max_attempts integer, errors text[]
  )
),
incident as (
  select *
  from jsonb_to_recordset(%(incidents)s::jsonb) as i (
    queue text, since timestamptz, until timestamptz, wait float8, run float8, failure float8,
    error text
  )
),
dice as (
  -- `offset 0`: columns are computed once for each row, not once for each use.
  select
    g.n,
    %(hour)s::timestamptz
      + interval '1 hour' * ((g.n - %(first)s + (d.a & 67108863) / 67108864.0::float8) / %(count)s)
      as created_at,
    ((d.a >> 26) & 67108863) / 67108864.0::float8 as of_queue,
    (d.b & 67108863) / 67108864.0::float8 as of_end,
    ((d.b >> 26) & 67108863) / 67108864.0::float8 as of_error,
    (d.c & 67108863) / 67108864.0::float8 as of_type,
    ((d.c >> 26) & 67108863) / 67108864.0::float8 as of_attempts,
    -- Two normal deviates (Box and Muller).
    sqrt(-2 * ln(((d.e & 67108863) + 1) / 67108864.0::float8)) as radius,
    2 * pi() * ((d.e >> 26) & 67108863) / 67108864.0::float8 as angle,
    d.f & 9223372036854775807 as noise
  from generate_series(%(first)s::bigint, %(first)s::bigint + %(count)s - 1) as g (n)
  cross join lateral (
    select
      hashint8extended(g.n, %(seed)s::bigint * 8) as a,
      hashint8extended(g.n, %(seed)s::bigint * 8 + 1) as b,
      hashint8extended(g.n, %(seed)s::bigint * 8 + 2) as c,
      hashint8extended(g.n, %(seed)s::bigint * 8 + 3) as e,
      hashint8extended(g.n, %(seed)s::bigint * 8 + 4) as f
    offset 0
  ) as d
  where ((d.f >> 40) & 63 = 0) = %(late)s
  offset 0
),
course as (
  select
    d.n, d.created_at, d.noise, d.of_error, p.queue, p.max_attempts,
    p.types[1 + floor(d.of_type * d.of_type * cardinality(p.types))::integer] as type,
    p.errors, i.error,
    least(
      p.wait * exp(p.wait_spread * d.radius * cos(d.angle)) * %(strain)s * coalesce(i.wait, 1),
      21600000
    ) as wait,
    least(
      p.run * exp(p.run_spread * d.radius * sin(d.angle)) * coalesce(i.run, 1), 21600000
    ) as run,
    case
      when d.of_end >= e.failure then 'success'
      when d.of_end >= e.failure * 0.3 then 'failed'
      when d.of_end >= e.failure * 0.08 then 'rejected'
      else 'lock_expired'
    end::messages.message_status as status,
    -- Most attempts that fail are followed by one that succeeds.
    least(p.max_attempts, 1 + floor(ln(1 - d.of_attempts) / ln(least(e.failure * 2, 0.9))))::integer
      as attempts
  from dice as d
  join profile as p on p.number = width_bucket(d.of_queue, %(bounds)s::float8[])
  left join incident as i
    on i.queue = p.queue and d.created_at >= i.since and d.created_at < i.until
  cross join lateral (
    select least(p.failure * coalesce(i.failure, 1), 0.95) as failure
  ) as e
  offset 0
),
ended as (
  select
    c.n, c.created_at, c.noise, c.queue, c.type, c.status, c.max_attempts, c.wait, c.run,
    t.attempts, 30000 * (power(2, t.attempts - 1) - 1) as retried,
    case
      when c.status = 'success' then null
      when c.status = 'lock_expired' then 'the lock expired'
      else replace(replace(replace(
        coalesce(
          case when c.of_error < 0.8 then c.error end,
          c.errors[1 + floor(c.of_error * c.of_error * cardinality(c.errors))::integer]
        ),
        '@n', (c.noise %% 100000)::text),
        '@h', 'db-' || c.noise %% 7 || '.internal:' || 5000 + c.noise %% 900),
        '@u', md5(c.n::text)::uuid::text)
    end as details
  from course as c
  cross join lateral (
    select
      case c.status when 'failed' then c.max_attempts when 'rejected' then 1 else c.attempts end
        as attempts
  ) as t
  offset 0
)
insert into notifyq.sample (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, key, message, headers, details, result, max_attempts
)
select
  e.n, e.created_at, t.available_at, t.locked_at, t.archived_at,
  e.attempts, case when e.noise %% 20 = 0 then 10 else 0 end, e.attempts, e.status, e.queue, e.type,
  'worker-' || e.noise %% 24 || ':' || 1000 + (e.noise >> 8) %% 24,
  case when e.noise %% 3 = 0 then 'customer-' || e.noise %% 9973 end,
  (
    '{"order_id": ' || e.n || ', "customer": "customer-' || e.noise %% 9973
    || '", "amount": ' || (e.noise %% 50000) / 100.0::float8 || ', "currency": "'
    || (array['EUR', 'USD', 'CHF', 'GBP'])[1 + e.noise %% 4]
    || '", "items": [' || e.noise %% 500 || ', ' || e.noise %% 707 || '], "note": "'
    || md5(e.noise::text) || '"'
    -- Payloads of real systems change: the second half has one more member.
    || case when %(newer)s then ', "channel": "web"}' else '}' end
  )::jsonb,
  case when e.noise %% 10 = 0 then jsonb_build_object('trace', md5(e.n::text)) else '{}' end,
  e.details,
  case when e.status = 'success' and e.noise %% 5 = 0 then '{"ok": true}'::jsonb end,
  e.max_attempts
from ended as e
-- A message that would end after the sample gets shorter times, all by the same factor.
cross join lateral (
  select
    least(
      1,
      extract(epoch from %(until)s::timestamptz - e.created_at)::float8 * 1000
        / (e.retried + e.wait + e.run) * 0.9999
    ) as fit
  offset 0
) as f
cross join lateral (
  select
    e.created_at + interval '1 millisecond' * (f.fit * e.retried) as available_at,
    e.created_at + interval '1 millisecond' * (f.fit * (e.retried + e.wait)) as locked_at,
    e.created_at + interval '1 millisecond' * (f.fit * (e.retried + e.wait + e.run)) as archived_at
) as t

-- name: digest
-- Instants are distances from the end: the same seed gives the same digest on every day.
select
  count(*), count(distinct a.queue), count(*) filter (where a.status <> 'success'),
  coalesce(sum(hashtextextended(concat_ws(
    '|', a.id, a.created_at - %(until)s::timestamptz, a.available_at - %(until)s::timestamptz,
    a.locked_at - %(until)s::timestamptz, a.archived_at - %(until)s::timestamptz,
    a.attempts, a.status, a.queue, a.type, a.handled_by, a.key, a.message, a.headers, a.details,
    a.result, a.max_attempts
  ), 0)::numeric), 0)
from messages.message_archive as a

-- name: is_used
select exists (select from messages.message_archive)
  or exists (select from messages.message)
  or exists (select from messages.event)
  or exists (select from messages.queue where name <> 'default')

-- name: queue
select messages.create_queue(
  %(queue)s, max_attempts => %(max_attempts)s, retention => %(retention)s
)

-- name: default_queue
select messages.alter_queue('default', retention => %(retention)s)

-- name: owner
select format('set role %%I', pg_get_userbyid(c.relowner))
from pg_class as c
where c.oid = 'messages.message_archive'::regclass

-- name: stage
-- Rows are inserted into a staging table: readers never see half a sample, its dead messages send
-- no notifications, and indexes are built once, at the end.
select unnest(array[
  'drop table if exists notifyq.sample',
  'create table notifyq.sample (like messages.message_archive including defaults) '
  'partition by range (archived_at)'
])
union all
select format(
  'create table notifyq.%%I (like messages.message_archive including defaults '
  'including constraints including storage including comments)', d.name
) || format(
  '; alter table notifyq.sample attach partition notifyq.%%I for values from (%%L) to (%%L)',
  d.name, d.day, d.day + interval '1 day'
)
from (
  select notifyq.partition_name(g.day::date) as name, g.day
  from generate_series(
    %(since)s::timestamptz, %(until)s::timestamptz - interval '1 day', interval '1 day'
  ) as g (day)
) as d

-- name: unstage
select format(
  'alter table notifyq.sample detach partition notifyq.%%I; '
  'alter table messages.message_archive attach partition notifyq.%%I %%s',
  c.relname, c.relname, pg_get_expr(c.relpartbound, c.oid)
)
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = 'notifyq.sample'::regclass
union all
select 'drop table notifyq.sample'

-- name: retired
-- Existing days are empty, and are replaced by those of the sample.
select format('drop table notifyq.%%I', d.name)
from notifyq.day_partition as d
where d.parent = 'message_archive'
  and d.day < (%(until)s::timestamptz at time zone 'UTC')::date

-- name: numbers
select setval(pg_get_serial_sequence('messages.message', 'id'), %(last)s)
