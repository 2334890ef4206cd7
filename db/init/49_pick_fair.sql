-- Pick fairly: messages of the keys in turn, where keys have shares.
--
-- Claims go round and round through the keys. In each round a key has as many messages as its
-- weight says: one, or three, or with a half one in every second round. So all there is to remember
-- is how far the round has come, and a claim of ten reads ten keys, however many there are.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._key_rooms, messages._matches, messages._lane, messages._first_lane
-- raises:  nothing

-- Of these keys, which have these lanes, in this order, up to quantity messages, locked; from the
-- place on that state tells. Without is_all there are others behind them, so that no new round is
-- begun. loose are messages without a key, which share one turn, that of the first lane. _dry are
-- lanes that had less than was looked for, told where less than quantity was found.
create or replace function messages._pick_fair(
  queue messages.queue, keys text[], lanes bigint[], is_all boolean, quantity integer,
  filter jsonpath, running bigint[], given bigint[], loose bigint[], state messages.flow_state,
  out _ids bigint[], out _round bigint, out _after_lane bigint, out _had integer,
  out _dry bigint[]
)
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_has_rooms boolean := queue.key_concurrency is not null or queue.key_rate is not null;
begin
  with known as materialized (
    select k.key, k.lane, k.place, coalesce(s.weight, 1) as weight,
      -- What a key has had since round 0, if it was always there: up to this round, or with it.
      case when k.lane < state.after_lane then floor((state.round + 1) * coalesce(s.weight, 1))
        when k.lane > state.after_lane then floor(state.round * coalesce(s.weight, 1))
        else floor(state.round * coalesce(s.weight, 1)) + state.had end as had
    from (
      select u.key, u.lane, u.place
      from unnest(keys, lanes) with ordinality as u (key, lane, place)
      union all
      select null, messages._first_lane(queue.name), 0 where loose <> '{}'
    ) as k
    left join messages.share as s on s.queue = _pick_fair.queue.name and s.key = k.key
  ),
  rooms as materialized (
    select r._key, r._room
    from messages._key_rooms(
      queue, case when v_has_rooms then keys else '{}' end, running, given
    ) as r
    where v_has_rooms
  ),
  -- The last round that is needed where each of the keys has enough.
  bounds as materialized (
    select state.round + case when is_all then greatest(0, ceil(
      (quantity - sum(floor((state.round + 1) * k.weight) - k.had)) / sum(k.weight)
    )) else 0 end as last
    from known as k
  ),
  wanted as materialized (
    select k.key, k.lane, k.place, k.weight, k.had,
      greatest(0, least(quantity, floor((b.last + 1) * k.weight) - k.had, case
        when v_has_rooms and k.place > 0 then coalesce(r._room, 0) end))::integer as most
    from bounds as b
    cross join known as k
    left join rooms as r on r._key = k.key
  ),
  found as materialized (
    select w.lane, w.place, w.weight, w.had + f.number as had, f.id,
      ceil((w.had + f.number) / w.weight - 1e-9) - 1 as round
    from wanted as w
    cross join lateral (
      select a.id, row_number() over () as number
      from (
        select q.id
        from (
          -- A range of one lane, see _of_keys().
          select m.id
          from messages.message as m
          where not queue.ordered
            and m.queue = _pick_fair.queue.name
            and messages._lane(m.queue, m.key) >= w.lane
            and messages._lane(m.queue, m.key) <= w.lane
            and (not v_has_rooms or m.key = w.key)
            and m.state = 'waiting'
            and m.id <> all (_pick_fair.given)
            and (_pick_fair.filter is null or messages._matches(m, _pick_fair.filter))
          order by messages._lane(m.queue, m.key), m.priority desc, m.id
          limit w.most
          for update skip locked
        ) as q
        union all
        select o.id
        from (
          select m.id
          from (
            select e.id
            from messages.message as e
            where queue.ordered
              and e.queue = _pick_fair.queue.name
              and messages._lane(e.queue, e.key) >= w.lane
              and messages._lane(e.queue, e.key) <= w.lane
            order by messages._lane(e.queue, e.key), e.id
            limit 1
          ) as h
          join messages.message as m on m.id = h.id
          where (m.state = 'waiting') is true
            and m.id <> all (_pick_fair.given)
            and (_pick_fair.filter is null or messages._matches(m, _pick_fair.filter))
          for update of m skip locked
        ) as o
        union all
        select l.id
        from (
          select m.id
          from messages.message as m
          where w.place = 0
            and m.id = any (_pick_fair.loose)
            and (m.state = 'waiting') is true
            and m.id <> all (_pick_fair.given)
          limit w.most
          for update skip locked
        ) as l
      ) as a
    ) as f
    where w.most > 0
  ),
  picked as materialized (
    select f.* from found as f order by f.round, f.place, f.had limit quantity
  ),
  stopped as (
    select p.round, p.lane, p.had - floor(p.round * p.weight) as had
    from picked as p
    where (select count(*) from picked as c) = quantity
    order by p.round desc, p.place desc, p.had desc
    limit 1
  )
  select array(select p.id from picked as p),
    -- Where all that is there was had, the next round begins, or the next key has its turn.
    coalesce(s.round, b.last + case when is_all then 1 else 0 end)::bigint,
    coalesce(s.lane, case when is_all then messages._first_lane(queue.name)
      else lanes[cardinality(lanes)] end),
    coalesce(s.had, case when is_all then 0 else (
      select floor((b.last + 1) * k.weight) - floor(b.last * k.weight)
      from known as k
      where k.lane = lanes[cardinality(lanes)]
    ) end)::integer,
    array(
      select w.lane
      from wanted as w
      left join (select f.lane, count(*) as quantity from found as f group by f.lane) as c
        on c.lane = w.lane
      where s.lane is null
        and coalesce(c.quantity, 0) < floor((b.last + 1) * w.weight) - w.had
    )
  into _ids, _round, _after_lane, _had, _dry
  from bounds as b
  left join stopped as s on true;
end;
$$;
