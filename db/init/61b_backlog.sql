-- Backlog: how much waits in each queue, at a cost that does not grow with it.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity, messages._common_values
-- raises:  NQ003 invalid argument

-- The instant from which on the oldest of a queue waits: of each priority, the first in turn.
create or replace function messages._waits_since(queue text)
  returns timestamptz
  language sql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  set jit = off
as $$
  with recursive firsts as (
    (
      select m.priority, m.available_at, 1 as number
      from messages.message as m
      where m.queue = _waits_since.queue and m.state = 'waiting'
      order by m.priority desc, m.id
      limit 1
    )
    union all
    select n.priority, n.available_at, f.number + 1
    from firsts as f
    cross join lateral (
      select m.priority, m.available_at
      from messages.message as m
      where m.queue = _waits_since.queue and m.state = 'waiting' and m.priority < f.priority
      order by m.priority desc, m.id
      limit 1
    ) as n
    where f.number < 100
  )
  select min(f.available_at) from firsts as f;
$$;

-- How many wait, or are scheduled, in queues that have too many to be counted: the server's own
-- guess, shared out among them. It is renewed by each vacuum.
create or replace function messages._guesses(
  state text,
  among text[],
  counted bigint,
  out _name text,
  out _guess bigint
)
  returns setof record
  language sql
  stable
  set jit = off
as $$
  with shares as (
    select a.name, coalesce(c._share, 0.001) as share
    from unnest(_guesses.among) as a (name)
    left join messages._common_values('message', 'queue') as c on c._value = a.name
  )
  select s.name, greatest(
    (
      select (
        c.reltuples * pg_relation_size(c.oid) / nullif(c.relpages::bigint * 8192, 0)
        - _guesses.counted
      )::bigint
      from pg_class as c
      where c.oid = to_regclass('messages.message_' || _guesses.state || '_idx')
        and c.reltuples > 0
    ) * s.share / sum(s.share) over (), 0
  )::bigint
  from shares as s;
$$;

create or replace function messages.backlog(
  queue text default null,
  most integer default 10000
)
  returns setof messages.backlog_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_queues text[] := array(
    select q.name from messages.queue as q
    where backlog.queue is null or q.name = backlog.queue
  );
  v_most integer;
begin
  perform messages._check_quantity(backlog.most, 1000000);
  -- Of many queues less is counted each, so that a call stays cheap.
  v_most := least(most, greatest(1000, 200000 / greatest(cardinality(v_queues), 1)));
  return query
  with locks as materialized (
    select m.queue as name, count(*) as locked,
      count(*) filter (where m.lock_expires_at <= v_now) as expired,
      min(m.lock_expires_at) filter (where m.lock_expires_at <= v_now) as oldest_at
    from messages.message as m
    where m.state = 'locked'
    group by m.queue
  ), dead as materialized (
    select d.name, count(*) as dead
    from (
      select a.queue as name
      from messages.message_archive as a
      where a.status <> 'success'
        and a.archived_at > v_now - interval '1 day'
        and not exists (select from messages.redrive as r where r.archive_id = a.id)
      -- Each is a row somewhere in the archive.
      order by a.archived_at desc
      limit 2000
    ) as d
    group by d.name
  ), counted as materialized (
    select u.name, w.waiting, s.scheduled, s.next_at
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
        where m.queue = u.name and m.state = 'scheduled'
        order by m.available_at
        limit v_most
      ) as l
    ) as s
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
      from messages._guesses(t.state, o.names, o.counted) as e
    ) as g
  )
  select q.name, q.paused, greatest(c.waiting, w.guess), greatest(c.scheduled, s.guess),
    coalesce(l.locked, 0), coalesce(l.expired, 0), coalesce(d.dead, 0),
    c.waiting < v_most and c.scheduled < v_most,
    messages._waits_since(q.name), l.oldest_at, c.next_at
  from counted as c
  join messages.queue as q on q.name = c.name
  left join beyond as w on w.state = 'waiting' and w.name = c.name
  left join beyond as s on s.state = 'scheduled' and s.name = c.name
  left join locks as l on l.name = c.name
  left join dead as d on d.name = c.name
  order by q.name;
end;
$$;
comment on function messages.backlog(text, integer) is
  'For each queue, how many messages wait, are scheduled, locked and locked past their time '
  '(expired), how many died within a day and were not redriven (of the 2000 that did last, in all '
  'queues), since when the first in turn of all its priorities waits, since when the oldest lock '
  'is expired, and when the next scheduled one is due. Made for being asked again and again: of '
  'each queue up to most are counted, fewer of each where there are more than 20 queues; where '
  'there are more, is_exact is false and the number is what the server guesses, and surely no less '
  'than those that were counted. Raises NQ003.';
