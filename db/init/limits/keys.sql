-- Keys: those that wait, and what they were charged.

-- For each key: how many more messages it may have beside those that run and those that are given
-- just now. What is not booked is not known here: before its turn a claim may be told too much.
create or replace function notifyq.room_of_keys(
  queue messages.queue, keys text[], running bigint[], given bigint[],
  out _key text, out _room integer
)
  returns setof record
  language plpgsql
  set enable_seqscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return query
  with held as (
    select m.key, count(*)::integer as every,
      (count(*) filter (where m.id = any (room_of_keys.given)))::integer as new
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
      queue.key_concurrency - coalesce(h.every, 0),
      case when queue.key_rate is not null then
        notifyq.count_tokens(
          coalesce(f.paid_at, '-infinity'), v_now, queue.key_rate, queue.key_rate_period,
          queue.key_rate_burst
        ) - coalesce(h.new, 0)
      end
    )
  from unnest(room_of_keys.keys) as k (key)
  left join held as h on h.key = k.key
  left join lateral (
    select l.paid_at
    from notifyq.flow_key as l
    where queue.key_rate is not null
      and l.queue = room_of_keys.queue.name
      and l.key = k.key
    order by l.number desc
    limit 1
  ) as f on true;
end;
$$;

-- Whether each of these keys may have so many messages. Only after pay_charges().
create or replace function notifyq.have_room(
  queue messages.queue, keys text[], quantities integer[]
)
  returns boolean
  language plpgsql
as $$
begin
  return not exists (
    select from notifyq.room_of_keys(queue, keys, '{}', '{}') as r
    join unnest(keys, quantities) as k (key, quantity) on k.key = r._key
    where k.quantity > r._room
  );
end;
$$;

-- Of the next 1000 messages of a queue behind a place, those without a key: they are in no index of
-- their own, as all messages of queues without limits would have to be in it. _place is where to go
-- on; null: from the start.
create or replace function notifyq.find_keyless(
  queue text, quantity integer, filter jsonpath, place bigint[],
  out _ids bigint[], out _place bigint[]
)
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
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
        and m.priority = find_keyless.place[1]
        and m.id > find_keyless.place[2]
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
        and m.priority < coalesce(find_keyless.place[1], 2147483648)
      order by m.priority desc, m.id
      limit v_at_once
    )
    limit v_at_once
  )
  select array(select s.id from seen as s where s.fits limit find_keyless.quantity + 1),
    (select count(*) from seen as s),
    (select array[s.priority, s.id] from seen as s order by s.priority, s.id desc limit 1)
  into _ids, v_seen, v_last;
  _place := case when cardinality(_ids) > quantity then place
    when v_seen = v_at_once then v_last end;
  _ids := _ids[:quantity];
end;
$$;

-- Waiting keys: of which keys something waits in a queue.

-- Transactions other than this one that are under way. What they have locked they keep, mostly:
-- claims of the same moment need not read it to be told so.
create or replace function notifyq.running_transactions()
  returns xid[]
  language plpgsql
  stable
as $$
declare
  v_snapshot constant pg_snapshot := pg_current_snapshot();
  v_next constant xid8 := pg_snapshot_xmax(v_snapshot);
begin
  -- A snapshot names those before the last one that has ended; the others have begun since.
  return array(
    select s.id::xid from pg_snapshot_xip(v_snapshot) as s (id)
    union all
    select (v_next::text::bigint + n.later)::text::xid8::xid
    from generate_series(0, least(age(v_next::xid), 1000) - 1) as n (later)
  );
end;
$$;

-- Keys of which something waits, up to quantity of them, from one lane on and up to another (null:
-- from the first, to the last one), and of each the message that is handed out first: not one of
-- given, and none that another transaction has just locked. Ordered as the index of what waits is:
-- the other one has what is locked and scheduled as well. It is read in pieces: behind the last key
-- of one begins the next, which is larger where little waits of each key, and as large as what is
-- missing takes by then. Where much waits of each, steps from one key to the next come in between.
create or replace function notifyq.waiting_keys(
  queue text, first bigint, last bigint, quantity integer, given bigint[],
  out _keys text[], out _lanes bigint[], out _ids bigint[]
)
  language plpgsql
  stable
  set enable_seqscan = off
  -- As in find_messages(): what waits of a whole queue would be read, and sorted, for each of its
  -- keys.
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_busy constant xid[] := notifyq.running_transactions();
  v_first constant bigint := coalesce(first, notifyq.first_key_hash(queue));
  v_last constant bigint := coalesce(last - 1, notifyq.last_key_hash(queue));
  v_steps constant integer := 64;
begin
  with recursive pieces as (
    (
      select array[m.key] as keys, array[notifyq.key_hash(m.queue, m.key)] as lanes,
        array[m.id] as ids, notifyq.key_hash(m.queue, m.key) as last, 16 as size, 1 as seen
      from messages.message as m
      where m.queue = waiting_keys.queue
        and m.state = 'waiting'
        and notifyq.key_hash(m.queue, m.key) >= v_first
        and notifyq.key_hash(m.queue, m.key) <= v_last
        and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (waiting_keys.given))
      order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
      limit 1
    )
    union all
    select n.keys, n.lanes, n.ids, n.last,
      case when p.size = 0 then 16
        when 7 * cardinality(n.lanes) < p.size then 0
        else least(2 * p.size, 256, 8 + p.size * (
          waiting_keys.quantity - p.seen - cardinality(n.lanes)
        ) / cardinality(n.lanes)) end,
      p.seen + cardinality(n.lanes)
    from pieces as p
    cross join lateral (
      select array_agg(t.key) as keys, array_agg(t.lane) as lanes, array_agg(t.id) as ids,
        max(t.lane) as last
      from (
        with recursive steps as (
          select null::text as key, p.last as lane, null::bigint as id, 0 as number
          where p.size = 0
          union all
          select f.key, f.lane, f.id, s.number + 1
          from steps as s
          cross join lateral (
            select m.key, notifyq.key_hash(m.queue, m.key) as lane, m.id
            from messages.message as m
            where m.queue = waiting_keys.queue
              and m.state = 'waiting'
              and notifyq.key_hash(m.queue, m.key) > s.lane
              and notifyq.key_hash(m.queue, m.key) <= v_last
              and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (waiting_keys.given))
            order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
            limit 1
          ) as f
          where s.number < least(v_steps, waiting_keys.quantity - p.seen)
        )
        select r.key, r.lane, r.id from steps as r where r.number > 0
      ) as t
      having p.size = 0
      union all
      select array_agg(k.key), array_agg(k.lane), array_agg(k.id), max(k.lane)
      from (
        select distinct on (r.lane) r.key, r.lane, r.id
        from (
          select m.key, notifyq.key_hash(m.queue, m.key) as lane, m.priority, m.id
          from messages.message as m
          where p.size > 0
            and m.queue = waiting_keys.queue
            and m.state = 'waiting'
            and notifyq.key_hash(m.queue, m.key) > p.last
            and notifyq.key_hash(m.queue, m.key) <= v_last
            and (m.xmax = '0' or m.xmax <> all (v_busy) and m.id <> all (waiting_keys.given))
          order by notifyq.key_hash(m.queue, m.key), m.priority desc, m.id
          limit p.size
        ) as r
        order by r.lane, r.priority desc, r.id
      ) as k
      having p.size > 0
    ) as n
    where p.seen < waiting_keys.quantity
      and n.lanes is not null
  )
  select coalesce(array_agg(k.key), '{}'), coalesce(array_agg(k.lane), '{}'),
    coalesce(array_agg(k.id), '{}')
  into _keys, _lanes, _ids
  from (
    select u.key, u.lane, u.id
    from pieces as p
    cross join lateral unnest(p.keys, p.lanes, p.ids) as u (key, lane, id)
    limit waiting_keys.quantity
  ) as k;
end;
$$;

-- Charges: what the keys of a queue with a rate for each of them have had.
--
-- Far from its rate a key need not be written with each claim: the claims of a queue leave what
-- they handed out in one row each, and the keys pay for many of them at once. That is far for a
-- claim after which every key has a token left, whichever of them it is for: all that is asked for
-- that is how far the fullest key can be ahead. So while something is left to pay, no key is dry.

-- Whether each key had a token left if any of them paid for so many.
create or replace function notifyq.is_far_from_limits(
  queue messages.queue, state notifyq.flow_state, most integer
)
  returns boolean
  language plpgsql
  volatile
as $$
begin
  return most < notifyq.count_tokens(
    state.keys_paid_at, clock_timestamp(), queue.key_rate, queue.key_rate_period,
    queue.key_rate_burst
  );
end;
$$;

-- Let the buckets of the keys pay for what is left to pay: each for its charges one after another,
-- with what ran in between. One that is full again by now has none.
create or replace function notifyq.pay_charges(state notifyq.flow_state)
  returns notifyq.flow_state
  language plpgsql
  set enable_seqscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state notifyq.flow_state := state;
  v_now timestamptz := clock_timestamp();
  v_last timestamptz;
begin
  if state.booked = state.charged then
    return v_state;
  end if;
  with charges as (
    select u.key, c.charged_at, sum(u.tokens * c.each) over (
      partition by u.key order by c.number desc
    ) as seconds
    from notifyq.flow_charge as c
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
      from notifyq.flow_key as k
      where k.queue = pay_charges.state.queue
        and k.key = g.key
      order by k.number desc
      limit 1
    ) as l on true
  ),
  changed as (
    update notifyq.flow_key as k
    set number = k.number + 1, paid_at = p.paid_at
    from paid as p
    where p.paid_at > v_now
      and k.queue = pay_charges.state.queue
      and k.key = p.key
      and k.number = p.number
  ),
  added as (
    insert into notifyq.flow_key (queue, key, number, paid_at)
    select pay_charges.state.queue, p.key, 0, p.paid_at
    from paid as p
    where p.paid_at > v_now
      and p.number is null
  )
  select max(p.paid_at) into v_last from paid as p;
  delete from notifyq.flow_charge as c
  where c.queue = pay_charges.state.queue
    and c.number > pay_charges.state.booked
    and c.number <= pay_charges.state.charged;
  v_state.booked := state.charged;
  v_state.booked_paid_at := greatest(state.booked_paid_at, v_last);
  v_state.keys_paid_at := v_state.booked_paid_at;
  return v_state;
end;
$$;

-- Let the keys of messages that were handed out pay for them, so many of each.
create or replace function notifyq.charge_keys(
  queue messages.queue, state notifyq.flow_state, keys text[], tokens integer[]
)
  returns notifyq.flow_state
  language plpgsql
as $$
declare
  v_state notifyq.flow_state := state;
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
  insert into notifyq.flow_charge (queue, number, charged_at, each, keys, tokens)
  values (
    charge_keys.queue.name, v_state.charged, v_now,
    extract(epoch from queue.key_rate_period)::double precision / queue.key_rate,
    charge_keys.keys, charge_keys.tokens
  );
  -- One that pays at once pays for little, and so does one that pays for very much.
  if v_state.charged - v_state.booked > 10000
    or not notifyq.is_far_from_limits(queue, v_state, 0)
  then
    v_state := notifyq.pay_charges(v_state);
  end if;
  return v_state;
end;
$$;
