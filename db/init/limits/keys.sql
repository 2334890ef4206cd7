-- Keys: keys with waiting messages, and the tokens that keys have spent.

-- How many more messages each key may have, beside running ones and those in given, and how many
-- tokens are left for them; null: its queue has no rate of keys. Unbooked charges are missing: a
-- claim before its turn may get too large a number.
create or replace function notifyq.room_of_keys(
  queue messages.queue, keys text[], running bigint[], given bigint[], out _key text,
  out _room integer, out _tokens integer
)
  returns setof record language plpgsql
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_concurrency integer := queue.key_concurrency;
begin
  if queue.has_key_limits then
    -- That of the argument may be the least of any key, see with_least_limit().
    v_concurrency := (
      select q.key_concurrency from messages.queue as q where q.name = room_of_keys.queue.name
    );
  end if;
  return query
  with held as (
    select m.key, count(*)::integer as every,
      sum(notifyq.cost_of(m.headers)) filter (where m.id = any (room_of_keys.given)) as new
    from messages.message as m
    where m.id = any (
      case when queue.key_concurrency is null then room_of_keys.given
        else room_of_keys.running || room_of_keys.given end
    )
    group by m.key
  )
  select k.key,
    least(
      case when queue.ordered then 1 else 2147483647 end,
      case when queue.key_concurrency is not null then
        coalesce(o.concurrency, v_concurrency) - coalesce(h.every, 0)
      end,
      t.tokens
    ),
    t.tokens
  from unnest(room_of_keys.keys) as k (key)
  left join held as h on h.key = k.key
  left join lateral (
    select l.paid_at
    from notifyq.limit_key as l
    where queue.key_rate is not null
      and l.queue = room_of_keys.queue.name
      and l.key = k.key
    order by l.number desc
    limit 1
  ) as f on true
  left join messages.queue_limit as o on queue.has_key_limits
    and o.queue = room_of_keys.queue.name and o.key = k.key
  cross join lateral (
    select case when queue.key_rate is not null then
      -- What is given may leave less than none.
      greatest(notifyq.count_tokens(
        coalesce(f.paid_at, '-infinity'), v_now, coalesce(o.rate, queue.key_rate),
        queue.key_rate_period, queue.key_rate_burst
      ) - coalesce(h.new, 0), -2147483647)::integer
    end as tokens
    -- A query of its own: the tokens are counted once.
    offset 0
  ) as t;
end;
$$;

-- Messages without a key among the next 1000 of a queue. They have no index of their own, as it
-- would have to include all messages of queues without limits. _position is where the next call
-- goes on; null: at the start.
create or replace function notifyq.find_keyless(
  queue text, quantity integer, filter jsonpath, "position" bigint[], out _ids bigint[],
  out _position bigint[]
)
  language plpgsql stable
  set enable_sort = off
as $$
declare
  v_at_once constant integer := 1000;
  v_seen bigint;
  v_last bigint[];
begin
  with seen as materialized (
    (
      select m.id, m.priority, case when m.key is null then find_keyless.filter is null
        or notifyq.matches(m, find_keyless.filter) else false end as fits
      from messages.message as m
      where m.queue = find_keyless.queue
        and m.state = 'waiting'
        and m.priority = find_keyless.position[1]
        and m.id > find_keyless.position[2]
      order by m.priority desc, m.id
      limit v_at_once
    )
    union all
    (
      select m.id, m.priority, case when m.key is null then find_keyless.filter is null
        or notifyq.matches(m, find_keyless.filter) else false end
      from messages.message as m
      where m.queue = find_keyless.queue
        and m.state = 'waiting'
        and m.priority < coalesce(find_keyless.position[1], 2147483648)
      order by m.priority desc, m.id
      limit v_at_once
    )
    limit v_at_once
  )
  select array(select s.id from seen as s where s.fits limit find_keyless.quantity + 1),
    (select count(*) from seen as s),
    (select array[s.priority, s.id] from seen as s order by s.priority, s.id desc limit 1)
  into _ids, v_seen, v_last;
  _position := case when cardinality(_ids) > quantity then position
    when v_seen = v_at_once then v_last end;
  _ids := _ids[:quantity];
end;
$$;

-- Waiting keys: keys of a queue that have messages waiting.

-- Running transactions other than this one. Their row locks mostly last: a concurrent claim skips
-- such rows by xmax, without trying to lock them.
create or replace function notifyq.running_transactions()
  returns xid[] language plpgsql stable
as $$
declare
  v_snapshot constant pg_snapshot := pg_current_snapshot();
  v_next constant xid8 := pg_snapshot_xmax(v_snapshot);
begin
  -- A snapshot lists those below the last finished transaction; all later ones have begun since.
  return array(
    select s.id::xid from pg_snapshot_xip(v_snapshot) as s (id)
    union all
    select (v_next::text::bigint + n.later)::text::xid8::xid
    from generate_series(0, least(age(v_next::xid), 1000) - 1) as n (later)
  );
end;
$$;

-- Up to quantity keys with waiting messages, with hashes larger than one and up to another (null:
-- of the whole queue), and of each key the message that is claimed first, locked if is_locking.
-- Messages in given, and those that another transaction has just locked, are left out. It steps
-- from key to key in the index of waiting messages: the other one includes locked and scheduled
-- ones.
create or replace function notifyq.waiting_keys(
  queue text, after bigint, last bigint, quantity integer, given bigint[], is_locking boolean,
  out _keys text[], out _key_hashes bigint[], out _ids bigint[]
)
  language plpgsql
  -- As in find_messages(): else all waiting messages of the queue are read and sorted, for each
  -- key.
  set enable_sort = off
as $$
declare
  v_busy constant xid[] := notifyq.running_transactions();
  v_last constant bigint := coalesce(last, notifyq.last_key_hash(queue));
begin
  with recursive steps as (
    select null::text as key, coalesce(after, notifyq.first_key_hash(queue)) as key_hash,
      null::bigint as id, 0 as number
    union all
    select f.key, f.key_hash, f.id, s.number + 1
    from steps as s
    cross join lateral (
      select n.*
      from (
        select m.key, notifyq.key_hash(m.queue, m.key) as key_hash, m.id
        from messages.message as m
        where not is_locking
          and m.queue = waiting_keys.queue
          and m.state = 'waiting'
          and notifyq.key_hash(m.queue, m.key) > s.key_hash
          and notifyq.key_hash(m.queue, m.key) <= v_last
          and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (waiting_keys.given))
        order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
        limit 1
      ) as n
      union all
      select l.*
      from (
        select m.key, notifyq.key_hash(m.queue, m.key) as key_hash, m.id
        from messages.message as m
        where is_locking
          and m.queue = waiting_keys.queue
          and m.state = 'waiting'
          and notifyq.key_hash(m.queue, m.key) > s.key_hash
          and notifyq.key_hash(m.queue, m.key) <= v_last
          and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (waiting_keys.given))
        order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
        limit 1
        for update skip locked
      ) as l
    ) as f
    where s.number < waiting_keys.quantity
  )
  select coalesce(array_agg(s.key), '{}'), coalesce(array_agg(s.key_hash), '{}'),
    coalesce(array_agg(s.id), '{}')
  into _keys, _key_hashes, _ids
  from steps as s
  where s.number > 0;
end;
$$;

-- Lock those of the messages that still wait in the queue.
create or replace function notifyq.lock_waiting(ids bigint[], queue text)
  returns bigint[] language plpgsql
as $$
begin
  return array(
    select m.id
    from messages.message as m
    where m.id = any (lock_waiting.ids)
      -- Not conditions on the columns themselves, see archive().
      and (m.state = 'waiting' and m.queue = lock_waiting.queue) is true
    order by m.id
    for update skip locked
  );
end;
$$;

-- Charges: tokens that keys have spent.
--
-- Far from its rate a key need not be written with each claim: a claim writes one row with all of
-- its keys, and the buckets of keys pay for many rows at once. A claim is far from the rate if
-- every key would have a token left whichever key it was for. For that it suffices to know how
-- empty the emptiest bucket can be. Consequently no key is out of tokens while charges are unpaid.

-- Whether each key would have a token left if it paid for most messages.
create or replace function notifyq.is_far_from_limits(
  queue messages.queue, state notifyq.limit_state, most integer
)
  returns boolean language plpgsql volatile
as $$
begin
  -- The bound below is for keys that all have the same rate.
  return not queue.has_key_limits and most < notifyq.count_tokens(
    state.keys_paid_at, clock_timestamp(), queue.key_rate, queue.key_rate_period,
    queue.key_rate_burst
  );
end;
$$;

-- Pay all charges: each bucket pays for its charges in order, and fills up in between. A bucket
-- that is full again by now needs no row.
create or replace function notifyq.pay_charges(state notifyq.limit_state)
  returns notifyq.limit_state language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
  v_now timestamptz := clock_timestamp();
  v_last timestamptz;
begin
  if state.booked = state.charged then
    return v_state;
  end if;
  with charges as (
    select u.key, c.charged_at, sum(notifyq.refill_seconds(u.tokens, c.each)) over (
      partition by u.key order by c.number desc
    ) as seconds
    from notifyq.limit_charge as c
    cross join lateral unnest(c.keys, c.tokens) as u (key, tokens)
    where c.queue = pay_charges.state.queue
      and c.number > pay_charges.state.booked
      and c.number <= pay_charges.state.charged
  ),
  paid as materialized (
    select g.key, l.number,
      greatest(l.paid_at + make_interval(secs => g.seconds), g.paid_at) as paid_at
    from (
      select h.key, max(h.seconds) as seconds,
        max(h.charged_at + make_interval(secs => h.seconds)) as paid_at
      from charges as h
      group by h.key
    ) as g
    left join lateral (
      select k.number, k.paid_at
      from notifyq.limit_key as k
      where k.queue = pay_charges.state.queue
        and k.key = g.key
      order by k.number desc
      limit 1
    ) as l on true
  ),
  changed as (
    update notifyq.limit_key as k
    set number = k.number + 1, paid_at = p.paid_at
    from paid as p
    where p.paid_at > v_now
      and k.queue = pay_charges.state.queue
      and k.key = p.key
      and k.number = p.number
  ),
  added as (
    insert into notifyq.limit_key (queue, key, number, paid_at)
    select pay_charges.state.queue, p.key, 0, p.paid_at
    from paid as p
    where p.paid_at > v_now
      and p.number is null
  )
  select max(p.paid_at) into v_last from paid as p;
  delete from notifyq.limit_charge as c
  where c.queue = pay_charges.state.queue
    and c.number > pay_charges.state.booked
    and c.number <= pay_charges.state.charged;
  v_state.booked := state.charged;
  v_state.booked_paid_at := greatest(state.booked_paid_at, v_last);
  v_state.keys_paid_at := v_state.booked_paid_at;
  return v_state;
end;
$$;

-- Charge keys for claimed messages, tokens has their cost for each.
create or replace function notifyq.charge_keys(
  queue messages.queue, state notifyq.limit_state, keys text[], tokens integer[]
)
  returns notifyq.limit_state language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
  v_now timestamptz := clock_timestamp();
  v_most integer := (select max(t.quantity) from unnest(tokens) as t (quantity));
begin
  if v_most is null then
    return v_state;
  end if;
  v_state.charged := state.charged + cardinality(keys);
  v_state.keys_paid_at := notifyq.pay_tokens(
    state.keys_paid_at, v_now, v_most, queue.key_rate, queue.key_rate_period
  );
  if queue.has_key_limits then
    -- A row for each rate; there are at least as many numbers as rates.
    insert into notifyq.limit_charge (queue, number, charged_at, each, keys, tokens)
    select charge_keys.queue.name, v_state.charged + 1 - row_number() over (), v_now,
      extract(epoch from queue.key_rate_period)::double precision
        / coalesce(l.rate, charge_keys.queue.key_rate),
      array_agg(u.key), array_agg(u.tokens)
    from unnest(charge_keys.keys, charge_keys.tokens) as u (key, tokens)
    left join messages.queue_limit as l on l.queue = charge_keys.queue.name and l.key = u.key
    group by coalesce(l.rate, charge_keys.queue.key_rate);
  else
    insert into notifyq.limit_charge (queue, number, charged_at, each, keys, tokens)
    values (
      charge_keys.queue.name, v_state.charged, v_now,
      extract(epoch from queue.key_rate_period)::double precision / queue.key_rate,
      charge_keys.keys, charge_keys.tokens
    );
  end if;
  -- A bucket pays late to pay for many claims at once, but not for too many of them.
  if v_state.charged - v_state.booked > 10000
    or not notifyq.is_far_from_limits(queue, v_state, 0)
  then
    v_state := notifyq.pay_charges(v_state);
  end if;
  return v_state;
end;
$$;
