-- Look equally: the search of a claim in a fair queue all of whose keys have the same share.
--
-- Then how much each key gives is known before anything is read: where there are more keys than
-- messages are wanted, the first message of each whose turn it is; else as many rounds as go.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._waiting_keys
-- raises:  nothing

-- Of these keys, whose turns come in this order, up to quantity messages, locked: of each the same
-- number, of the first ones one more. Where that is less than one of each, firsts are those, as far
-- as they are known.
-- _rich are the keys that had as many as was asked of them.
create or replace function messages._pick_equal(
  queue text, keys text[], firsts bigint[], quantity integer, given bigint[],
  out _ids bigint[], out _rich text[]
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
  v_each constant integer := quantity / cardinality(keys);
  v_more constant integer := quantity % cardinality(keys);
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
    select k.key, k.quantity, array(
      -- A range of one key, see _of_keys().
      select m.id
      from messages.message as m
      where m.queue = _pick_equal.queue
        and m.key >= k.key
        and m.key <= k.key
        and m.state = 'waiting'
        and m.id <> all (_pick_equal.given)
      order by m.key, m.priority desc, m.id
      limit k.quantity
      for update skip locked
    ) as ids
    from (
      select u.key, v_each + (u.place <= v_more)::integer as quantity
      from unnest(keys) with ordinality as u (key, place)
    ) as k
  )
  select array(select i.id from found as f cross join lateral unnest(f.ids) as i (id)),
    array(select f.key from found as f where cardinality(f.ids) = f.quantity)
  into _ids, _rich;
end;
$$;

-- Up to quantity messages, locked, and what the next claim goes by.
create or replace function messages._look_equal(
  queue text, quantity integer, state messages.flow_state
)
  returns messages.flow_pick
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_state messages.flow_state := state;
  v_ids bigint[] := array[]::bigint[];
  v_missing integer := quantity;
  v_first record;
  v_second record;
  v_pick record;
  v_turns text[];
  v_firsts bigint[];
  -- How many of the turns belong to the round that is under way.
  v_now integer;
  v_had integer;
  v_last integer;
begin
  for v_look in 1 .. 30 loop
    select w.* into v_first
    from messages._waiting_keys(queue, v_state.after_key, null, v_missing + 1) as w;
    select w.* into v_second
    from messages._waiting_keys(
      queue, '', v_state.after_key,
      case when v_state.after_key = '' then 0 else v_missing + 1 - cardinality(v_first._keys) end
    ) as w;
    -- Who has had its turn has the next one behind all others.
    v_had := (v_state.had > 0 and v_first._keys[1] = v_state.after_key is true)::integer;
    v_turns := v_first._keys[v_had + 1:] || v_second._keys || v_first._keys[:v_had];
    v_firsts := v_first._ids[v_had + 1:] || v_second._ids || v_first._ids[:v_had];
    v_now := cardinality(v_first._keys) - v_had;
    loop
      exit when v_turns = '{}';
      select p.* into v_pick
      from messages._pick_equal(queue, v_turns, v_firsts, v_missing, v_ids) as p;
      v_last := v_missing % cardinality(v_turns);
      v_state.round := v_state.round + v_missing / cardinality(v_turns) - (v_last = 0)::integer;
      v_last := coalesce(nullif(v_last, 0), cardinality(v_turns));
      v_state.round := v_state.round + (v_last > v_now)::integer;
      v_state.after_key := v_turns[v_last];
      v_state.had := 1;
      v_ids := v_ids || v_pick._ids;
      v_missing := quantity - cardinality(v_ids);
      exit when v_missing = 0 or v_pick._rich is null;
      -- Those that have more, from where the round is.
      select coalesce(array_agg(t.key order by t.place), '{}'),
        (count(*) filter (where t.key > v_state.after_key))::integer
      into v_turns, v_now
      from unnest(v_turns[v_last + 1:] || v_turns[:v_last]) with ordinality as t (key, place)
      where t.key = any (v_pick._rich);
      v_firsts := '{}';
    end loop;
    -- Else another claim has had the first messages of more keys than are known.
    exit when v_missing = 0 or v_turns = '{}';
  end loop;
  return row(v_ids, v_state, false);
end;
$$;
