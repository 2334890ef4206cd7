-- Find limited: messages that the limits of a queue allow a claim to have.
--
-- Locked messages are running messages: no separate count is kept, which could be wrong after a
-- crash. A lock that has expired counts until it is reaped.
--
-- raises: NQ003 invalid argument

-- Those messages of `seen`, found in queue order, that their keys have room and tokens for, beside
-- running ones and those in given.
create or replace function notifyq.fit_keys(
  queue messages.queue, seen bigint[], running bigint[], given bigint[]
)
  returns bigint[] language plpgsql
as $$
declare
  v_ids bigint[] := seen;
begin
  if queue.ordered then
    v_ids := array(
      select m.id
      from messages.message as m
      where m.id = any (fit_keys.seen)
        and (
          m.key is null
          -- A range of one key hash, see find_of_keys().
          or m.id = (
            select h.id
            from messages.message as h
            where notifyq.key_hash(h.queue, h.key) >= notifyq.key_hash(m.queue, m.key)
              and notifyq.key_hash(h.queue, h.key) <= notifyq.key_hash(m.queue, m.key)
              and h.queue = fit_keys.queue.name
            order by notifyq.key_hash(h.queue, h.key), h.id
            limit 1
          )
        )
    );
  end if;
  -- If fewer run in all than a key may have, no key has too many.
  if v_ids = '{}' or queue.key_rate is null and (
    cardinality(running) + cardinality(v_ids) <= coalesce(queue.key_concurrency, 2147483647)
    or queue.key_concurrency is null
  ) then
    return v_ids;
  end if;
  return array(
    with candidates as materialized (
      select m.id, m.key, row_number() over k as ordinal,
        sum(notifyq.cost_of(m.headers)) over k - notifyq.cost_of(m.headers) as before
      from messages.message as m
      where m.id = any (v_ids)
      window k as (partition by m.key order by m.priority desc, m.id)
    )
    select c.id
    from candidates as c
    left join notifyq.room_of_keys(
      queue, array(select d.key from candidates as d where d.key is not null and d.ordinal = 1),
      running, given
    ) as r on r._key = c.key
    where c.key is null or c.ordinal <= r._room and (c.before < r._tokens) is not false
  );
end;
$$;

-- Up to quantity messages by the order, the keys or the shares of a queue, locked, and the state
-- for the next claim.
create or replace function notifyq.select_limited(
  queue messages.queue, quantity integer, filter jsonpath, full_scan boolean,
  state notifyq.limit_state
)
  returns notifyq.limit_selection language plpgsql
as $$
begin
  if queue.fair then
    return notifyq.find_fair(queue, quantity, filter, state);
  elsif queue.ordered or queue.key_concurrency is not null or queue.key_rate is not null then
    return notifyq.find_by_keys(queue, quantity, filter, full_scan, state);
  end if;
  return row(notifyq.find_messages(queue.name, quantity, filter, full_scan), state, false);
end;
$$;

-- Ids of up to quantity messages that the limits allow, locked. Only after enter_turn().
create or replace function notifyq.find_limited(
  queue messages.queue, quantity integer, filter jsonpath, full_scan boolean
)
  returns bigint[] language plpgsql
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_before notifyq.limit_state := notifyq.read_state(queue.name);
  v_state notifyq.limit_state;
  v_room integer;
  v_tokens integer := quantity;
  v_wanted integer;
  v_cost bigint;
  v_selection notifyq.limit_selection;
  v_is_blocked boolean := false;
  v_ids bigint[] := array[]::bigint[];
  v_keys text[];
  v_costs integer[];
begin
  if v_before is null then
    return v_ids;
  end if;
  queue := notifyq.with_least_limit(queue);
  v_state := notifyq.pay_charges(
    notifyq.count_running(queue, quantity, v_before, '{}', '{}', '{}', 0)
  );
  v_room := least(quantity, queue.concurrency - cardinality(v_state.running));
  if queue.rate is not null then
    v_tokens := notifyq.count_tokens(
      v_state.paid_at, v_now, queue.rate, queue.rate_period, queue.rate_burst
    );
  end if;
  if least(v_room, v_tokens) > 0 then
    v_wanted := least(v_room, v_tokens);
    loop
      v_selection := notifyq.select_limited(queue, v_wanted, filter, full_scan, v_state);
      v_ids := v_selection.ids;
      exit when queue.rate is null;
      select p._quantity, p._cost into v_wanted, v_cost
      from notifyq.count_payable(v_ids, v_tokens) as p;
      exit when v_wanted = cardinality(v_ids);
      -- Again for fewer: neither a turn of a key nor a position may pass one that has to wait.
      full_scan := true;
    end loop;
    v_is_blocked := v_selection.is_blocked;
    if queue.key_rate is not null then
      select array_agg(k.key), array_agg(k.cost) into v_keys, v_costs
      from (
        select m.key, least(sum(notifyq.cost_of(m.headers)), 2147483647)::integer as cost
        from messages.message as m
        where m.id = any (v_ids)
        group by m.key
        -- Not a condition on the key itself: an index that does not help would be read for it.
        having count(m.key) > 0
      ) as k;
    end if;
    v_state := notifyq.charge_limits(
      queue, v_ids, v_cost, v_selection.state, null, v_keys, v_costs
    );
  end if;
  perform notifyq.save_limit_state(v_before, v_state, true);
  -- A finish does not help messages that wait for a token only, see rate_limit_wait().
  perform notifyq.note_blocked(
    queue,
    cardinality(v_ids) < least(quantity, v_tokens)
      and (v_is_blocked or cardinality(v_ids) >= v_room)
  );
  return v_ids;
end;
$$;

-- Find by keys: the search of a claim where limits or order go by keys.
--
-- First in queue order, as long as most messages found are allowed. If many are not, key by key:
-- the index leads from one key to the next, however many messages each has.

-- Of each key as many messages as it has room for, and those of keyless, up to quantity in all;
-- locked.
create or replace function notifyq.find_of_keys(
  queue messages.queue, keys text[], quantity integer, filter jsonpath, running bigint[],
  given bigint[], keyless bigint[]
)
  returns bigint[] language plpgsql
  set enable_sort = off
as $$
declare
  v_best bigint[];
begin
  v_best := array(
    select b.id
    from (
      with rooms as materialized (
        select r._key, r._room, r._tokens, notifyq.key_hash(queue.name, r._key) as key_hash
        from notifyq.room_of_keys(queue, keys, running, given) as r
        where r._room > 0
      )
      select f.id, f.priority
      from rooms as r
      cross join lateral (
        -- A range of one key hash: with an equality the planner would use another index in the same
        -- order, and read the waiting messages of all keys.
        select p.id, p.priority
        from (
          select w.id, w.priority,
            -- In the order of the rows below: a sort is forbidden here.
            sum(notifyq.cost_of(w.headers)) over (
              rows between unbounded preceding and 1 preceding
            ) as before
          from (
            select m.id, m.priority, m.headers
            from messages.message as m
            where not queue.ordered
              and m.queue = find_of_keys.queue.name
              and notifyq.key_hash(m.queue, m.key) >= r.key_hash
              and notifyq.key_hash(m.queue, m.key) <= r.key_hash
              and m.key = r._key
              and m.state = 'waiting'
              and m.id <> all (find_of_keys.given)
              and (find_of_keys.filter is null or notifyq.matches(m, find_of_keys.filter))
            order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
            limit least(r._room, find_of_keys.quantity)
          ) as w
        ) as p
        where (p.before < r._tokens) is not false
        union all
        select h.id, h.priority
        from (
          select m.id, m.priority, m.state, m as row
          from messages.message as m
          where queue.ordered
            and m.queue = find_of_keys.queue.name
            and notifyq.key_hash(m.queue, m.key) >= r.key_hash
            and notifyq.key_hash(m.queue, m.key) <= r.key_hash
          order by notifyq.key_hash(m.queue, m.key), m.id
          limit 1
        ) as h
        where h.state = 'waiting'
          and h.id <> all (find_of_keys.given)
          and (find_of_keys.filter is null or notifyq.matches(h.row, find_of_keys.filter))
      ) as f
      union all
      select m.id, m.priority
      from messages.message as m
      where m.id = any (find_of_keys.keyless)
        and m.id <> all (find_of_keys.given)
      order by priority desc, id
      limit find_of_keys.quantity
    ) as b
    order by b.priority desc, b.id
  );
  return notifyq.lock_waiting(v_best, queue.name);
end;
$$;

create or replace function notifyq.find_by_keys(
  queue messages.queue, quantity integer, filter jsonpath, full_scan boolean,
  state notifyq.limit_state
)
  returns notifyq.limit_selection language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
  v_ids bigint[];
  v_is_blocked boolean;
  v_keys_at_once constant integer := 1000;
  v_wanted integer := least(quantity, state.scan_size);
  v_found bigint[];
  v_keyless bigint[];
  v_keys text[];
  v_key_hash bigint := state.after_key_hash;
  v_is_around boolean := state.after_key_hash is null;
begin
  v_found := notifyq.find_messages(queue.name, v_wanted, filter, full_scan);
  v_ids := notifyq.fit_keys(queue, v_found, state.running, '{}');
  v_is_blocked := cardinality(v_ids) < cardinality(v_found);
  if not v_is_blocked and cardinality(v_ids) = v_wanted then
    v_state.scan_size := greatest(state.scan_size, least(2 * v_wanted, 10000));
  elsif 2 * cardinality(v_ids) < cardinality(v_found) then
    v_state.scan_size := greatest(16, 2 * cardinality(v_ids));
  end if;
  -- If fewer were found than wanted, there are no more.
  if cardinality(v_found) = v_wanted and cardinality(v_ids) < quantity then
    -- After messages that must wait, those without a key have their turn, each as if it had a key.
    select k._ids, k._position into v_keyless, v_state.position
    from notifyq.find_keyless(
      queue.name, quantity + cardinality(v_ids), filter, state.position
    ) as k;
    for v_window in 1 .. 10 loop
      exit when cardinality(v_ids) >= quantity;
      select w._keys, w._key_hashes[v_keys_at_once] into v_keys, v_key_hash
      from notifyq.waiting_keys(
        queue.name, v_key_hash, case when v_is_around then state.after_key_hash end,
        v_keys_at_once, v_ids, false
      ) as w;
      v_ids := v_ids || notifyq.find_of_keys(
        queue, v_keys, quantity - cardinality(v_ids), filter, state.running, v_ids, v_keyless
      );
      exit when v_key_hash is null and v_is_around;
      v_is_around := v_is_around or v_key_hash is null;
    end loop;
    v_state.after_key_hash := v_key_hash;
    if cardinality(v_ids) < quantity then
      v_is_blocked := v_is_blocked
        or v_keys <> '{}' and (queue.ordered or queue.key_concurrency is not null);
    end if;
  end if;
  return row(v_ids, v_state, v_is_blocked);
end;
$$;
