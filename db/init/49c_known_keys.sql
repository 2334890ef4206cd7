-- Known keys: a claim goes to the keys of a fair queue without looking for them first.
--
-- Under a backlog the keys are the same from round to round. So a session remembers those of its
-- last one, in a setting of its own, notifyq.keys_<hash>, which goes back with the transaction that
-- changed it. The next one searches from each key to the following one: what came in of a key
-- between them is found before the messages of the latter, and the keys are looked for again.
--
-- To read what is remembered takes time as well, so it is no more than four claims go to.
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
-- cannot, or where they are too many.
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
  if cardinality(v_keys) <= 4 * quantity is not true then
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

-- Add keys to those that are known of a round, as long as they are not too many. They come behind
-- after_key, and go on from the first one behind the last: there a round begins, and with it what
-- is known of it.
create or replace function messages._add_keys(
  queue text, keys text[], after_key text, quantity integer
)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_known text[] := nullif(
    current_setting(messages._known_keys_setting(queue), true), ''
  )::text[];
begin
  if v_known is null and after_key <> '' and keys[1] >= after_key then
    return;
  end if;
  v_known := array(
    select k.key
    from unnest(v_known || keys) as k (key)
    where v_known is not null or after_key = '' or k.key < after_key
    group by k.key
    order by k.key
  );
  perform messages._remember_keys(
    queue, case when cardinality(v_known) <= 4 * quantity then v_known end
  );
end;
$$;

-- Up to quantity messages, locked: of each key the same number, of the first ones whose turn it is
-- one more; had is how many of the keys come behind those that follow them. Where each was asked,
-- _rich are those that had as many as was asked of them, else _dry those that were asked and had
-- none. _ids is null where there may be another key between these.
create or replace function messages._pick_known(
  queue text, keys text[], had integer, quantity integer,
  out _ids bigint[], out _rich text[], out _dry text[]
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
    select k.key, k.quantity, case when v_each = 0 then array(
      select case when m.key = k.key then m.id end
      from messages.message as m
      where m.queue = _pick_known.queue
        and m.key > k.above
        and m.key <= k.key
        and m.state = 'waiting'
        and (m.xmax = '0' or m.xmax <> all (v_busy))
      order by m.key, m.priority desc, m.id
      limit 1
      for update skip locked
    ) else array(
      -- To compare with the key each of the many that a page of the index has of it would take
      -- longer than to leave out what comes behind them.
      select case when m.key = k.key then m.id end
      from messages.message as m
      where m.queue = _pick_known.queue
        and m.key > k.above
        and m.state = 'waiting'
        and (m.xmax = '0' or m.xmax <> all (v_busy))
      order by m.key, m.priority desc, m.id
      limit k.quantity
      for update skip locked
    ) end as ids
    from (
      select keys[t.place] as key, coalesce(keys[t.place - 1], '') as above, t.quantity
      from (
        select mod(had + n.turn, v_number) + 1 as place,
          v_each + (n.turn < v_more)::integer as quantity
        from generate_series(0, least(v_number, _pick_known.quantity) - 1) as n (turn)
      ) as t
    ) as k
  )
  select case when count(*) filter (where f.ids[1] is null and f.ids <> '{}') = 0 then
      array(
        select i.id
        from found as o
        cross join lateral unnest(o.ids) as i (id)
        where i.id is not null
      ) end,
    case when v_each > 0 then
      array(select o.key from found as o where o.ids[o.quantity] is not null) end,
    case when v_each = 0 then array(select o.key from found as o where o.ids = '{}') end
  into _ids, _rich, _dry
  from found as f;
end;
$$;
