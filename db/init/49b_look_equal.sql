-- Look equally: the search of a claim in a fair queue all of whose keys have the same share.
--
-- Then how much each key gives is known before anything is read: where there are more keys than
-- messages are wanted, the first message of each whose turn it is; else as many rounds as go.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._waiting_keys, messages._known_lanes, messages._pick_known,
--          messages._add_lanes, messages._lane, messages._first_lane
-- raises:  nothing

-- Of these lanes, whose turns come in this order, up to quantity messages, locked: of each the same
-- number, of the first ones one more. Where that is less than one of each, firsts are those, as far
-- as they are known.
-- _rich are those that had as many as was asked of them.
create or replace function messages._pick_equal(
  queue text, lanes bigint[], firsts bigint[], quantity integer, given bigint[],
  out _ids bigint[], out _rich bigint[]
)
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
  if v_each = 0 and firsts <> '{}' then
    _ids := array(
      select m.id
      from messages.message as m
      where m.id = any (firsts[:quantity])
        and m.id <> all (_pick_equal.given)
        -- Not a condition on the state itself, see _archive().
        and (m.state = 'waiting') is true
      for update skip locked
    );
    return;
  end if;
  with found as materialized (
    select k.lane, k.quantity, array(
      -- A range of one lane, see _of_keys().
      select m.id
      from messages.message as m
      where m.queue = _pick_equal.queue
        and messages._lane(m.queue, m.key) >= k.lane
        and messages._lane(m.queue, m.key) <= k.lane
        and m.state = 'waiting'
        and m.id <> all (_pick_equal.given)
      order by messages._lane(m.queue, m.key), m.priority desc, m.id
      limit k.quantity
      for update skip locked
    ) as ids
    from (
      select u.lane, v_each + (u.place <= v_more)::integer as quantity
      from unnest(lanes) with ordinality as u (lane, place)
    ) as k
  )
  select array(select i.id from found as f cross join lateral unnest(f.ids) as i (id)),
    array(select f.lane from found as f where cardinality(f.ids) = f.quantity)
  into _ids, _rich;
end;
$$;

-- Up to quantity messages, locked, and what the next claim goes by.
create or replace function messages._look_equal(
  queue text, quantity integer, state messages.flow_state
)
  returns messages.flow_pick
  language plpgsql
as $$
declare
  v_state messages.flow_state := state;
  v_ids bigint[] := array[]::bigint[];
  v_missing integer := quantity;
  v_start constant bigint := messages._first_lane(queue);
  v_known bigint[] := messages._known_lanes(queue, state.lanes, quantity);
  -- Those of a claim that looked for all of them.
  v_all bigint[];
  v_first record;
  v_second record;
  -- Behind which the next turn is.
  v_after bigint;
  -- In their order, and how many of them come behind those that follow them.
  v_lanes bigint[];
  v_before integer;
  v_picks integer := 0;
  v_went record;
  v_picked bigint[];
  v_rich bigint[];
  v_turns bigint[];
  v_firsts bigint[];
  -- How many of the turns belong to the round that is under way.
  v_now integer;
  -- How many turns have been had, and the place of the last of them.
  v_gone integer;
  v_last integer;
begin
  for v_look in 1 .. 30 loop
    -- Who has had its turn has the next one behind all others.
    v_after := v_state.after_lane - (v_state.had = 0)::integer;
    if v_known is null then
      select w.* into v_first
      from messages._waiting_keys(
        queue, v_state.after_lane, null, v_missing + 1, v_ids
      ) as w;
      v_lanes := v_first._lanes;
      v_firsts := v_first._ids;
      if cardinality(v_lanes) <= v_missing and v_state.after_lane <> v_start then
        select w.* into v_second
        from messages._waiting_keys(
          queue, null, v_state.after_lane, v_missing + 1 - cardinality(v_lanes), v_ids
        ) as w;
        v_lanes := v_second._lanes || v_lanes;
        v_firsts := v_second._ids || v_firsts;
      end if;
      if cardinality(v_lanes) <= quantity and v_ids = '{}' then
        v_all := v_lanes;
      elsif v_all is null then
        v_state.lanes := messages._add_lanes(
          queue, v_state.lanes, v_lanes, v_state.after_lane, quantity
        );
      end if;
    else
      select p.* into v_went
      from messages._pick_known(queue, v_known, v_after, v_missing) as p;
      if v_went._ids is null then
        v_known := null;
        continue;
      end if;
      v_lanes := coalesce(v_went._lanes, v_known);
      v_firsts := '{}';
      if v_lanes <> v_state.lanes then
        v_state.lanes := case when cardinality(v_lanes) <= 4 * quantity then v_lanes end;
      end if;
    end if;
    v_before := width_bucket(v_after, v_lanes);
    v_turns := v_lanes[v_before + 1:] || v_lanes[:v_before];
    v_firsts := v_firsts[v_before + 1:] || v_firsts[:v_before];
    v_now := cardinality(v_lanes) - v_before;
    loop
      exit when v_turns = '{}';
      if v_known is null then
        select p._ids, p._rich into v_picked, v_rich
        from messages._pick_equal(queue, v_turns, v_firsts, v_missing, v_ids) as p;
        v_gone := v_missing;
      else
        v_known := null;
        v_picked := v_went._ids;
        v_rich := v_went._rich;
        v_gone := coalesce(v_went._turns, v_missing);
        if v_went._dry is null and v_went._lanes is null then
          -- Where some run dry they are others the next time.
          v_state.lanes := case when cardinality(v_went._ids) = v_missing then v_state.lanes end;
        elsif v_went._dry <> '{}' then
          v_state.lanes := array(
            select l.lane from unnest(v_lanes) as l (lane)
            where l.lane not in (select d.lane from unnest(v_went._dry) as d (lane))
          );
        end if;
      end if;
      v_picks := v_picks + 1;
      v_last := v_gone % cardinality(v_turns);
      v_state.round := v_state.round + v_gone / cardinality(v_turns) - (v_last = 0)::integer;
      v_last := coalesce(nullif(v_last, 0), cardinality(v_turns));
      v_state.round := v_state.round + (v_last > v_now)::integer;
      v_state.after_lane := v_turns[v_last];
      v_state.had := 1;
      v_ids := v_ids || v_picked;
      v_missing := quantity - cardinality(v_ids);
      exit when v_missing = 0 or v_rich is null;
      -- Those that have more, from where the round is.
      select coalesce(array_agg(t.lane order by t.place), '{}'),
        (count(*) filter (where t.lane > v_state.after_lane))::integer
      into v_turns, v_now
      from unnest(v_turns[v_last + 1:] || v_turns[:v_last]) with ordinality as t (lane, place)
      where t.lane in (select r.lane from unnest(v_rich) as r (lane));
      v_firsts := '{}';
      -- Less than a round is left: a look finds those that have something.
      exit when v_missing < cardinality(v_turns);
    end loop;
    -- Else another claim has had the first messages of more keys than are known.
    exit when v_missing = 0 or v_turns = '{}';
  end loop;
  if v_all is not null then
    v_state.lanes := case when v_missing = 0 and v_picks = 1 then nullif(v_all, '{}') end;
  end if;
  return row(v_ids, v_state, false);
end;
$$;
