-- Look by keys: the search of a claim where limits, order or shares go by the keys of messages.
--
-- owns:    nothing
-- writes:  messages.message (row locks), messages.flow_key
-- calls:   messages._look, messages._fitting, messages._stage, messages._waiting_keys,
--          messages._key_rooms, messages._charge_keys
-- raises:  nothing

-- From each of the keys as many messages as it has room for, the most deserving up to quantity,
-- and up to most of one key; locked.
create or replace function messages._of_keys(
  queue messages.queue,
  keys text[],
  quantity integer,
  most integer,
  filter jsonpath,
  running bigint[],
  given bigint[],
  floor double precision
)
  returns bigint[]
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_best bigint[];
begin
  v_best := array(
    with rooms as materialized (
      select r.*
      from messages._key_rooms(queue, keys, running, given, floor) as r
      where r._room > 0
    )
    select f.id
    from rooms as r
    cross join lateral (
      select w.id, w.priority, row_number() over (order by w.priority desc, w.id) as place
      from (
        (
          select m.id, m.priority
          from messages.message as m
          where not queue.ordered
            and m.queue = _of_keys.queue.name
            and m.key = r._key
            and m.state = 'waiting'
            and m.id <> all (_of_keys.given)
            and (_of_keys.filter is null or m.message @@ _of_keys.filter)
          order by m.priority desc, m.id
          limit least(r._room, _of_keys.most)
        )
        union all
        select h.id, h.priority
        from (
          select m.id, m.priority, m.state, m.message
          from messages.message as m
          where queue.ordered
            and m.queue = _of_keys.queue.name
            and m.key = r._key
          order by m.id
          limit 1
        ) as h
        where h.state = 'waiting'
          and h.id <> all (_of_keys.given)
          and (_of_keys.filter is null or h.message @@ _of_keys.filter)
      ) as w
    ) as f
    order by case when queue.fair then r._turn + f.place / r._weight end, f.priority desc, f.id
    limit _of_keys.quantity
  );
  return array(
    select m.id
    from messages.message as m
    where m.id = any (v_best)
      and (m.state = 'waiting') is true
    order by m.id
    for update skip locked
  );
end;
$$;

-- state is as the last claim has left it; _turn, _natural_look and _after_key are for the next one.
-- _is_blocked tells that something waits for a lock to end.
create or replace function messages._look_keys(
  queue messages.queue,
  quantity integer,
  filter jsonpath,
  thorough boolean,
  state messages.flow_state,
  out _ids bigint[],
  out _turn double precision,
  out _natural_look integer,
  out _after_key text,
  out _is_blocked boolean
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
  v_keys_at_once constant integer := 1000;
  v_asked integer := least(quantity, state.natural_look);
  v_found bigint[];
  v_keys text[];
  v_key text := state.after_key;
  v_is_around boolean := state.after_key = '';
begin
  _ids := '{}';
  _turn := state.turn;
  _natural_look := state.natural_look;
  _after_key := state.after_key;
  _is_blocked := false;
  if queue.fair then
    perform messages._stage(queue.name, clock_timestamp(), 10 * quantity);
  else
    v_found := messages._look(queue.name, v_asked, filter, thorough);
    _ids := messages._fitting(queue, v_found, state.running, state.turn);
    _is_blocked := cardinality(_ids) < cardinality(v_found);
    if not _is_blocked and cardinality(_ids) = v_asked then
      _natural_look := greatest(state.natural_look, least(2 * v_asked, 10000));
    elsif 2 * cardinality(_ids) < cardinality(v_found) then
      _natural_look := greatest(16, 2 * cardinality(_ids));
    end if;
  end if;
  -- Fewer than were asked for are all there are.
  if queue.fair or cardinality(v_found) = v_asked and cardinality(_ids) < quantity then
    for v_window in 1 .. 10 loop
      v_keys := messages._waiting_keys(
        queue.name, v_key, case when v_is_around then nullif(state.after_key, '') end,
        v_keys_at_once
      );
      loop
        exit when cardinality(_ids) >= quantity or v_keys = '{}';
        v_found := messages._of_keys(
          queue, v_keys, quantity - cardinality(_ids),
          case when queue.fair
            then greatest(16, 4 * (quantity - cardinality(_ids)) / cardinality(v_keys))
            else quantity end,
          filter, state.running, _ids, state.turn
        );
        _ids := _ids || v_found;
        exit when v_found = '{}' or not queue.fair;
      end loop;
      v_key := case when cardinality(v_keys) = v_keys_at_once
        then v_keys[v_keys_at_once] else '' end;
      exit when cardinality(_ids) >= quantity or v_key = '' and v_is_around;
      v_is_around := v_is_around or v_key = '';
    end loop;
    _after_key := v_key;
    -- Messages without a key are in neither index of keys: those among the first of the queue.
    if cardinality(_ids) < quantity then
      _is_blocked := _is_blocked
        or v_keys <> '{}' and (queue.ordered or queue.key_concurrency is not null);
      v_found := array(
        select w.id
        from (
          select m.id, m.key, m.message
          from messages.message as m
          where m.queue = _look_keys.queue.name
            and m.state = 'waiting'
          order by m.priority desc, m.id
          limit 1000
        ) as w
        where w.key is null
          and w.id <> all (_ids)
          and (_look_keys.filter is null or w.message @@ _look_keys.filter)
        limit quantity - cardinality(_ids)
      );
      _ids := _ids || array(
        select m.id
        from messages.message as m
        where m.id = any (v_found)
        order by m.id
        for update skip locked
      );
    end if;
  end if;
  if _ids <> '{}' and (queue.fair or queue.key_rate is not null) then
    _turn := messages._charge_keys(queue, _ids, state.turn);
  end if;
end;
$$;
