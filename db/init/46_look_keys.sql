-- Look by keys: the search of a claim where limits or order go by the keys of messages.
--
-- First the messages in their order, as long as most of them may be had. Then, where others are in
-- their way, key by key: from one key to the next in an index, however much waits of each.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._look, messages._fitting, messages._waiting_keys, messages._key_rooms,
--          messages._keyless, messages._matches, messages._lane
-- raises:  nothing

-- From each of the keys as many messages as it has room for, and those of loose, up to quantity in
-- all; locked.
create or replace function messages._of_keys(
  queue messages.queue, keys text[], quantity integer, filter jsonpath, running bigint[],
  given bigint[], loose bigint[]
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
  v_best bigint[];
begin
  v_best := array(
    select b.id
    from (
      with rooms as materialized (
        select r._key, r._room, messages._lane(queue.name, r._key) as lane
        from messages._key_rooms(queue, keys, running, given) as r
        where r._room > 0
      )
      select f.id, f.priority
      from rooms as r
      cross join lateral (
        -- A range of one lane: with an equality another index would give the same order, and
        -- read what waits of all keys.
        (
          select m.id, m.priority
          from messages.message as m
          where not queue.ordered
            and m.queue = _of_keys.queue.name
            and messages._lane(m.queue, m.key) >= r.lane
            and messages._lane(m.queue, m.key) <= r.lane
            and m.key = r._key
            and m.state = 'waiting'
            and m.id <> all (_of_keys.given)
            and (_of_keys.filter is null or messages._matches(m, _of_keys.filter))
          order by messages._lane(m.queue, m.key), m.priority desc, m.id
          limit least(r._room, _of_keys.quantity)
        )
        union all
        select h.id, h.priority
        from (
          select m.id, m.priority, m.state, m as row
          from messages.message as m
          where queue.ordered
            and m.queue = _of_keys.queue.name
            and messages._lane(m.queue, m.key) >= r.lane
            and messages._lane(m.queue, m.key) <= r.lane
          order by messages._lane(m.queue, m.key), m.id
          limit 1
        ) as h
        where h.state = 'waiting'
          and h.id <> all (_of_keys.given)
          and (_of_keys.filter is null or messages._matches(h.row, _of_keys.filter))
      ) as f
      union all
      select m.id, m.priority
      from messages.message as m
      where m.id = any (_of_keys.loose)
        and m.id <> all (_of_keys.given)
      order by priority desc, id
      limit _of_keys.quantity
    ) as b
    order by b.priority desc, b.id
  );
  return array(
    select m.id
    from messages.message as m
    where m.id = any (v_best)
      -- Not a condition on the state itself, see _archive().
      and (m.state = 'waiting') is true
    order by m.id
    for update skip locked
  );
end;
$$;

create or replace function messages._look_keys(
  queue messages.queue, quantity integer, filter jsonpath, thorough boolean,
  state messages.flow_state
)
  returns messages.flow_pick
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state messages.flow_state := state;
  v_ids bigint[];
  v_is_blocked boolean;
  v_keys_at_once constant integer := 1000;
  v_asked integer := least(quantity, state.natural_look);
  v_found bigint[];
  v_loose bigint[];
  v_keys text[];
  v_lane bigint := state.after_lane;
  v_is_around boolean := state.after_lane is null;
begin
  v_found := messages._look(queue.name, v_asked, filter, thorough);
  v_ids := messages._fitting(queue, v_found, state.running);
  v_is_blocked := cardinality(v_ids) < cardinality(v_found);
  if not v_is_blocked and cardinality(v_ids) = v_asked then
    v_state.natural_look := greatest(state.natural_look, least(2 * v_asked, 10000));
  elsif 2 * cardinality(v_ids) < cardinality(v_found) then
    v_state.natural_look := greatest(16, 2 * cardinality(v_ids));
  end if;
  -- Fewer than were asked for are all there are.
  if cardinality(v_found) = v_asked and cardinality(v_ids) < quantity then
    -- Behind what must wait those without a key have their turn as if they had one each.
    select k._ids, k._place into v_loose, v_state.place
    from messages._keyless(queue.name, quantity + cardinality(v_ids), filter, state.place) as k;
    for v_window in 1 .. 10 loop
      exit when cardinality(v_ids) >= quantity;
      select w._keys, w._lanes[v_keys_at_once] into v_keys, v_lane
      from messages._waiting_keys(
        queue.name, v_lane, case when v_is_around then state.after_lane end, v_keys_at_once, v_ids
      ) as w;
      v_ids := v_ids || messages._of_keys(
        queue, v_keys, quantity - cardinality(v_ids), filter, state.running, v_ids, v_loose
      );
      exit when v_lane is null and v_is_around;
      v_is_around := v_is_around or v_lane is null;
    end loop;
    v_state.after_lane := v_lane;
    if cardinality(v_ids) < quantity then
      v_is_blocked := v_is_blocked
        or v_keys <> '{}' and (queue.ordered or queue.key_concurrency is not null);
    end if;
  end if;
  return row(v_ids, v_state, v_is_blocked);
end;
$$;
