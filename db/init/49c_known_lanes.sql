-- Known lanes: a claim goes to the keys of a fair queue without looking for them first.
--
-- Under a backlog the keys are the same from round to round. So a session remembers the lanes of
-- its last one, in a setting of its own, notifyq.lanes_<hash>, which goes back with the transaction
-- that changed it. The next one searches from each lane to the following one: what came in between
-- them is found before the messages of the latter, and the keys are looked for again.
--
-- To read what is remembered takes time as well, so it is no more than four claims go to.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._under_way, messages._lane, messages._first_lane, messages._last_lane
-- raises:  nothing

create or replace function messages._known_lanes_setting(queue text)
  returns text
  language plpgsql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return 'notifyq.lanes_' || to_hex(hashtextextended(queue, 0));
end;
$$;

-- All lanes in which something waits, in their order, as far as this session can tell; null where
-- it cannot, or where they are too many.
create or replace function messages._known_lanes(queue text, quantity integer)
  returns bigint[]
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
  v_lanes constant bigint[] := nullif(
    current_setting(messages._known_lanes_setting(queue), true), ''
  )::bigint[];
  v_last constant bigint := messages._last_lane(queue);
  v_other bigint;
begin
  if cardinality(v_lanes) <= 4 * quantity is not true then
    return null;
  end if;
  -- Not exists, which takes the order for idle and with it another index.
  select m.id into v_other
  from messages.message as m
  where m.queue = _known_lanes.queue
    and m.state = 'waiting'
    and messages._lane(m.queue, m.key) > v_lanes[cardinality(v_lanes)]
    and messages._lane(m.queue, m.key) <= v_last
  order by messages._lane(m.queue, m.key), m.priority desc, m.id
  limit 1;
  return case when v_other is null then v_lanes end;
end;
$$;

-- Null forgets them.
create or replace function messages._remember_lanes(queue text, lanes bigint[])
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_setting constant text := messages._known_lanes_setting(queue);
  v_lanes constant text := coalesce(lanes::text, '');
begin
  if v_lanes <> coalesce(current_setting(v_setting, true), '') then
    perform set_config(v_setting, v_lanes, false);
  end if;
end;
$$;

-- Add lanes to those that are known of a round, as long as they are not too many. They come behind
-- after_lane, and go on from the first one behind the last: there a round begins, and with it what
-- is known of it.
create or replace function messages._add_lanes(
  queue text, lanes bigint[], after_lane bigint, quantity integer
)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_start constant bigint := messages._first_lane(queue);
  v_known bigint[] := nullif(
    current_setting(messages._known_lanes_setting(queue), true), ''
  )::bigint[];
begin
  if v_known is null and after_lane <> v_start and lanes[1] >= after_lane then
    return;
  end if;
  v_known := array(
    select l.lane
    from unnest(v_known || lanes) as l (lane)
    where v_known is not null or after_lane = v_start or l.lane < after_lane
    group by l.lane
    order by l.lane
  );
  perform messages._remember_lanes(
    queue, case when cardinality(v_known) <= 4 * quantity then v_known end
  );
end;
$$;

-- Up to quantity messages, locked: of each lane the same number, of the first ones whose turn it is
-- one more; had is how many of the lanes come behind those that follow them. Where each was asked,
-- _rich are those that had as many as was asked of them, else _dry those that were asked and had
-- none. _ids is null where there may be another lane between these.
create or replace function messages._pick_known(
  queue text, lanes bigint[], had integer, quantity integer,
  out _ids bigint[], out _rich bigint[], out _dry bigint[]
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
  v_number constant integer := cardinality(lanes);
  v_each constant integer := quantity / v_number;
  v_more constant integer := quantity % v_number;
  v_start constant bigint := messages._first_lane(queue);
  v_busy constant xid[] := messages._under_way();
begin
  with found as materialized (
    select l.lane, l.quantity, case when v_each = 0 then array(
      select case when messages._lane(m.queue, m.key) = l.lane then m.id end
      from messages.message as m
      where m.queue = _pick_known.queue
        and messages._lane(m.queue, m.key) > l.above
        and messages._lane(m.queue, m.key) <= l.lane
        and m.state = 'waiting'
        and (m.xmax = '0' or m.xmax <> all (v_busy))
      order by messages._lane(m.queue, m.key), m.priority desc, m.id
      limit 1
      for update skip locked
    ) else array(
      -- To compare with the lane each of the many that a page of the index has of it would take
      -- longer than to leave out what comes behind them.
      select case when messages._lane(m.queue, m.key) = l.lane then m.id end
      from messages.message as m
      where m.queue = _pick_known.queue
        and messages._lane(m.queue, m.key) > l.above
        and m.state = 'waiting'
        and (m.xmax = '0' or m.xmax <> all (v_busy))
      order by messages._lane(m.queue, m.key), m.priority desc, m.id
      limit l.quantity
      for update skip locked
    ) end as ids
    from (
      select lanes[t.place] as lane, coalesce(lanes[t.place - 1], v_start) as above, t.quantity
      from (
        select mod(had + n.turn, v_number) + 1 as place,
          v_each + (n.turn < v_more)::integer as quantity
        from generate_series(0, least(v_number, _pick_known.quantity) - 1) as n (turn)
      ) as t
    ) as l
  )
  select case when count(*) filter (where f.ids[1] is null and f.ids <> '{}') = 0 then
      array(
        select i.id
        from found as o
        cross join lateral unnest(o.ids) as i (id)
        where i.id is not null
      ) end,
    case when v_each > 0 then
      array(select o.lane from found as o where o.ids[o.quantity] is not null) end,
    case when v_each = 0 then array(select o.lane from found as o where o.ids = '{}') end
  into _ids, _rich, _dry
  from found as f;
end;
$$;
