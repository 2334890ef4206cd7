-- Look at a limited queue: hand out no more than its limits allow, whoever claims.
--
-- What runs is what is locked: no count is kept that could differ from that after a crash. A lock
-- that has expired counts until it is reaped.
--
-- owns:    nothing
-- writes:  messages.message (row locks)
-- calls:   messages._look, messages._look_keys, messages._look_fair, messages._key_rooms,
--          messages._read_state, messages._count_running, messages._charge, messages._keep_state,
--          messages._book, messages._tokens, messages._note_held, messages._lane
-- raises:  NQ003 invalid argument

-- Of messages that were found in their order, those that their keys have room for.
create or replace function messages._fitting(
  queue messages.queue, seen bigint[], running bigint[]
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_ids bigint[] := seen;
begin
  if queue.ordered then
    v_ids := array(
      select m.id
      from messages.message as m
      where m.id = any (_fitting.seen)
        and (
          m.key is null
          -- A range of one lane, see _of_keys().
          or m.id = (
            select h.id
            from messages.message as h
            where messages._lane(h.queue, h.key) >= messages._lane(m.queue, m.key)
              and messages._lane(h.queue, h.key) <= messages._lane(m.queue, m.key)
              and h.queue = _fitting.queue.name
            order by messages._lane(h.queue, h.key), h.id
            limit 1
          )
        )
    );
  end if;
  -- Where all that runs is less than a key may have, so is what runs of each.
  if v_ids = '{}' or queue.key_rate is null and (
    cardinality(running) + cardinality(v_ids) <= coalesce(queue.key_concurrency, 2147483647)
    or queue.key_concurrency is null
  ) then
    return v_ids;
  end if;
  return array(
    with candidates as materialized (
      select m.id, m.key, m.priority from messages.message as m where m.id = any (v_ids)
    ),
    crowded as materialized (
      select c.key, r._room
      from (
        select d.key, count(*) as quantity from candidates as d where d.key is not null group by 1
      ) as c
      join messages._key_rooms(
        queue, array(select distinct d.key from candidates as d where d.key is not null),
        running, '{}'
      ) as r on r._key = c.key
      where c.quantity > r._room
    )
    select c.id
    from candidates as c
    where c.key is null
      or c.key <> all (array(select w.key from crowded as w))
    union all
    select p.id
    from (
      select c.id, w._room, row_number() over (
        partition by c.key order by c.priority desc, c.id
      ) as place
      from crowded as w
      join candidates as c on c.key = w.key
    ) as p
    where p.place <= p._room
  );
end;
$$;

-- Up to quantity messages by the order, the keys or the shares of a queue, locked, and
-- what the next claim goes by.
create or replace function messages._pick(
  queue messages.queue, quantity integer, filter jsonpath, thorough boolean,
  state messages.flow_state
)
  returns messages.flow_pick
  language plpgsql
as $$
begin
  if queue.fair then
    return messages._look_fair(queue, quantity, filter, state);
  elsif queue.ordered or queue.key_concurrency is not null or queue.key_rate is not null then
    return messages._look_keys(queue, quantity, filter, thorough, state);
  end if;
  return row(messages._look(queue.name, quantity, filter, thorough), state, false);
end;
$$;

-- The ids of messages that may be handed out now, up to quantity, locked. Only after _enter().
create or replace function messages._look_flow(
  queue messages.queue,
  quantity integer,
  filter jsonpath,
  thorough boolean
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_before messages.flow_state := messages._read_state(queue.name);
  v_state messages.flow_state;
  v_room integer;
  v_tokens integer := quantity;
  v_pick messages.flow_pick;
  v_is_blocked boolean := false;
  v_ids bigint[] := array[]::bigint[];
  v_keys text[];
  v_quantities integer[];
begin
  if v_before is null then
    return v_ids;
  end if;
  v_state := messages._book(
    messages._count_running(queue, quantity, v_before, '{}', '{}', '{}', 0)
  );
  v_room := least(quantity, queue.concurrency - cardinality(v_state.running));
  if queue.rate is not null then
    v_tokens := messages._tokens(
      v_state.paid_at, v_now, queue.rate, queue.rate_period, queue.rate_burst
    );
  end if;
  if least(v_room, v_tokens) > 0 then
    v_pick := messages._pick(queue, least(v_room, v_tokens), filter, thorough, v_state);
    v_ids := v_pick.ids;
    v_is_blocked := v_pick.is_blocked;
    if queue.key_rate is not null then
      select array_agg(k.key), array_agg(k.quantity) into v_keys, v_quantities
      from (
        select m.key, count(*)::integer as quantity
        from messages.message as m
        where m.id = any (v_ids)
        group by m.key
        -- Not a condition on the key itself: for it an index would be read that is of no use here.
        having count(m.key) > 0
      ) as k;
    end if;
    v_state := messages._charge(queue, v_ids, v_pick.state, null, v_keys, v_quantities);
  end if;
  perform messages._keep_state(v_before, v_state, true);
  -- What waits for a token alone nobody's finish helps, see token_in().
  perform messages._note_held(
    queue,
    cardinality(v_ids) < least(quantity, v_tokens)
      and (v_is_blocked or cardinality(v_ids) >= v_room)
  );
  return v_ids;
end;
$$;
