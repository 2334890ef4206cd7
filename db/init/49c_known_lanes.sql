-- Known lanes: a claim goes to the keys of a fair queue without looking for them first.
--
-- Under a backlog the keys are the same from round to round. So claims leave the lanes of the last
-- one to each other, in messages.flow_state. The next one searches from each lane to the following
-- one: what came in between them is found before the messages of the latter, and is known then.
--
-- They are written whenever they change, so it is no more than four claims go to.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._under_way, messages._pick_turns, messages._lane, messages._first_lane,
--          messages._last_lane
-- raises:  nothing

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
