-- Fair: claims go round the keys of a queue, by their weights.

-- Up to quantity messages, locked, and the state for the next claim.
create or replace function notifyq.find_fair(
  queue messages.queue, quantity integer, filter jsonpath, state notifyq.limit_state
)
  returns notifyq.limit_selection language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state notifyq.limit_state := state;
  v_start constant bigint := notifyq.first_key_hash(queue.name);
  v_ids bigint[] := array[]::bigint[];
  v_began timestamptz := clock_timestamp();
  v_is_scan_due boolean :=
    v_began not between state.keyless_scan_at - interval '1 minute' and state.keyless_scan_at;
  v_keyless bigint[] := array[]::bigint[];
  v_keys text[];
  v_key_hashes bigint[];
  v_first record;
  v_missing integer := quantity;
  v_is_end boolean;
  v_is_all boolean := false;
  v_is_waiting boolean := false;
  v_selection record;
  v_equal notifyq.limit_selection;
begin
  v_state.after_key_hash := coalesce(state.after_key_hash, v_start);
  if exists (
    select from messages.message as m
    where m.queue = find_fair.queue.name and m.state = 'scheduled' and m.available_at <= v_began
  ) then
    perform notifyq.stage_queue(queue.name, v_began, 10 * quantity);
  end if;
  if v_is_scan_due then
    select k._ids, k._position into v_keyless, v_state.position
    from notifyq.find_keyless(queue.name, quantity, filter, state.position) as k;
    -- The scan takes one per cent of the time at most, and less where there are no such messages.
    v_state.keyless_scan_at := clock_timestamp() + 100 * (clock_timestamp() - v_began)
      + case when v_keyless = '{}' and v_state.position is null
        then interval '1 second' else interval '0' end;
  end if;
  if v_keyless = '{}' and filter is null and not queue.ordered
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
      select w._keys, w._key_hashes into v_keys, v_key_hashes
      from notifyq.waiting_keys(
        queue.name, v_state.after_key_hash, null, v_missing + 1, v_ids
      ) as w;
      v_is_end := cardinality(v_keys) <= v_missing;
      if v_is_end and v_state.after_key_hash = v_start then
        v_is_all := true;
      elsif v_is_end then
        select w._keys, w._key_hashes into v_first
        from notifyq.waiting_keys(
          queue.name, null, v_state.after_key_hash, v_missing + 1 - cardinality(v_keys), v_ids
        ) as w;
        v_is_all := cardinality(v_first._keys) + cardinality(v_keys) <= v_missing;
        -- If there are few keys: all of them at once, for as many rounds as are needed.
        if v_is_all then
          v_keys := v_first._keys || v_keys;
          v_key_hashes := v_first._key_hashes || v_key_hashes;
        end if;
      end if;
      v_is_waiting := v_is_waiting or v_keys <> '{}';
    end if;
    exit when v_is_all and v_keys = '{}' and v_keyless = '{}';
    if v_keys <> '{}' or v_keyless <> '{}' then
      select p.* into v_selection
      from notifyq.select_fair(
        queue, v_keys, v_key_hashes, v_is_all, v_missing, filter, state.running, v_ids, v_keyless,
        v_state
      ) as p;
      v_ids := v_ids || v_selection._ids;
      v_missing := quantity - cardinality(v_ids);
      v_state.round := v_selection._round;
      v_state.after_key_hash := v_selection._after_key_hash;
      v_state.served := v_selection._served;
      exit when v_missing = 0;
    end if;
    if v_is_all then
      -- Exhausted keys are left out: they would delay the rounds of the others.
      select coalesce(array_agg(k.key), '{}'), coalesce(array_agg(k.key_hash), '{}')
      into v_keys, v_key_hashes
      from unnest(v_keys, v_key_hashes) as k (key, key_hash)
      where k.key_hash <> all (v_selection._exhausted);
      v_keyless := case when v_start = any (v_selection._exhausted) then '{}' else v_keyless end;
    elsif v_is_end then
      v_state.round := v_state.round + 1;
      v_state.after_key_hash := v_start;
      v_state.served := 0;
    end if;
  end loop;
  if v_missing > 0 and not v_is_scan_due then
    select k._ids into v_keyless
    from notifyq.find_keyless(queue.name, v_missing, filter, null) as k;
    if v_keyless <> '{}' then
      select p.* into v_selection
      from notifyq.select_fair(
        queue, '{}', '{}', true, v_missing, filter, '{}', '{}', v_keyless, v_state
      ) as p;
      v_ids := v_ids || v_selection._ids;
    end if;
  end if;
  return row(
    v_ids, v_state,
    v_missing > 0 and v_is_waiting and (queue.ordered or queue.key_concurrency is not null)
  );
end;
$$;

-- Weighted rounds.
--
-- Claims go round and round the keys. In each round a key gets as many messages as its weight: one,
-- or three, or one in every second round with a weight of a half. The state is therefore only how
-- far the round has come, and a claim of ten messages reads ten keys, however many there are.

-- Up to quantity messages, locked, of the given keys with their hashes, in this order, from the
-- position in state on. Without is_all other keys follow, and no new round begins. keyless are
-- messages without a key, which share one turn, that of the first hash. _exhausted are hashes that
-- had fewer messages than wanted, given if fewer than quantity were found.
create or replace function notifyq.select_fair(
  queue messages.queue, keys text[], key_hashes bigint[], is_all boolean, quantity integer,
  filter jsonpath, running bigint[], given bigint[], keyless bigint[], state notifyq.limit_state,
  out _ids bigint[], out _round bigint, out _after_key_hash bigint, out _served integer,
  out _exhausted bigint[]
)
  language plpgsql
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_has_rooms boolean := queue.key_concurrency is not null or queue.key_rate is not null;
begin
  with known as materialized (
    select k.key, k.key_hash, k.ordinal, coalesce(s.weight, 1) as weight,
      -- What a key would have had since round 0: up to this round, or including it.
      case
        when k.key_hash < state.after_key_hash
        then floor((state.round + 1) * coalesce(s.weight, 1))
        when k.key_hash > state.after_key_hash then floor(state.round * coalesce(s.weight, 1))
        else floor(state.round * coalesce(s.weight, 1)) + state.served end as served
    from (
      select u.key, u.key_hash, u.ordinal
      from unnest(keys, key_hashes) with ordinality as u (key, key_hash, ordinal)
      union all
      select null, notifyq.first_key_hash(queue.name), 0 where keyless <> '{}'
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
  -- The last round that is needed if each key has enough messages.
  bounds as materialized (
    select state.round + case when is_all then greatest(0, ceil(
      (quantity - sum(floor((state.round + 1) * k.weight) - k.served)) / sum(k.weight)
    )) else 0 end as last
    from known as k
  ),
  wanted as materialized (
    select k.key, k.key_hash, k.ordinal, k.weight, k.served,
      greatest(0, least(quantity, floor((b.last + 1) * k.weight) - k.served, case
        when v_has_rooms and k.ordinal > 0 then coalesce(r._room, 0) end))::integer as most
    from bounds as b
    cross join known as k
    left join rooms as r on r._key = k.key
  ),
  found as materialized (
    select w.key_hash, w.ordinal, w.weight, w.served + f.number as served, f.id,
      ceil((w.served + f.number) / w.weight - 1e-9) - 1 as round
    from wanted as w
    cross join lateral (
      select a.id, row_number() over () as number
      from (
        select q.id
        from (
          -- A range of one key hash, see find_of_keys().
          select m.id
          from messages.message as m
          where not queue.ordered
            and m.queue = select_fair.queue.name
            and notifyq.key_hash(m.queue, m.key) >= w.key_hash
            and notifyq.key_hash(m.queue, m.key) <= w.key_hash
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
              and notifyq.key_hash(e.queue, e.key) >= w.key_hash
              and notifyq.key_hash(e.queue, e.key) <= w.key_hash
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
          where w.ordinal = 0
            and m.id = any (select_fair.keyless)
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
    select f.* from found as f order by f.round, f.ordinal, f.served limit quantity
  ),
  stopped as (
    select p.round, p.key_hash, p.served - floor(p.round * p.weight) as served
    from picked as p
    where (select count(*) from picked as c) = quantity
    order by p.round desc, p.ordinal desc, p.served desc
    limit 1
  )
  select array(select p.id from picked as p),
    -- If all messages there are were taken, the next round begins, or the next key has its turn.
    coalesce(s.round, b.last + case when is_all then 1 else 0 end)::bigint,
    coalesce(s.key_hash, case when is_all then notifyq.first_key_hash(queue.name)
      else key_hashes[cardinality(key_hashes)] end),
    coalesce(s.served, case when is_all then 0 else (
      select floor((b.last + 1) * k.weight) - floor(b.last * k.weight)
      from known as k
      where k.key_hash = key_hashes[cardinality(key_hashes)]
    ) end)::integer,
    array(
      select w.key_hash
      from wanted as w
      left join (select f.key_hash, count(*) as quantity from found as f group by f.key_hash) as c
        on c.key_hash = w.key_hash
      where s.key_hash is null
        and coalesce(c.quantity, 0) < floor((b.last + 1) * w.weight) - w.served
    )
  into _ids, _round, _after_key_hash, _served, _exhausted
  from bounds as b
  left join stopped as s on true;
end;
$$;

-- Equal shares: the search where no key has a weight, a limit or an order.
--
-- It locks one message of each key, in one step from key to key. If there are fewer keys than
-- wanted messages, each key then gives the same number more. The weighted search would give the
-- same; it takes 1.1 (100 keys) to 1.3 times (1500 keys) the processor time of a claim and its
-- finish, 500 messages at a time in notifyq bench --case limits.

-- The first message, locked, of each of up to quantity keys after one hash and up to another, in
-- the order of the hashes; none of given.
create or replace function notifyq.select_firsts(
  queue text, after bigint, last bigint, quantity integer, given bigint[], out _ids bigint[],
  out _key_hashes bigint[]
)
  language plpgsql
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_busy constant xid[] := notifyq.running_transactions();
begin
  with recursive steps as (
    select null::bigint as id, after as key_hash, 0 as number
    union all
    select f.id, f.key_hash, s.number + 1
    from steps as s
    cross join lateral (
      select m.id, notifyq.key_hash(m.queue, m.key) as key_hash
      from messages.message as m
      where m.queue = select_firsts.queue
        and m.state = 'waiting'
        and notifyq.key_hash(m.queue, m.key) > s.key_hash
        and notifyq.key_hash(m.queue, m.key) <= select_firsts.last
        and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (select_firsts.given))
      order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
      limit 1
      for update skip locked
    ) as f
    where s.number < select_firsts.quantity
  )
  select coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.key_hash), '{}')
  into _ids, _key_hashes
  from steps as s
  where s.number > 0;
end;
$$;

-- Up to quantity messages, locked, of the keys with these hashes: the same number of each, of the
-- first ones one more; none of given.
create or replace function notifyq.select_equal(
  queue text, key_hashes bigint[], quantity integer, given bigint[]
)
  returns bigint[] language plpgsql
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_each constant integer := quantity / cardinality(key_hashes);
  v_more constant integer := quantity % cardinality(key_hashes);
begin
  return array(
    select f.id
    from unnest(key_hashes) with ordinality as l (key_hash, ordinal)
    cross join lateral (
      -- A range of one key_hash, see find_of_keys().
      select m.id
      from messages.message as m
      where m.queue = select_equal.queue
        and notifyq.key_hash(m.queue, m.key) >= l.key_hash
        and notifyq.key_hash(m.queue, m.key) <= l.key_hash
        and m.state = 'waiting'
        -- Hashed: each row that is read is looked up there.
        and m.id not in (select g.id from unnest(select_equal.given) as g (id))
      order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
      limit v_each + (l.ordinal <= v_more)::integer
      for update skip locked
    ) as f
  );
end;
$$;

-- Up to quantity messages, locked, and the state for the next claim.
create or replace function notifyq.find_equal(
  queue text, quantity integer, state notifyq.limit_state
)
  returns notifyq.limit_selection language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
  v_ids bigint[] := array[]::bigint[];
  v_missing integer := quantity;
  -- After which hash the next turn is: a key that has had its turn comes last.
  v_after bigint := state.after_key_hash - (state.served = 0)::integer;
  v_selection record;
  v_rest record;
  v_key_hashes bigint[];
  v_last integer;
begin
  while v_missing > 0 loop
    select p.* into v_selection
    from notifyq.select_firsts(
      queue, v_after, notifyq.last_key_hash(queue), v_missing, v_ids
    ) as p;
    v_ids := v_ids || v_selection._ids;
    v_key_hashes := v_selection._key_hashes;
    v_missing := quantity - cardinality(v_ids);
    if v_missing > 0 then
      select p.* into v_rest
      from notifyq.select_firsts(
        queue, notifyq.first_key_hash(queue), v_after, v_missing, v_ids
      ) as p;
      v_ids := v_ids || v_rest._ids;
      v_key_hashes := v_key_hashes || v_rest._key_hashes;
      v_missing := quantity - cardinality(v_ids);
    end if;
    exit when v_key_hashes = '{}';
    v_last := cardinality(v_key_hashes);
    v_state.round := v_state.round + (v_key_hashes[v_last] <= v_after)::integer;
    v_after := v_key_hashes[v_last];
    if v_missing >= v_last then
      v_ids := v_ids || notifyq.select_equal(queue, v_key_hashes, v_missing, v_ids);
      v_state.round := v_state.round + v_missing / v_last;
      v_last := v_missing % v_last;
      if v_last > 0 then
        v_state.round := v_state.round + (v_key_hashes[v_last] <= v_after)::integer;
        v_after := v_key_hashes[v_last];
      end if;
      v_missing := quantity - cardinality(v_ids);
    end if;
    v_state.after_key_hash := v_after;
    v_state.served := 1;
  end loop;
  return row(v_ids, v_state, false);
end;
$$;
