-- Fair: which keys of a queue with shares are next.

-- Up to quantity messages, locked, and what the next claim goes by.
create or replace function notifyq.find_fair(
  queue messages.queue, quantity integer, filter jsonpath, state notifyq.flow_state
)
  returns notifyq.flow_pick
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state notifyq.flow_state := state;
  v_start constant bigint := notifyq.first_key_hash(queue.name);
  v_ids bigint[] := array[]::bigint[];
  v_began timestamptz := clock_timestamp();
  v_is_walk_due boolean :=
    v_began not between state.walk_at - interval '1 minute' and state.walk_at;
  v_loose bigint[] := array[]::bigint[];
  v_keys text[];
  v_lanes bigint[];
  v_first record;
  v_missing integer := quantity;
  v_is_end boolean;
  v_is_all boolean := false;
  v_is_waiting boolean := false;
  v_pick record;
  v_equal notifyq.flow_pick;
begin
  v_state.after_lane := coalesce(state.after_lane, v_start);
  if exists (
    select from messages.message as m
    where m.queue = find_fair.queue.name and m.state = 'scheduled' and m.available_at <= v_began
  ) then
    perform notifyq.stage_queue(queue.name, v_began, 10 * quantity);
  end if;
  if v_is_walk_due then
    select k._ids, k._place into v_loose, v_state.place
    from notifyq.find_keyless(queue.name, quantity, filter, state.place) as k;
    -- A small part of the time at most, and less where there are none.
    v_state.walk_at := clock_timestamp() + 100 * (clock_timestamp() - v_began)
      + case when v_loose = '{}' and v_state.place is null
        then interval '1 second' else interval '0' end;
  end if;
  if v_loose = '{}' and filter is null and not queue.ordered
    and queue.key_concurrency is null and queue.key_rate is null
    and not exists (select from messages.share as s where s.queue = find_fair.queue.name)
  then
    v_equal := notifyq.find_equal(queue.name, quantity, v_state);
    v_ids := v_equal.ids;
    v_state := v_equal.state;
    v_missing := quantity - cardinality(v_ids);
  end if;
  for v_window in 1 .. case when v_equal is null then 30 else 0 end loop
    if not v_is_all then
      select w._keys, w._lanes into v_keys, v_lanes
      from notifyq.waiting_keys(
        queue.name, v_state.after_lane, null, v_missing + 1, v_ids
      ) as w;
      v_is_end := cardinality(v_keys) <= v_missing;
      if v_is_end and v_state.after_lane = v_start then
        v_is_all := true;
      elsif v_is_end then
        select w._keys, w._lanes into v_first
        from notifyq.waiting_keys(
          queue.name, null, v_state.after_lane, v_missing + 1 - cardinality(v_keys), v_ids
        ) as w;
        v_is_all := cardinality(v_first._keys) + cardinality(v_keys) <= v_missing;
        -- Where they are few, all of them at once, and as many rounds as are needed.
        if v_is_all then
          v_keys := v_first._keys || v_keys;
          v_lanes := v_first._lanes || v_lanes;
        end if;
      end if;
      v_is_waiting := v_is_waiting or v_keys <> '{}';
    end if;
    exit when v_is_all and v_keys = '{}' and v_loose = '{}';
    if v_keys <> '{}' or v_loose <> '{}' then
      select p.* into v_pick
      from notifyq.select_fair(
        queue, v_keys, v_lanes, v_is_all, v_missing, filter, state.running, v_ids, v_loose,
        v_state
      ) as p;
      v_ids := v_ids || v_pick._ids;
      v_missing := quantity - cardinality(v_ids);
      v_state.round := v_pick._round;
      v_state.after_lane := v_pick._after_lane;
      v_state.had := v_pick._had;
      exit when v_missing = 0;
    end if;
    if v_is_all then
      -- Not those again that have no more: they would keep the others from their rounds.
      select coalesce(array_agg(k.key), '{}'), coalesce(array_agg(k.lane), '{}')
      into v_keys, v_lanes
      from unnest(v_keys, v_lanes) as k (key, lane)
      where k.lane <> all (v_pick._dry);
      v_loose := case when v_start = any (v_pick._dry) then '{}' else v_loose end;
    elsif v_is_end then
      v_state.round := v_state.round + 1;
      v_state.after_lane := v_start;
      v_state.had := 0;
    end if;
  end loop;
  if v_missing > 0 and not v_is_walk_due then
    select k._ids into v_loose
    from notifyq.find_keyless(queue.name, v_missing, filter, null) as k;
    if v_loose <> '{}' then
      select p.* into v_pick
      from notifyq.select_fair(
        queue, '{}', '{}', true, v_missing, filter, '{}', '{}', v_loose, v_state
      ) as p;
      v_ids := v_ids || v_pick._ids;
    end if;
  end if;
  return row(
    v_ids, v_state,
    v_missing > 0 and v_is_waiting and (queue.ordered or queue.key_concurrency is not null)
  );
end;
$$;

-- Pick fairly: messages of the keys in turn, where keys have shares.
--
-- Claims go round and round through the keys. In each round a key has as many messages as its
-- weight says: one, or three, or with a half one in every second round. So all there is to remember
-- is how far the round has come, and a claim of ten reads ten keys, however many there are.

-- Of these keys, which have these lanes, in this order, up to quantity messages, locked; from the
-- place on that state tells. Without is_all there are others behind them, so that no new round is
-- begun. loose are messages without a key, which share one turn, that of the first lane. _dry are
-- lanes that had less than was looked for, told where less than quantity was found.
create or replace function notifyq.select_fair(
  queue messages.queue, keys text[], lanes bigint[], is_all boolean, quantity integer,
  filter jsonpath, running bigint[], given bigint[], loose bigint[], state notifyq.flow_state,
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
      select null, notifyq.first_key_hash(queue.name), 0 where loose <> '{}'
    ) as k
    left join messages.share as s on s.queue = select_fair.queue.name and s.key = k.key
  ),
  rooms as materialized (
    select r._key, r._room
    from notifyq.room_of_keys(
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
          -- A range of one lane, see find_of_keys().
          select m.id
          from messages.message as m
          where not queue.ordered
            and m.queue = select_fair.queue.name
            and notifyq.key_hash(m.queue, m.key) >= w.lane
            and notifyq.key_hash(m.queue, m.key) <= w.lane
            and (not v_has_rooms or m.key = w.key)
            and m.state = 'waiting'
            and m.id <> all (select_fair.given)
            and (select_fair.filter is null or notifyq.matches(m, select_fair.filter))
          order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
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
              and e.queue = select_fair.queue.name
              and notifyq.key_hash(e.queue, e.key) >= w.lane
              and notifyq.key_hash(e.queue, e.key) <= w.lane
            order by notifyq.key_hash(e.queue, e.key), e.id
            limit 1
          ) as h
          join messages.message as m on m.id = h.id
          where (m.state = 'waiting') is true
            and m.id <> all (select_fair.given)
            and (select_fair.filter is null or notifyq.matches(m, select_fair.filter))
          for update of m skip locked
        ) as o
        union all
        select l.id
        from (
          select m.id
          from messages.message as m
          where w.place = 0
            and m.id = any (select_fair.loose)
            and (m.state = 'waiting') is true
            and m.id <> all (select_fair.given)
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
    coalesce(s.lane, case when is_all then notifyq.first_key_hash(queue.name)
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

-- Equal shares: the search of a claim where no key has a weight, a limit or an order.
--
-- It locks a message of each key from one key to the next, in one step for each. Where the keys are
-- fewer than the messages that are wanted, each gives the same number more. The weighted search
-- would do it, too, at 1.1 (100 keys) to 1.3 times (1500 keys) the processor time of a claim and
-- its finish, drained 500 at a time as notifyq bench --case flow does.

-- The first message of each key behind one lane and up to another, locked, up to quantity of them,
-- in the order of their lanes; none of given.
create or replace function notifyq.pick_firsts(
  queue text, after bigint, last bigint, quantity integer, given bigint[],
  out _ids bigint[], out _lanes bigint[]
)
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_busy constant xid[] := notifyq.running_transactions();
begin
  with recursive steps as (
    select null::bigint as id, after as lane, 0 as number
    union all
    select f.id, f.lane, s.number + 1
    from steps as s
    cross join lateral (
      select m.id, notifyq.key_hash(m.queue, m.key) as lane
      from messages.message as m
      where m.queue = pick_firsts.queue
        and m.state = 'waiting'
        and notifyq.key_hash(m.queue, m.key) > s.lane
        and notifyq.key_hash(m.queue, m.key) <= pick_firsts.last
        and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (pick_firsts.given))
      order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
      limit 1
      for update skip locked
    ) as f
    where s.number < pick_firsts.quantity
  )
  select coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.lane), '{}')
  into _ids, _lanes
  from steps as s
  where s.number > 0;
end;
$$;

-- Up to quantity messages of these lanes, locked: of each the same number, of the first ones one
-- more; none of given.
create or replace function notifyq.select_equal(
  queue text, lanes bigint[], quantity integer, given bigint[]
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_each constant integer := quantity / cardinality(lanes);
  v_more constant integer := quantity % cardinality(lanes);
begin
  return array(
    select f.id
    from unnest(lanes) with ordinality as l (lane, place)
    cross join lateral (
      -- A range of one lane, see find_of_keys().
      select m.id
      from messages.message as m
      where m.queue = select_equal.queue
        and notifyq.key_hash(m.queue, m.key) >= l.lane
        and notifyq.key_hash(m.queue, m.key) <= l.lane
        and m.state = 'waiting'
        -- A hash of them: each row that is read is looked up there.
        and m.id not in (select g.id from unnest(select_equal.given) as g (id))
      order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
      limit v_each + (l.place <= v_more)::integer
      for update skip locked
    ) as f
  );
end;
$$;

-- Up to quantity messages, locked, and what the next claim goes by.
create or replace function notifyq.find_equal(
  queue text, quantity integer, state notifyq.flow_state
)
  returns notifyq.flow_pick
  language plpgsql
as $$
declare
  v_state notifyq.flow_state := state;
  v_ids bigint[] := array[]::bigint[];
  v_missing integer := quantity;
  -- Behind which the next turn is: a key that has had its turn is the last one of all.
  v_after bigint := state.after_lane - (state.had = 0)::integer;
  v_pick record;
  v_rest record;
  v_lanes bigint[];
  v_last integer;
begin
  while v_missing > 0 loop
    select p.* into v_pick
    from notifyq.pick_firsts(
      queue, v_after, notifyq.last_key_hash(queue), v_missing, v_ids
    ) as p;
    v_ids := v_ids || v_pick._ids;
    v_lanes := v_pick._lanes;
    v_missing := quantity - cardinality(v_ids);
    if v_missing > 0 then
      select p.* into v_rest
      from notifyq.pick_firsts(
        queue, notifyq.first_key_hash(queue), v_after, v_missing, v_ids
      ) as p;
      v_ids := v_ids || v_rest._ids;
      v_lanes := v_lanes || v_rest._lanes;
      v_missing := quantity - cardinality(v_ids);
    end if;
    exit when v_lanes = '{}';
    v_last := cardinality(v_lanes);
    v_state.round := v_state.round + (v_lanes[v_last] <= v_after)::integer;
    v_after := v_lanes[v_last];
    if v_missing >= v_last then
      v_ids := v_ids || notifyq.select_equal(queue, v_lanes, v_missing, v_ids);
      v_state.round := v_state.round + v_missing / v_last;
      v_last := v_missing % v_last;
      if v_last > 0 then
        v_state.round := v_state.round + (v_lanes[v_last] <= v_after)::integer;
        v_after := v_lanes[v_last];
      end if;
      v_missing := quantity - cardinality(v_ids);
    end if;
    v_state.after_lane := v_after;
    v_state.had := 1;
  end loop;
  return row(v_ids, v_state, false);
end;
$$;
