-- Look fairly: the search of a claim where keys have shares of what is handed out.
--
-- owns:    nothing
-- writes:  messages.message (row locks), messages.flow_key
-- calls:   messages._stage, messages._waiting_keys, messages._keyless, messages._pick_fair
-- raises:  nothing

-- As _look_keys(). The keys that were found are kept for twenty times as long as it took to find
-- them, and for a tenth of a second at most: that is what a new one may have to wait.
create or replace function messages._look_fair(
  queue messages.queue, quantity integer, filter jsonpath, state messages.flow_state,
  out _ids bigint[], out _turn double precision, out _after_key text, out _keys text[],
  out _scan_at timestamptz, out _walk_at timestamptz, out _place bigint[], out _is_blocked boolean
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
  v_began timestamptz := clock_timestamp();
  v_is_kept boolean := state.after_key = '' and state.keys <> '{}'
    and v_began between state.scan_at - interval '1 minute' and state.scan_at;
  v_is_walk_due boolean :=
    v_began not between state.walk_at - interval '1 minute' and state.walk_at;
  v_is_around boolean := state.after_key = '';
  v_loose bigint[] := array[]::bigint[];
  v_keys text[];
  v_left text[];
  v_key text := state.after_key;
  v_scanned timestamptz;
  v_breadth integer;
  v_pick record;
begin
  _ids := array[]::bigint[];
  _turn := state.turn;
  _keys := state.keys;
  _scan_at := state.scan_at;
  _walk_at := state.walk_at;
  _place := state.place;
  if exists (
    select from messages.message as m
    where m.queue = _look_fair.queue.name and m.state = 'scheduled' and m.available_at <= v_began
  ) then
    perform messages._stage(queue.name, v_began, 10 * quantity);
  end if;
  if v_is_walk_due then
    select k._ids, k._place into v_loose, _place
    from messages._keyless(queue.name, quantity, filter, state.place) as k;
    -- A small part of the time at most, and less where there are none.
    _walk_at := clock_timestamp() + 50 * (clock_timestamp() - v_began)
      + case when v_loose = '{}' and _place is null
        then interval '1 second' else interval '0' end;
  end if;
  for v_window in 1 .. 11 loop
    if v_is_kept and v_window = 1 then
      v_keys := state.keys;
    else
      v_scanned := clock_timestamp();
      v_keys := messages._waiting_keys(
        queue.name, v_key, case when v_is_around then nullif(state.after_key, '') end,
        v_keys_at_once
      );
      v_key := case when cardinality(v_keys) = v_keys_at_once
        then v_keys[v_keys_at_once] else '' end;
      _keys := '{}';
      if v_key = '' and state.after_key = '' then
        _keys := v_keys;
        _scan_at := clock_timestamp()
          + least(20 * (clock_timestamp() - v_scanned), interval '100 ms');
      end if;
    end if;
    v_left := v_keys;
    v_breadth := quantity - cardinality(_ids);
    loop
      exit when v_left = '{}' and v_loose = '{}';
      select p.* into v_pick
      from messages._pick_fair(
        queue, v_left, quantity - cardinality(_ids), v_breadth, filter, state.running, _ids,
        v_loose, state.turn
      ) as p;
      _ids := _ids || v_pick._ids;
      _turn := greatest(_turn, v_pick._first);
      exit when cardinality(_ids) = quantity
        or v_pick._ids = '{}' and v_pick._dry = '{}' and v_breadth > v_keys_at_once;
      -- Not those again that have no more: they would keep the others from rising.
      v_left := array(
        select u.key from unnest(v_left) as u (key)
        where u.key <> all (v_pick._dry)
      );
      if '' = any (v_pick._dry) then
        v_loose := '{}';
      end if;
      v_breadth := v_keys_at_once + 1;
    end loop;
    exit when cardinality(_ids) = quantity;
    continue when v_is_kept and v_window = 1;
    exit when v_key = '' and v_is_around;
    v_is_around := v_is_around or v_key = '';
  end loop;
  _after_key := v_key;
  if cardinality(_ids) < quantity and not v_is_walk_due then
    select k._ids into v_loose
    from messages._keyless(queue.name, quantity - cardinality(_ids), filter, null) as k;
    select p.* into v_pick
    from messages._pick_fair(
      queue, '{}', quantity - cardinality(_ids), 1, filter, '{}', '{}', v_loose, state.turn
    ) as p
    where v_loose <> '{}';
    _ids := _ids || coalesce(v_pick._ids, '{}');
  end if;
  _is_blocked := cardinality(_ids) < quantity and v_keys <> '{}'
    and (queue.ordered or queue.key_concurrency is not null);
end;
$$;
