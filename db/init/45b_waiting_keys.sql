-- Waiting keys: of which keys something waits in a queue.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._lane, messages._first_lane, messages._last_lane
-- raises:  nothing

-- Transactions other than this one that are under way. What they have locked they keep, mostly:
-- claims of the same moment need not read it to be told so.
create or replace function messages._under_way()
  returns xid[]
  language plpgsql
  stable
as $$
declare
  v_snapshot constant pg_snapshot := pg_current_snapshot();
  v_next constant xid8 := pg_snapshot_xmax(v_snapshot);
begin
  -- A snapshot names those before the last one that has ended; the others have begun since.
  return array(
    select s.id::xid from pg_snapshot_xip(v_snapshot) as s (id)
    union all
    select (v_next::text::bigint + n.later)::text::xid8::xid
    from generate_series(0, least(age(v_next::xid), 1000) - 1) as n (later)
  );
end;
$$;

-- Keys of which something waits, up to quantity of them, from one lane on and up to another (null:
-- from the first, to the last one), and of each the message that is handed out first: not one of
-- given, and none that another transaction has just locked. Ordered as the index of what waits is:
-- the other one has what is locked and scheduled as well. It is read in pieces: behind the last key
-- of one begins the next, which is larger where little waits of each key, and as large as what is
-- missing takes by then. Where much waits of each, steps from one key to the next come in between.
create or replace function messages._waiting_keys(
  queue text, first bigint, last bigint, quantity integer, given bigint[],
  out _keys text[], out _lanes bigint[], out _ids bigint[]
)
  language plpgsql
  stable
  set enable_seqscan = off
  -- As in _look(): what waits of a whole queue would be read, and sorted, for each of its keys.
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_busy constant xid[] := messages._under_way();
  v_first constant bigint := coalesce(first, messages._first_lane(queue));
  v_last constant bigint := coalesce(last - 1, messages._last_lane(queue));
  v_steps constant integer := 64;
begin
  with recursive pieces as (
    (
      select array[m.key] as keys, array[messages._lane(m.queue, m.key)] as lanes,
        array[m.id] as ids, messages._lane(m.queue, m.key) as last, 16 as size, 1 as seen
      from messages.message as m
      where m.queue = _waiting_keys.queue
        and m.state = 'waiting'
        and messages._lane(m.queue, m.key) >= v_first
        and messages._lane(m.queue, m.key) <= v_last
        and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (_waiting_keys.given))
      order by messages._lane(m.queue, m.key), m.priority desc, m.id
      limit 1
    )
    union all
    select n.keys, n.lanes, n.ids, n.last,
      case when p.size = 0 then 16
        when 7 * cardinality(n.lanes) < p.size then 0
        else least(2 * p.size, 256, 8 + p.size * (
          _waiting_keys.quantity - p.seen - cardinality(n.lanes)
        ) / cardinality(n.lanes)) end,
      p.seen + cardinality(n.lanes)
    from pieces as p
    cross join lateral (
      select array_agg(t.key) as keys, array_agg(t.lane) as lanes, array_agg(t.id) as ids,
        max(t.lane) as last
      from (
        with recursive steps as (
          select null::text as key, p.last as lane, null::bigint as id, 0 as number
          where p.size = 0
          union all
          select f.key, f.lane, f.id, s.number + 1
          from steps as s
          cross join lateral (
            select m.key, messages._lane(m.queue, m.key) as lane, m.id
            from messages.message as m
            where m.queue = _waiting_keys.queue
              and m.state = 'waiting'
              and messages._lane(m.queue, m.key) > s.lane
              and messages._lane(m.queue, m.key) <= v_last
              and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (_waiting_keys.given))
            order by messages._lane(m.queue, m.key), m.priority desc, m.id
            limit 1
          ) as f
          where s.number < least(v_steps, _waiting_keys.quantity - p.seen)
        )
        select r.key, r.lane, r.id from steps as r where r.number > 0
      ) as t
      having p.size = 0
      union all
      select array_agg(k.key), array_agg(k.lane), array_agg(k.id), max(k.lane)
      from (
        select distinct on (r.lane) r.key, r.lane, r.id
        from (
          select m.key, messages._lane(m.queue, m.key) as lane, m.priority, m.id
          from messages.message as m
          where p.size > 0
            and m.queue = _waiting_keys.queue
            and m.state = 'waiting'
            and messages._lane(m.queue, m.key) > p.last
            and messages._lane(m.queue, m.key) <= v_last
            and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (_waiting_keys.given))
          order by messages._lane(m.queue, m.key), m.priority desc, m.id
          limit p.size
        ) as r
        order by r.lane, r.priority desc, r.id
      ) as k
      having p.size > 0
    ) as n
    where p.seen < _waiting_keys.quantity
      and n.lanes is not null
  )
  select coalesce(array_agg(k.key), '{}'), coalesce(array_agg(k.lane), '{}'),
    coalesce(array_agg(k.id), '{}')
  into _keys, _lanes, _ids
  from (
    select u.key, u.lane, u.id
    from pieces as p
    cross join lateral unnest(p.keys, p.lanes, p.ids) as u (key, lane, id)
    limit _waiting_keys.quantity
  ) as k;
end;
$$;
