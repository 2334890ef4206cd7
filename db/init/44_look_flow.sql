-- Look at a limited queue: hand out no more than its limits allow, whoever claims.
--
-- What runs is what is locked: no count is kept that could differ from that after a crash. A lock
-- that has expired counts until it is reaped.
--
-- owns:    nothing
-- writes:  messages.message (row locks), messages.flow_state, messages.flow
-- calls:   messages._look, messages._look_keys, messages._look_fair, messages._key_rooms,
--          messages._tokens, messages._pay, messages._note_held, messages._invalid
-- raises:  NQ003 invalid argument

-- Of messages that were found in their order, those that their keys have room for.
create or replace function messages._fitting(
  queue messages.queue, seen bigint[], running bigint[]
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
  v_ids bigint[] := seen;
begin
  if queue.ordered then
    v_ids := array(
      select m.id
      from messages.message as m
      where m.id = any (_fitting.seen)
        and (
          m.key is null
          -- A range of one key, see _of_keys().
          or m.id = (
            select h.id
            from messages.message as h
            where h.queue = _fitting.queue.name
              and h.key >= m.key
              and h.key <= m.key
            order by h.key, h.id
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
  v_before messages.flow_state;
  v_state messages.flow_state;
  v_is_counting boolean := queue.concurrency is not null or queue.key_concurrency is not null;
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
  select s.* into v_before
  from messages.flow_state as s
  where s.queue = _look_flow.queue.name
  order by s.number desc
  limit 1;
  if not found then
    return v_ids;
  end if;
  v_state := v_before;
  if v_is_counting then
    if v_now not between v_state.counted_at and v_state.counted_at + interval '5 seconds' then
      -- Now and then all that is locked: what was claimed without a limit counts as well.
      v_state.counted_at := v_now;
      v_state.running := array(
        select m.id
        from messages.message as m
        where m.state = 'locked'
          and m.queue = _look_flow.queue.name
      );
      v_state.kept := cardinality(v_state.running);
    elsif cardinality(v_state.running) + quantity > least(
      queue.concurrency, queue.key_concurrency, 2 * v_state.kept + 500
    ) then
      -- Only when it matters: with those that are locked no more they are within the limits, too.
      v_state.running := array(
        select m.id
        from messages.message as m
        where m.id = any (v_state.running)
          -- Not a condition on the state itself, see _archive().
          and (m.state = 'locked') is true
      );
      v_state.kept := cardinality(v_state.running);
    end if;
    v_room := least(quantity, queue.concurrency - cardinality(v_state.running));
  end if;
  if queue.rate is not null then
    v_tokens := messages._tokens(
      v_state.paid_at, v_now, queue.rate, queue.rate_period, queue.rate_burst
    );
  end if;
  if least(v_room, v_tokens) > 0 then
    if queue.fair then
      v_look := messages._look_fair(queue, least(v_room, v_tokens), filter, v_state);
      v_state.turn := v_look._turn;
      v_state.keys := v_look._keys;
      v_state.scan_at := v_look._scan_at;
      v_state.walk_at := v_look._walk_at;
    elsif queue.ordered or queue.key_concurrency is not null or queue.key_rate is not null then
      v_look := messages._look_keys(queue, least(v_room, v_tokens), filter, thorough, v_state);
      v_state.natural_look := v_look._natural_look;
    else
      v_ids := messages._look(queue.name, least(v_room, v_tokens), filter, thorough);
    end if;
    if v_look is distinct from null then
      v_state.after_key := v_look._after_key;
      v_state.place := v_look._place;
      v_ids := v_look._ids;
      v_is_blocked := v_look._is_blocked;
    end if;
  end if;
  if v_is_counting then
    v_state.running := v_state.running || v_ids;
  elsif v_state.running <> '{}' then
    v_state.running := '{}';
  end if;
  if queue.rate is not null and v_ids <> '{}' then
    v_state.paid_at := messages._pay(
      v_state.paid_at, v_now, cardinality(v_ids), queue.rate, queue.rate_period
    );
  end if;
  if v_state is distinct from v_before then
    update messages.flow_state as s
    set number = s.number + 1,
      turn = v_state.turn,
      natural_look = v_state.natural_look,
      after_key = v_state.after_key,
      counted_at = v_state.counted_at,
      running = v_state.running,
      kept = v_state.kept,
      -- As it is where nothing has changed, since it may be long.
      keys = case when s.scan_at = v_state.scan_at and v_state.keys <> '{}'
        then s.keys else v_state.keys end,
      scan_at = v_state.scan_at,
      place = v_state.place,
      walk_at = v_state.walk_at,
      paid_at = v_state.paid_at
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
