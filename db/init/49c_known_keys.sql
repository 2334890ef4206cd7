-- Known keys: a claim that goes to all keys of a fair queue does so without looking for them first.
--
-- Under a backlog the keys are the same from claim to claim. So a session remembers those of its
-- last one, in a setting of its own, notifyq.keys_<hash>, which goes back with the transaction that
-- changed it. The next one searches from each key to the following one: what came in of a key
-- between them is found before the messages of the latter, and the keys are looked for again.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._under_way
-- raises:  nothing

create or replace function messages._known_keys_setting(queue text)
  returns text
  language plpgsql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return 'notifyq.keys_' || to_hex(hashtextextended(queue, 0));
end;
$$;

-- All keys of which something waits, in their order, as far as this session can tell; null where it
-- cannot, or where they are more than quantity, so that a claim does not go to each.
create or replace function messages._known_keys(queue text, quantity integer)
  returns text[]
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_keys constant text[] := nullif(
    current_setting(messages._known_keys_setting(queue), true), ''
  )::text[];
  v_other bigint;
begin
  if cardinality(v_keys) <= quantity is not true then
    return null;
  end if;
  -- Not exists, which takes the order for idle and with it another index.
  select m.id into v_other
  from messages.message as m
  where m.queue = _known_keys.queue
    and m.state = 'waiting'
    and m.key > v_keys[cardinality(v_keys)]
  order by m.key, m.priority desc, m.id
  limit 1;
  if v_other is null then
    -- The empty one comes before the first place behind which is searched.
    select m.id into v_other
    from messages.message as m
    where m.queue = _known_keys.queue
      and m.state = 'waiting'
      and m.key >= ''
      and m.key <= ''
    order by m.key, m.priority desc, m.id
    limit 1;
  end if;
  return case when v_other is null then v_keys end;
end;
$$;

-- Null forgets them. Not with an empty one, as the search begins behind that.
create or replace function messages._remember_keys(queue text, keys text[])
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_setting constant text := messages._known_keys_setting(queue);
  v_keys constant text := case when keys[1] = '' then '' else coalesce(keys::text, '') end;
begin
  if v_keys <> coalesce(current_setting(v_setting, true), '') then
    perform set_config(v_setting, v_keys, false);
  end if;
end;
$$;

-- Up to quantity messages, locked: of each key the same number, of the first ones whose turn it is
-- one more; had is how many of the keys come behind those that follow them. _rich are the keys that
-- had as many as was asked of them. Both are null where there is another key between these.
create or replace function messages._pick_known(
  queue text, keys text[], had integer, quantity integer,
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
  v_number constant integer := cardinality(keys);
  v_each constant integer := quantity / v_number;
  v_more constant integer := quantity % v_number;
  v_busy constant xid[] := messages._under_way();
begin
  with found as materialized (
    select k.key, k.quantity, array(
      select case when m.key = k.key then m.id end
      from messages.message as m
      where m.queue = _pick_known.queue
        and m.key > k.above
        and m.key <= k.key
        and m.state = 'waiting'
        and (m.xmax = '0' or m.xmax <> all (v_busy))
      order by m.key, m.priority desc, m.id
      limit k.quantity
      for update skip locked
    ) as ids
    from (
      select u.key, coalesce(keys[u.place - 1], '') as above,
        v_each + (mod(u.place - 1 - had + v_number, v_number) < v_more)::integer as quantity
      from unnest(keys) with ordinality as u (key, place)
    ) as k
  )
  select array(select i.id from found as f cross join lateral unnest(f.ids) as i (id)),
    array(select f.key from found as f where cardinality(f.ids) = f.quantity)
  into _ids, _rich;
  if array_position(_ids, null) is not null then
    _ids := null;
    _rich := null;
  end if;
end;
$$;
