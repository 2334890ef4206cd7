-- Turns: fair shares where most of the keys are known.

-- Under a backlog the keys are the same from round to round. So claims leave the lanes of the last
-- one to each other, in messages.flow_state. The next one searches from each lane to the following
-- one: what came in between them is found before the messages of the latter, and is known then.
--
-- They are written whenever they change, so it is no more than four claims go to.

-- These lanes, and behind them the last one in which something waits; null where they are too many.
create or replace function messages._known_lanes(queue text, lanes bigint[], quantity integer)
  returns bigint[]
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_last constant bigint := messages._last_lane(queue);
  v_other bigint;
begin
  if cardinality(lanes) between 1 and 4 * quantity is not true then
    return null;
  end if;
  select messages._lane(m.queue, m.key) into v_other
  from messages.message as m
  where m.queue = _known_lanes.queue
    and m.state = 'waiting'
    and messages._lane(m.queue, m.key) > lanes[cardinality(lanes)]
    and messages._lane(m.queue, m.key) <= v_last
  order by messages._lane(m.queue, m.key) desc, m.priority, m.id desc
  limit 1;
  return case when v_other is null then lanes else lanes || v_other end;
end;
$$;

-- Add lanes to those that are known of a round, as long as they are not too many. They come behind
-- after_lane, and go on from the first one behind the last: there a round begins, and with it what
-- is known of it. What is too much for this claim may be right for larger ones.
create or replace function messages._add_lanes(
  queue text, known bigint[], lanes bigint[], after_lane bigint, quantity integer
)
  returns bigint[]
  language plpgsql
  immutable
as $$
declare
  v_start constant bigint := messages._first_lane(queue);
  v_lanes bigint[];
begin
  if known is null and after_lane <> v_start and lanes[1] >= after_lane
    or cardinality(known) > 4 * quantity
  then
    return known;
  end if;
  v_lanes := array(
    select l.lane
    from unnest(known || lanes) as l (lane)
    where known is not null or after_lane = v_start or l.lane < after_lane
    group by l.lane
    order by l.lane
  );
  return case when cardinality(v_lanes) between 1 and 4 * quantity then v_lanes end;
end;
$$;

-- Up to quantity messages, locked: of each lane the same number, of the first ones whose turn it is
-- one more; the first turn is the next one behind the lane after. Where each was asked,
-- _rich are those that had as many as was asked of them, else _turns is how many have had theirs,
-- _dry those that were asked and had none, and _lanes all, where others were found between them.
-- _ids is null where there may be another lane between these.
create or replace function messages._pick_known(
  queue text, lanes bigint[], after bigint, quantity integer,
  out _ids bigint[], out _rich bigint[], out _dry bigint[], out _lanes bigint[],
  out _turns integer
)
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_number constant integer := cardinality(lanes);
  v_had constant integer := width_bucket(after, lanes);
  v_each constant integer := quantity / v_number;
  v_more constant integer := quantity % v_number;
  v_start constant bigint := messages._first_lane(queue);
  v_busy constant xid[] := messages._under_way();
begin
  if quantity <= v_number then
    select t.* into _ids, _dry, _lanes, _turns
    from messages._pick_turns(queue, lanes, after, quantity) as t;
    return;
  end if;
  with found as materialized (
    select l.lane, l.quantity, array(
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
    ) as ids
    from (
      select lanes[t.place] as lane, coalesce(lanes[t.place - 1], v_start) as above, t.quantity
      from (
        select mod(v_had + n.turn, v_number) + 1 as place,
          v_each + (n.turn < v_more)::integer as quantity
        from generate_series(0, v_number - 1) as n (turn)
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
    array(select o.lane from found as o where o.ids[o.quantity] is not null)
  into _ids, _rich
  from found as f;
end;
$$;

-- Turns: a claim from a fair queue that has more keys than messages are wanted, all known or most.

-- A message of each lane whose turn it is, locked, quantity of them at most; the first turn is the
-- next one behind the lane after, and _turns is how many have been had. What lies between two of
-- them has its turn there, and _lanes are these and those, where there were any; else _dry those
-- that were asked and had none. Where there is very much between two of them it is left to a look.
create or replace function messages._pick_turns(
  queue text, lanes bigint[], after bigint, quantity integer,
  out _ids bigint[], out _dry bigint[], out _lanes bigint[], out _turns integer
)
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_deep constant integer := least(64, quantity);
  v_number constant integer := cardinality(lanes);
  v_had constant integer := width_bucket(after, lanes);
  v_start constant bigint := messages._first_lane(queue);
  v_busy constant xid[] := messages._under_way();
  -- How many of the lanes have been asked, what they had, and how many are next: the first few tell
  -- how much comes with each of them.
  v_asked integer := 0;
  v_got integer;
  v_next integer := least(8, quantity);
  v_found bigint[];
  v_new bigint[];
  -- Behind which of them there is more than was gone through.
  v_end integer;
begin
  loop
    -- Of each lane an id, null where there is nothing, and below 0 one of another lane before it.
    v_found := array(
      select (
        select case when messages._lane(m.queue, m.key) = l.lane then m.id else -m.id end
        from messages.message as m
        where m.queue = _pick_turns.queue
          and messages._lane(m.queue, m.key) > l.above
          and messages._lane(m.queue, m.key) <= l.lane
          and m.state = 'waiting'
          and (m.xmax = '0' or m.xmax <> all (v_busy))
        order by messages._lane(m.queue, m.key), m.priority desc, m.id
        limit 1
        for update skip locked
      )
      from (
        select lanes[t.place] as lane,
          case when t.turn > 0 or v_had = v_number then coalesce(lanes[t.place - 1], v_start)
            else after end as above
        from (
          select mod(v_had + n.turn, v_number) + 1 as place, n.turn
          from (select generate_series(v_asked, v_asked + v_next - 1) as turn) as n
        ) as t
      ) as l
    );
    if 0 > any (v_found) then
      -- From each of those on as far as to the lane that was asked for.
      with recursive gaps as (
        select f.turn, lanes[mod(v_had + v_asked + f.turn::integer - 1, v_number) + 1] as upto,
          o.id, o.lane, 1 as depth
        from unnest(v_found) with ordinality as f (id, turn)
        cross join lateral (
          select m.id, messages._lane(m.queue, m.key) as lane
          from messages.message as m
          where m.id = -f.id
          -- Else all messages may be read to find these.
          limit 1
        ) as o
        where f.id < 0
        union all
        select g.turn, g.upto, n.id, coalesce(n.lane, g.upto), g.depth + 1
        from gaps as g
        left join lateral (
          select m.id, messages._lane(m.queue, m.key) as lane
          from messages.message as m
          where m.queue = _pick_turns.queue
            and messages._lane(m.queue, m.key) > g.lane
            and messages._lane(m.queue, m.key) <= g.upto
            and m.state = 'waiting'
            and (m.xmax = '0' or m.xmax <> all (v_busy))
          order by messages._lane(m.queue, m.key), m.priority desc, m.id
          limit 1
          for update skip locked
        ) as n on true
        where g.lane < g.upto
          and g.depth < v_deep
      )
      select array_agg(t.id order by t.place),
        v_new || array_agg(t.lane) filter (where t.lane < t.upto),
        (min(t.place) filter (where t.lane < t.upto and t.depth = v_deep))::integer
      into v_found, v_new, v_end
      from (
        select u.*, row_number() over (order by u.turn, u.lane) as place
        from (
          select f.turn, f.id, null::bigint as lane, null::bigint as upto, null::integer as depth
          from unnest(v_found) with ordinality as f (id, turn)
          where f.id < 0 is not true
          union all
          select g.turn, g.id, g.lane, g.upto, g.depth from gaps as g
        ) as u
      ) as t;
    end if;
    _ids := _ids || v_found[:coalesce(v_end, cardinality(v_found))];
    v_asked := v_asked + v_next;
    v_got := cardinality(array_remove(_ids, null));
    exit when v_got >= quantity or v_asked = v_number or v_end is not null;
    v_next := least(
      v_number - v_asked, ceil((quantity - v_got) * v_asked / greatest(v_got, 1)::numeric)::integer
    );
  end loop;
  if v_new is null then
    _dry := array(
      select lanes[mod(v_had + d.turn::integer - 1, v_number) + 1]
      from unnest(_ids) with ordinality as d (id, turn)
      where d.id is null
    );
  else
    _lanes := array(select l.lane from unnest(lanes || v_new) as l (lane) order by l.lane);
  end if;
  _turns := cardinality(_ids);
  if v_got >= quantity and _turns > quantity then
    select t.turn::integer into _turns
    from unnest(_ids) with ordinality as t (id, turn)
    where t.id is not null
    offset quantity - 1
    limit 1;
  end if;
  _ids := array_remove(_ids[:_turns], null);
end;
$$;
