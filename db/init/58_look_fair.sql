-- Look fairly: the search of a claim where keys have shares of what is handed out.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._stage, messages._waiting_keys, messages._keyless, messages._pick_fair,
--          messages._look_equal, messages._first_lane
-- raises:  nothing

-- Up to quantity messages, locked, and what the next claim goes by.
create or replace function messages._look_fair(
  queue messages.queue, quantity integer, filter jsonpath, state messages.flow_state
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
  v_start constant bigint := messages._first_lane(queue.name);
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
  v_equal messages.flow_pick;
begin
  v_state.after_lane := coalesce(state.after_lane, v_start);
  if exists (
    select from messages.message as m
    where m.queue = _look_fair.queue.name and m.state = 'scheduled' and m.available_at <= v_began
  ) then
    perform messages._stage(queue.name, v_began, 10 * quantity);
  end if;
  if v_is_walk_due then
    select k._ids, k._place into v_loose, v_state.place
    from messages._keyless(queue.name, quantity, filter, state.place) as k;
    -- A small part of the time at most, and less where there are none.
    v_state.walk_at := clock_timestamp() + 100 * (clock_timestamp() - v_began)
      + case when v_loose = '{}' and v_state.place is null
        then interval '1 second' else interval '0' end;
  end if;
  if v_loose = '{}' and filter is null and not queue.ordered
    and queue.key_concurrency is null and queue.key_rate is null
    and not exists (select from messages.share as s where s.queue = _look_fair.queue.name)
  then
    v_equal := messages._look_equal(queue.name, quantity, v_state);
    v_ids := v_equal.ids;
    v_state := v_equal.state;
    v_missing := quantity - cardinality(v_ids);
  end if;
  for v_window in 1 .. case when v_equal is null then 30 else 0 end loop
    if not v_is_all then
      select w._keys, w._lanes into v_keys, v_lanes
      from messages._waiting_keys(
        queue.name, v_state.after_lane, null, v_missing + 1, v_ids
      ) as w;
      v_is_end := cardinality(v_keys) <= v_missing;
      if v_is_end and v_state.after_lane = v_start then
        v_is_all := true;
      elsif v_is_end then
        select w._keys, w._lanes into v_first
        from messages._waiting_keys(
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
      from messages._pick_fair(
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
    from messages._keyless(queue.name, v_missing, filter, null) as k;
    if v_loose <> '{}' then
      select p.* into v_pick
      from messages._pick_fair(
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
