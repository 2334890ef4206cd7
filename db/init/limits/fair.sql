-- Fair: claims go round the keys of a queue, by their weights.
--
-- In each round a key gets as many messages as its weight: one, or three, or one in every second
-- round with a weight of a half. The state is therefore only how far the round has come, and a
-- claim of ten messages reads ten keys, however many there are.

-- Up to quantity messages, locked, and the state for the next claim.
create or replace function notifyq.find_fair(
  queue messages.queue, quantity integer, filter jsonpath, state notifyq.limit_state
)
  returns notifyq.limit_selection language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
  v_ids bigint[] := array[]::bigint[];
  v_began timestamptz := clock_timestamp();
  v_is_scan_due boolean :=
    v_began not between state.keyless_scan_at - interval '1 minute' and state.keyless_scan_at;
  v_keyless bigint[] := array[]::bigint[];
  v_is_waiting boolean := false;
  v_part record;
begin
  v_state.after_key_hash := coalesce(state.after_key_hash, notifyq.first_key_hash(queue.name));
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
  for v_window in 1 .. 30 loop
    select p.* into v_part
    from notifyq.select_fair(
      queue, quantity - cardinality(v_ids), filter, v_state, v_ids, v_keyless
    ) as p;
    v_ids := v_ids || v_part._ids;
    v_state.round := v_part._round;
    v_state.after_key_hash := v_part._after_key_hash;
    v_state.served := v_part._served;
    v_is_waiting := v_is_waiting or v_part._is_waiting;
    exit when cardinality(v_ids) = quantity or v_part._is_end;
    v_keyless := array(select k.id from unnest(v_keyless) as k (id) where k.id <> all (v_ids));
  end loop;
  if cardinality(v_ids) < quantity and not v_is_scan_due then
    v_ids := v_ids || notifyq.lock_waiting(
      (
        select k._ids
        from notifyq.find_keyless(queue.name, quantity - cardinality(v_ids), filter, null) as k
      ),
      queue.name
    );
  end if;
  return row(
    v_ids, v_state,
    cardinality(v_ids) < quantity and v_is_waiting
      and (queue.ordered or queue.key_concurrency is not null)
  );
end;
$$;

-- Up to quantity messages, locked, of the next keys that have their turn, and the state after them.
-- Messages without a key, of which keyless lists some, share one turn, that of the first hash. If
-- there are few keys, they have as many rounds as are needed. _is_end: no key may have more.
create or replace function notifyq.select_fair(
  queue messages.queue, quantity integer, filter jsonpath, state notifyq.limit_state,
  given bigint[], keyless bigint[], out _ids bigint[], out _round bigint,
  out _after_key_hash bigint, out _served integer, out _is_waiting boolean, out _is_end boolean
)
  language plpgsql
  set enable_sort = off
as $$
declare
  v_has_rooms constant boolean := queue.key_concurrency is not null or queue.key_rate is not null;
  -- Each key has one message in each round, the first one.
  v_is_equal constant boolean := filter is null and not v_has_rooms and not queue.ordered
    and not exists (select from messages.share as s where s.queue = select_fair.queue.name);
  -- After this hash is the key that has its turn.
  v_after constant bigint := state.after_key_hash - (state.served > 0)::integer;
  v_keys record;
  v_first record;
  v_count integer;
  v_is_all boolean;
  v_numbers integer[];  -- messages of each key
begin
  v_keys := notifyq.waiting_keys(queue.name, v_after, null, quantity, given, v_is_equal);
  if cardinality(v_keys._ids) < quantity then
    v_first := notifyq.waiting_keys(
      queue.name, null, v_after, quantity - cardinality(v_keys._ids), given, v_is_equal
    );
    v_keys._keys := v_keys._keys || v_first._keys;
    v_keys._key_hashes := v_keys._key_hashes || v_first._key_hashes;
    v_keys._ids := v_keys._ids || v_first._ids;
  end if;
  v_count := cardinality(v_keys._ids);
  v_is_all := v_count < quantity;
  _is_waiting := v_count > 0;
  if v_is_equal and keyless = '{}' and v_count > 0 then
    _after_key_hash := v_keys._key_hashes[1 + (quantity - 1) % v_count];
    _served := 0;
    _round := state.round + (quantity - 1) / v_count
      + (_after_key_hash <= v_after)::integer;
    if not v_is_all then
      _ids := v_keys._ids;
      return;
    end if;
    v_numbers := array(
      select (quantity + v_count - n) / v_count from generate_series(1, v_count) as k (n)
    );
  else
    with rooms as materialized (
      select r._key, r._room
      from notifyq.room_of_keys(queue, v_keys._keys, state.running, given) as r
      where v_has_rooms
    ),
    -- Keys up to v_after have had this round.
    known as materialized (
      select k.key, k.key_hash, k.id, w.weight, w.round,
        floor(w.round * w.weight)
          + case when k.key_hash = state.after_key_hash then state.served else 0 end as served,
        case when k.key is null then quantity when v_has_rooms then r._room
          when queue.ordered then 1 else quantity end as room
      from (
        select u.key, u.key_hash, u.id
        from unnest(v_keys._keys, v_keys._key_hashes, v_keys._ids) as u (key, key_hash, id)
        union all
        select null, notifyq.first_key_hash(queue.name), null where keyless <> '{}'
      ) as k
      left join rooms as r on r._key = k.key
      left join messages.share as s on s.queue = select_fair.queue.name and s.key = k.key
      cross join lateral (
        select coalesce(s.weight, 1) as weight, state.round + (k.key_hash <= v_after)::integer
          as round
      ) as w
    ),
    wanted as materialized (
      select k.*, greatest(k.round, b.last) as last
      from known as k
      cross join (
        -- The last round that is needed if each key has enough messages.
        select case when v_is_all then state.round + ceil(
          (quantity - sum(floor((state.round + 1) * l.weight) - l.served)) / sum(l.weight)
        ) end as last
        from known as l
        where l.room > 0
      ) as b
    ),
    picked as materialized (
      select w.key, w.key_hash, w.id, w.weight, w.served + m.number as served,
        ceil((w.served + m.number) / w.weight - 1e-9) - 1 as round
      from wanted as w
      cross join lateral generate_series(
        1, least(quantity, w.room, floor((w.last + 1) * w.weight) - w.served)::integer
      ) as m (number)
      order by round, w.key_hash, served
      limit quantity
    ),
    ends as (
      select p.round, p.key_hash, p.weight, p.served
      from picked as p
      where (select count(*) from picked as c) = quantity
      union all
      -- Fewer than wanted: all of these keys have had their turn.
      select w.last, w.key_hash, w.weight, floor((w.last + 1) * w.weight)
      from wanted as w
      where (select count(*) from picked as c) < quantity
    )
    select e.round::bigint, e.key_hash, case when e.served < floor((e.round + 1) * e.weight)
        then e.served - floor(e.round * e.weight) else 0 end::integer,
      k.keys, k.key_hashes, k.ids, k.numbers
    into _round, _after_key_hash, _served, v_keys._keys, v_keys._key_hashes,
      v_keys._ids, v_numbers
    from ends as e
    cross join (
      select array_agg(g.key) as keys, array_agg(g.key_hash) as key_hashes,
        array_agg(g.id) as ids, array_agg(g.number) as numbers
      from (
        select p.key, p.key_hash, p.id, count(*)::integer as number
        from picked as p
        group by p.key, p.key_hash, p.id
      ) as g
    ) as k
    order by e.round desc, e.key_hash desc, e.served desc
    limit 1;
    if not found then
      _round := state.round;
      _after_key_hash := state.after_key_hash;
      _served := state.served;
    end if;
  end if;
  _ids := array(
    select f.id
    from unnest(v_keys._keys, v_keys._key_hashes, v_keys._ids, v_numbers)
      as w (key, key_hash, id, number)
    cross join lateral unnest(
      case
        when w.key is null then notifyq.lock_waiting(keyless[:w.number], queue.name)
        when queue.ordered then array(
          select m.id
          from (
            -- A range of one key hash, see find_of_keys().
            select e.id
            from messages.message as e
            where e.queue = select_fair.queue.name
              and notifyq.key_hash(e.queue, e.key) >= w.key_hash
              and notifyq.key_hash(e.queue, e.key) <= w.key_hash
            order by notifyq.key_hash(e.queue, e.key), e.id
            limit 1
          ) as h
          join messages.message as m on m.id = h.id
          where (m.state = 'waiting' and m.queue = select_fair.queue.name) is true
            and m.id <> all (select_fair.given)
            and (select_fair.filter is null or notifyq.matches(m, select_fair.filter))
          for update of m skip locked
        )
        when w.number = 1 and v_is_equal then array[w.id]
        else array(
          select m.id
          from messages.message as m
          where m.queue = select_fair.queue.name
            and notifyq.key_hash(m.queue, m.key) >= w.key_hash
            and notifyq.key_hash(m.queue, m.key) <= w.key_hash
            and (not v_has_rooms or m.key = w.key)
            and m.state = 'waiting'
            -- Hashed: each row that is read is looked up there.
            and m.id not in (select g.id from unnest(select_fair.given) as g (id))
            and (select_fair.filter is null or notifyq.matches(m, select_fair.filter))
          order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
          limit w.number
          for update skip locked
        )
      end
    ) as f (id)
  );
  if queue.key_rate is not null then
    -- Tokens may pay for fewer than that, by their costs.
    _ids := notifyq.fit_keys(queue, _ids, state.running, given);
  end if;
  _is_end := v_is_all and _ids = '{}';
end;
$$;
