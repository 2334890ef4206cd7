-- Look equally: the search of a claim in a fair queue all of whose keys have the same share.
--
-- Then how much each key gives is known before anything is read: where there are more keys than
-- messages are wanted, the first message of each whose turn it is; else as many rounds as go.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._waiting_keys, messages._known_keys, messages._pick_known,
--          messages._remember_keys, messages._add_keys
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
  set enable_sort = off
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
  v_known text[] := messages._known_keys(queue, quantity);
  -- Those of a claim that looked for all of them.
  v_all text[];
  v_first record;
  v_second record;
  -- In their order, and how many of them come behind those that follow them.
  v_keys text[];
  v_before integer;
  v_picks integer := 0;
  v_pick record;
  v_turns text[];
  v_firsts bigint[];
  -- How many of the turns belong to the round that is under way.
  v_now integer;
  v_last integer;
begin
  <<looks>>
  for v_look in 1 .. 30 loop
    if v_known is null then
      select w.* into v_first
      from messages._waiting_keys(
        queue, v_state.after_key, null, v_missing + 1, v_ids
      ) as w;
      v_keys := v_first._keys;
      v_firsts := v_first._ids;
      if cardinality(v_keys) <= v_missing and v_state.after_key <> '' then
        select w.* into v_second
        from messages._waiting_keys(
          queue, '', v_state.after_key, v_missing + 1 - cardinality(v_keys), v_ids
        ) as w;
        v_keys := v_second._keys || v_keys;
        v_firsts := v_second._ids || v_firsts;
      end if;
      if cardinality(v_keys) <= quantity and v_ids = '{}' then
        v_all := v_keys;
      elsif v_all is null then
        perform messages._add_keys(queue, v_keys, v_state.after_key, quantity);
      end if;
    else
      v_keys := v_known;
      v_firsts := '{}';
    end if;
    -- Who has had its turn has the next one behind all others.
    v_before := width_bucket(v_state.after_key, v_keys);
    v_before := v_before
      - (v_state.had = 0 and v_keys[v_before] = v_state.after_key is true)::integer;
    v_turns := v_keys[v_before + 1:] || v_keys[:v_before];
    v_firsts := v_firsts[v_before + 1:] || v_firsts[:v_before];
    v_now := cardinality(v_keys) - v_before;
    loop
      exit when v_turns = '{}';
      if v_known is null then
        select p.* into v_pick
        from messages._pick_equal(queue, v_turns, v_firsts, v_missing, v_ids) as p;
      else
        select p.* into v_pick
        from messages._pick_known(queue, v_known, v_before, v_missing) as p;
        v_known := null;
        continue looks when v_pick._ids is null;
        -- Where some run dry they are others the next time.
        perform messages._remember_keys(
          queue,
          case when v_pick._dry is not null then array(
            select k.key from unnest(v_keys) as k (key)
            where k.key not in (select d.key from unnest(v_pick._dry) as d (key))
          ) end
        )
        where cardinality(v_pick._ids) < v_missing;
      end if;
      v_picks := v_picks + 1;
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
      where t.key in (select r.key from unnest(v_pick._rich) as r (key));
      v_firsts := '{}';
      -- Less than a round is left: a look finds those that have something.
      exit when v_missing < cardinality(v_turns);
    end loop;
    -- Else another claim has had the first messages of more keys than are known.
    exit when v_missing = 0 or v_turns = '{}';
  end loop;
  perform messages._remember_keys(queue, case when v_missing = 0 and v_picks = 1 then v_all end)
  where v_all is not null;
  return row(v_ids, v_state, false);
end;
$$;
