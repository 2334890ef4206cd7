-- Pick fairly: the messages of the keys that have had least, where keys have shares.
--
-- Each key has a turn: how many messages it has had, by its weight. Who has had least is next, so
-- the turns of all that have something waiting rise together, as water does in a vessel. Up to
-- which level they will rise is worked out beforehand, and only what lies below it is read.
--
-- owns:    nothing
-- writes:  messages.message (row locks), messages.flow_key
-- calls:   messages._key_rooms, messages._pay, messages._matches
-- raises:  nothing

-- Of the keys that have had least, up to breadth of them, up to quantity messages, locked; their
-- keys have paid. loose are messages without a key, which share the turn of the empty one. _first
-- is the least turn of those that had something; _dry are those that had less than was looked for,
-- told where less than quantity was found.
create or replace function messages._pick_fair(
  queue messages.queue, keys text[], quantity integer, breadth integer, filter jsonpath,
  running bigint[], given bigint[], loose bigint[], floor double precision,
  out _ids bigint[], out _first double precision, out _dry text[]
)
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_has_rooms boolean := queue.key_concurrency is not null or queue.key_rate is not null;
begin
  with known as materialized (
    select k.key, l.number, greatest(l.turn, _pick_fair.floor) as turn, l.paid_at,
      coalesce(s.weight, 1) as weight
    from (
      select u.key from unnest(keys) as u (key)
      union all
      select '' where loose <> '{}' and '' <> all (keys)
    ) as k
    left join messages.share as s on s.queue = _pick_fair.queue.name and s.key = k.key
    left join lateral (
      select f.number, f.turn, f.paid_at
      from messages.flow_key as f
      where f.queue = _pick_fair.queue.name
        and f.key = k.key
      order by f.number desc
      limit 1
    ) as l on true
  ),
  rooms as materialized (
    select r._key, r._room
    from messages._key_rooms(
      queue, case when v_has_rooms then keys else '{}' end, running, given
    ) as r
  ),
  near as (
    select k.key, k.turn, k.weight,
      case when v_has_rooms then coalesce(r._room, 0) else 2147483647 end as room
    from known as k
    left join rooms as r on r._key = k.key
    where not v_has_rooms
      or r._room > 0
      or k.key = '' and loose <> '{}'
    order by k.turn + 1 / k.weight
    limit breadth
  ),
  -- As high as the first, the first two ... would rise: least where those above it are left out.
  rising as materialized (
    select n.*,
      (_pick_fair.quantity + sum(n.turn * n.weight) over w) / sum(n.weight) over w as level
    from near as n
    window w as (order by n.turn rows unbounded preceding)
  ),
  wanted as materialized (
    select r.key, r.turn, r.weight, r.room,
      greatest(1, ceil((min(r.level) over () - r.turn) * r.weight - 1e-6)) as most,
      r.turn < min(r.level) over () as is_below
    from rising as r
  ),
  found as materialized (
    select w.key, f.id, f.priority, w.turn + f.place / w.weight as turn
    from wanted as w
    cross join lateral (
      select a.id, a.priority, row_number() over () as place
      from (
        select q.id, q.priority
        from (
          -- A range of one key, see _of_keys().
          select m.id, m.priority
          from messages.message as m
          where not queue.ordered
            and m.queue = _pick_fair.queue.name
            and m.key >= w.key
            and m.key <= w.key
            and m.state = 'waiting'
            and m.id <> all (_pick_fair.given)
            and (_pick_fair.filter is null or messages._matches(m, _pick_fair.filter))
          order by m.key, m.priority desc, m.id
          limit least(w.room, w.most)
          for update skip locked
        ) as q
        union all
        select o.id, o.priority
        from (
          select m.id, m.priority
          from (
            select e.id
            from messages.message as e
            where queue.ordered
              and w.room > 0
              and e.queue = _pick_fair.queue.name
              and e.key >= w.key
              and e.key <= w.key
            order by e.key, e.id
            limit 1
          ) as h
          join messages.message as m on m.id = h.id
          where (m.state = 'waiting') is true
            and m.id <> all (_pick_fair.given)
            and (_pick_fair.filter is null or messages._matches(m, _pick_fair.filter))
          for update of m skip locked
        ) as o
        union all
        select l.id, l.priority
        from (
          select m.id, m.priority
          from messages.message as m
          where w.key = ''
            and m.id = any (_pick_fair.loose)
            and (m.state = 'waiting') is true
            and m.id <> all (_pick_fair.given)
          limit w.most
          for update skip locked
        ) as l
      ) as a
    ) as f
    where w.is_below
  ),
  picked as materialized (
    select f.key, f.id from found as f order by f.turn, f.priority desc, f.id limit quantity
  ),
  charged as materialized (
    select k.key, k.number, k.turn as old, k.turn + c.quantity / k.weight as turn,
      case when queue.key_rate is null then coalesce(k.paid_at, '-infinity')
        else messages._pay(
          coalesce(k.paid_at, '-infinity'), v_now, c.quantity, queue.key_rate,
          queue.key_rate_period
        ) end as paid_at
    from (select p.key, count(*) as quantity from picked as p group by p.key) as c
    join known as k on k.key = c.key
  ),
  changed as (
    update messages.flow_key as f
    set number = f.number + 1, turn = c.turn, paid_at = c.paid_at
    from charged as c
    where f.queue = _pick_fair.queue.name
      and f.key = c.key
      and f.number = c.number
  ),
  added as (
    insert into messages.flow_key (queue, key, number, turn, paid_at)
    select _pick_fair.queue.name, c.key, 0, c.turn, c.paid_at
    from charged as c
    where c.number is null
  )
  select array(select p.id from picked as p), (select min(c.old) from charged as c), array(
    select w.key
    from wanted as w
    left join (select f.key, count(*) as quantity from found as f group by f.key) as c
      on c.key = w.key
    where w.is_below
      and coalesce(c.quantity, 0) < least(w.room, w.most)
      and (select count(*) from picked as p) < _pick_fair.quantity
  )
  into _ids, _first, _dry;
end;
$$;
