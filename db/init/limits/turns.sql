-- Turns: claims of a limited queue, one after the other.
--
-- raises: NQ003 invalid argument

-- Each holds the row of the queue in notifyq.flow until it commits, and every statement after that
-- sees what the claims before it have locked. Queues without limits never come here.

-- Those of the queues whose claims it is now this transaction's turn to make. Not barred ones: to
-- hold the row of a queue is to stop its other workers.
create or replace function notifyq.enter_turn(queues text[])
  returns text[]
  language plpgsql
  set enable_seqscan = off
  -- Who claims in a transaction that stays open must not hold up the others for long.
  set lock_timeout = '500ms'
as $$
declare
  v_names text[];
begin
  v_names := array(
    select q.name
    from messages.queue as q
    where q.name = any (enter_turn.queues)
      and q.is_limited
      and not q.paused
      and notifyq.is_allowed(q.name, 'consume from')
  );
  if cardinality(v_names) = 1 then
    perform from notifyq.flow as f
    where f.queue = v_names[1]
      and f.part = 'claim'
    for update skip locked;
    if found then
      return v_names;
    end if;
  end if;
  begin
    -- By name, so that of two who want the same queues one waits for the other, and never both.
    perform from notifyq.flow as f
    where f.queue = any (v_names)
      and f.part = 'claim'
    order by f.queue
    for update;
    return v_names;
  exception
    when lock_not_available then
      return array(
        select f.queue
        from notifyq.flow as f
        where f.queue = any (v_names)
          and f.part = 'claim'
        order by f.queue
        for update skip locked
      );
  end;
end;
$$;

-- Tokens of a bucket, which is told by one instant: when it is full again. Without a burst it has
-- room for a tenth of a second's worth: workers come that often, and few see much more in a period.
create or replace function notifyq.count_tokens(
  paid_at timestamptz, instant timestamptz, rate integer, period interval, burst integer
)
  returns integer
  language plpgsql
  immutable
as $$
declare
  v_each double precision := extract(epoch from period)::double precision / rate;
begin
  -- The policy may have been another one when it was paid for.
  return greatest(least(floor(
    coalesce(burst, greatest(1, ceil(0.1 / v_each)))
    + extract(epoch from instant - greatest(paid_at, instant)) / v_each + 1e-6
  ), 2147483647), -2147483647)::integer;
end;
$$;

create or replace function notifyq.pay_tokens(
  paid_at timestamptz, instant timestamptz, tokens bigint, rate integer, period interval
)
  returns timestamptz
  language plpgsql
  immutable
as $$
begin
  return greatest(paid_at, instant)
    + make_interval(secs => tokens * extract(epoch from period)::double precision / rate);
end;
$$;

-- Remember whether something waits for a lock of the queue to end, so that whoever ends one rings.
create or replace function notifyq.note_held(queue messages.queue, is_held boolean)
  returns void
  language plpgsql
as $$
declare
  v_flow notifyq.flow;
  v_is_old boolean;
begin
  select f.* into v_flow
  from notifyq.flow as f
  where f.queue = note_held.queue.name
    and f.part = 'claim';
  v_is_old := v_flow.held_at not between clock_timestamp() - interval '1 second'
    and clock_timestamp();
  if v_flow.is_held and not v_is_old or not v_flow.is_held and not is_held then
    return;
  end if;
  update notifyq.flow as f
  set is_held = note_held.is_held,
    held_at = clock_timestamp()
  where f.queue = note_held.queue.name
    and f.part = 'claim';
  if is_held and not v_flow.is_held then
    -- Who ends a lock at this moment has not seen it, and rings for nobody: who is summoned looks
    -- once more when all transactions of this moment are over.
    perform notifyq.notify_queue(queue, '');
  end if;
end;
$$;

-- Locks of these messages have ended: ring in those of the queues where others wait for that.
create or replace function notifyq.notify_freed(queues text[], ids bigint[])
  returns void
  language plpgsql
as $$
begin
  perform notifyq.notify_queue(q, notifyq.compact_ids(notify_freed.ids[1:1000]))
  from messages.queue as q
  join notifyq.flow as f on f.queue = q.name and f.part = 'claim' and f.is_held
  where q.name = any (notify_freed.queues);
end;
$$;

-- Flow state: what the claims of a queue with limits leave to the next.

-- The present one; null where the queue has lost its limits meanwhile.
create or replace function notifyq.read_state(queue text)
  returns notifyq.flow_state
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_state notifyq.flow_state;
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform notifyq.raise_invalid(
      format('queue %L has limits, which hold at READ COMMITTED only', queue),
      'claim and take in a transaction of that isolation level'
    );
  end if;
  select s.* into v_state
  from notifyq.flow_state as s
  where s.queue = read_state.queue
  order by s.number desc
  limit 1;
  return v_state;
end;
$$;

-- Know what runs as well as matters: with quantity more, none of the limits may be exceeded. Far
-- from them it is enough how many were handed out since all that is locked was counted; as they
-- come near their ids are kept, and those that are locked no more taken out. new has been claimed
-- ahead, by this transaction: so many of each of these keys, most of one.
create or replace function notifyq.count_running(
  queue messages.queue, quantity integer, state notifyq.flow_state, new bigint[], keys text[],
  tokens integer[], most integer
)
  returns notifyq.flow_state
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state notifyq.flow_state := state;
  v_now timestamptz := clock_timestamp();
  v_limit integer := least(queue.concurrency, queue.key_concurrency);
  v_is_full boolean :=
    v_now not between state.counted_at and state.counted_at + interval '5 seconds'
    or state.unlisted > 0
    and state.unlisted + cardinality(state.running) + 4 * quantity > v_limit;
  v_first bigint := -9223372036854775807;
  v_last bigint := 9223372036854775807;
  v_others bigint[] := array[]::bigint[];
begin
  if v_limit is null then
    v_state.running := '{}';
    v_state.unlisted := 0;
  elsif v_is_full
    or cardinality(state.running) + quantity > least(
      queue.concurrency, case when new = '{}' then queue.key_concurrency end,
      2 * state.kept + 2000
    )
    or cardinality(state.running) + quantity > queue.key_concurrency
    and most > queue.key_concurrency - state.most
  then
    -- Now and then all that is locked: what was claimed without a limit counts as well. Else what
    -- was handed out at about the same time, which lies close together; the others by their ids.
    if not v_is_full then
      v_last := (select max(r.id) from unnest(state.running) as r (id));
      v_first := v_last - 4 * cardinality(state.running);
      v_others := array(select r.id from unnest(state.running) as r (id) where r.id < v_first);
    end if;
    with held as materialized (
      select l.id, l.key
      from (
        select m.id, m.key
        from messages.message as m
        where m.id between v_first and v_last
          and m.state = 'locked'
          and m.queue = count_running.queue.name
        union all
        select m.id, m.key
        from messages.message as m
        where m.id = any (v_others)
          -- Not a condition on the state itself, see archive().
          and (m.state = 'locked') is true
      ) as l
      -- A hash of them, whatever number it thinks that they are.
      where l.id not in (select n.id from unnest(count_running.new) as n (id))
    )
    select array(select h.id from held as h),
      case when queue.key_concurrency is null then 1000000000 else (
        select coalesce(max(k.quantity), 0)::integer - most
        from (
          select sum(c.quantity) as quantity
          from (
            select h.key, count(*) as quantity from held as h group by h.key
            union all
            select n.key, n.quantity from unnest(keys, tokens) as n (key, quantity)
          ) as c
          where c.key is not null
          group by c.key
        ) as k
      ) end
    into v_state.running, v_state.most;
    if v_is_full then
      v_state.counted_at := v_now;
      v_state.unlisted := 0;
      if cardinality(v_state.running) + 20 * quantity <= v_limit then
        v_state.unlisted := cardinality(v_state.running);
        v_state.running := '{}';
      end if;
    end if;
    v_state.kept := cardinality(v_state.running);
  end if;
  return v_state;
end;
$$;

-- Leave to the next claim what has changed. Without its turn a claim leaves only where to go on,
-- and not even that where another one does so at this moment.
create or replace function notifyq.save_limit_state(
  before notifyq.flow_state, state notifyq.flow_state, has_turn boolean
)
  returns void
  language plpgsql
  set enable_seqscan = off
as $$
begin
  if state is not distinct from before then
    return;
  end if;
  if not has_turn then
    perform from notifyq.flow_state as s
    where s.queue = before.queue
      and s.number = before.number
    for update skip locked;
    if not found then
      return;
    end if;
  end if;
  update notifyq.flow_state as s
  set number = s.number + 1,
    natural_look = state.natural_look,
    paid_at = state.paid_at,
    counted_at = state.counted_at,
    running = state.running,
    unlisted = state.unlisted,
    most = state.most,
    kept = state.kept,
    after_lane = state.after_lane,
    round = state.round,
    had = state.had,
    walk_at = state.walk_at,
    place = state.place,
    charged = state.charged,
    booked = state.booked,
    keys_paid_at = state.keys_paid_at,
    booked_paid_at = state.booked_paid_at
  where s.queue = before.queue
    and s.number = before.number;
end;
$$;

-- Let the queue and the keys of these messages pay for them; most are of one key, as far as that
-- is known.
create or replace function notifyq.charge_limits(
  queue messages.queue, ids bigint[], state notifyq.flow_state, most integer,
  keys text[], tokens integer[]
)
  returns notifyq.flow_state
  language plpgsql
as $$
declare
  v_state notifyq.flow_state := state;
begin
  if ids = '{}' then
    return v_state;
  end if;
  if state.unlisted + cardinality(state.running) + 20 * cardinality(ids)
    <= least(queue.concurrency, queue.key_concurrency)
  then
    v_state.unlisted := state.unlisted + cardinality(ids);
  elsif queue.concurrency is not null or queue.key_concurrency is not null then
    v_state.running := state.running || ids;
    v_state.most := coalesce(least(state.most + most, 1000000000), 1000000000);
  end if;
  if queue.rate is not null then
    v_state.paid_at := notifyq.pay_tokens(
      state.paid_at, clock_timestamp(), cardinality(ids), queue.rate, queue.rate_period
    );
  end if;
  if queue.key_rate is not null then
    v_state := notifyq.charge_keys(queue, v_state, keys, tokens);
  end if;
  return v_state;
end;
$$;
