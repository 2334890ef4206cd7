-- Look at a limited queue: hand out no more than its limits allow, whoever claims.
--
-- What runs is what is locked: no count is kept that could differ from that after a crash. A lock
-- that has expired counts until it is reaped.
--
-- owns:    nothing
-- writes:  messages.message (row locks), messages.flow_state, messages.flow
-- calls:   messages._look, messages._look_keys, messages._key_rooms, messages._tokens,
--          messages._pay, messages._note_held, messages._invalid
-- raises:  NQ003 invalid argument

-- Of messages that were found in their order, those that their keys have room for.
create or replace function messages._fitting(
  queue messages.queue, seen bigint[], running bigint[], floor double precision
)
  returns bigint[]
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  return array(
    with candidates as materialized (
      select m.id, m.key, m.priority,
        row_number() over (
          partition by m.key
          order by case when queue.ordered then 0 else m.priority end desc, m.id
        ) as place
      from messages.message as m
      where m.id = any (_fitting.seen)
    )
    select c.id
    from candidates as c
    left join messages._key_rooms(
      queue, array(select distinct d.key from candidates as d where d.key is not null),
      running, '{}', floor
    ) as r on r._key = c.key
    where c.key is null
      or (
        c.place <= r._room
        and (
          not queue.ordered
          or c.id = (
            select h.id
            from messages.message as h
            where h.queue = _fitting.queue.name
              and h.key = c.key
            order by h.id
            limit 1
          )
        )
      )
    order by c.priority desc, c.id
  );
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
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_state messages.flow_state;
  v_is_counted boolean := false;
  v_room integer := quantity;
  v_tokens integer := quantity;
  v_look record;
  v_is_blocked boolean := false;
  v_ids bigint[] := array[]::bigint[];
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform messages._invalid(
      format('queue %L has limits, which hold at READ COMMITTED only', queue.name),
      'claim and take in a transaction of that isolation level'
    );
  end if;
  select s.* into v_state
  from messages.flow_state as s
  where s.queue = _look_flow.queue.name
  order by s.number desc
  limit 1;
  if not found then
    return v_ids;
  end if;
  if queue.concurrency is not null or queue.key_concurrency is not null then
    -- Now and then all that is locked: what was claimed without a limit counts as well.
    v_is_counted := v_now not between v_state.counted_at
      and v_state.counted_at + interval '5 seconds';
    if v_is_counted then
      v_state.counted_at := v_now;
      v_state.running := array(
        select m.id
        from messages.message as m
        where m.state = 'locked'
          and m.queue = _look_flow.queue.name
      );
    else
      v_state.running := array(
        select m.id
        from messages.message as m
        where m.id = any (v_state.running)
          -- Not a condition on the state itself, see _archive().
          and (m.state = 'locked') is true
      );
    end if;
    v_room := least(quantity, queue.concurrency - cardinality(v_state.running));
  end if;
  if queue.rate is not null then
    v_tokens := messages._tokens(
      v_state.paid_at, v_now, queue.rate, queue.rate_period, queue.rate_burst
    );
  end if;
  if least(v_room, v_tokens) > 0 then
    if queue.ordered or queue.fair
      or queue.key_concurrency is not null or queue.key_rate is not null
    then
      v_look := messages._look_keys(queue, least(v_room, v_tokens), filter, thorough, v_state);
      v_state.turn := v_look._turn;
      v_state.natural_look := v_look._natural_look;
      v_state.after_key := v_look._after_key;
      v_ids := v_look._ids;
      v_is_blocked := v_look._is_blocked;
    else
      v_ids := messages._look(queue.name, least(v_room, v_tokens), filter, thorough);
    end if;
  end if;
  if v_ids <> '{}' or v_is_counted then
    update messages.flow_state as s
    set number = s.number + 1,
      turn = v_state.turn,
      natural_look = v_state.natural_look,
      after_key = v_state.after_key,
      counted_at = v_state.counted_at,
      running = case
        when queue.concurrency is not null or queue.key_concurrency is not null
        then v_state.running || v_ids else '{}' end,
      paid_at = case
        when queue.rate is null then s.paid_at
        else messages._pay(
          s.paid_at, v_now, cardinality(v_ids), queue.rate, queue.rate_period
        ) end
    where s.queue = _look_flow.queue.name
      and s.number = v_state.number;
  end if;
  -- What waits for a token alone nobody's finish helps, see token_in().
  perform messages._note_held(
    queue,
    cardinality(v_ids) < least(quantity, v_tokens)
      and (v_is_blocked or cardinality(v_ids) >= v_room)
  );
  return v_ids;
end;
$$;
