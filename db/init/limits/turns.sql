-- Turns: one claim at a time of a queue with limits.
--
-- raises: NQ003 invalid argument

-- A claim locks the row of the queue in notifyq.limit_turn until it commits, and then sees what all
-- claims before it have locked. Claims of other queues do not come here.
--
-- Functions of limits are planned with the settings of claim() and take(), which call them.

-- Enter the turns of queues, and return the queues entered. Queues that the caller may not consume
-- from are left out: holding their turn would stop their workers.
create or replace function notifyq.enter_turn(queues text[])
  returns text[] language plpgsql
  -- A claim in a transaction that stays open must not block the others for long.
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
      and not notifyq.is_paused(q)
      and notifyq.is_allowed(q.name, 'consume from')
  );
  if cardinality(v_names) = 1 then
    perform from notifyq.limit_turn as f
    where f.queue = v_names[1]
      and f.part = 'claim'
    for update skip locked;
    if found then
      return v_names;
    end if;
  end if;
  begin
    -- In order of names: two claims of the same queues cannot deadlock.
    perform from notifyq.limit_turn as f
    where f.queue = any (v_names)
      and f.part = 'claim'
    order by f.queue
    for update;
    return v_names;
  exception
    when lock_not_available then
      return array(
        select f.queue
        from notifyq.limit_turn as f
        where f.queue = any (v_names)
          and f.part = 'claim'
        order by f.queue
        for update skip locked
      );
  end;
end;
$$;

-- Tokens of a bucket. Its state is one instant: when it is full again. The default burst is a tenth
-- of a second's worth: workers poll that often, and few see much more of a period.
create or replace function notifyq.count_tokens(
  paid_at timestamptz, instant timestamptz, rate integer, period interval, burst integer
)
  returns integer language plpgsql immutable
as $$
declare
  v_each double precision := extract(epoch from period)::double precision / rate;
begin
  -- The policy may have changed since then.
  return greatest(least(floor(
    coalesce(burst, greatest(1, ceil(0.1 / v_each)))
    + extract(epoch from instant - greatest(paid_at, instant)) / v_each + 1e-6
  ), 2147483647), -2147483647)::integer;
end;
$$;

-- How long a bucket fills up for tokens, where each takes so many seconds: at most 1000 years, so
-- that any cost leads to an instant.
create or replace function notifyq.refill_seconds(tokens bigint, each double precision)
  returns double precision language sql immutable
as $$
  select least(tokens * each, 31557600000.0);
$$;

create or replace function notifyq.pay_tokens(
  paid_at timestamptz, instant timestamptz, tokens bigint, rate integer, period interval
)
  returns timestamptz language plpgsql immutable
as $$
begin
  return greatest(paid_at, instant)
    + make_interval(secs => notifyq.refill_seconds(
      tokens, extract(epoch from period)::double precision / rate
    ));
end;
$$;

-- Record whether messages wait for the end of a lock: the end of a lock then notifies.
create or replace function notifyq.note_blocked(queue messages.queue, is_blocked boolean)
  returns void language plpgsql
as $$
declare
  v_turn notifyq.limit_turn;
  v_is_old boolean;
begin
  select f.* into v_turn
  from notifyq.limit_turn as f
  where f.queue = note_blocked.queue.name
    and f.part = 'claim';
  v_is_old := v_turn.blocked_at not between clock_timestamp() - interval '1 second'
    and clock_timestamp();
  if v_turn.is_blocked and not v_is_old or not v_turn.is_blocked and not is_blocked then
    return;
  end if;
  update notifyq.limit_turn as f
  set is_blocked = note_blocked.is_blocked,
    blocked_at = clock_timestamp()
  where f.queue = note_blocked.queue.name
    and f.part = 'claim';
  if is_blocked and not v_turn.is_blocked then
    -- A worker that ends a lock at this moment has not seen the record and does not notify. A
    -- worker that this notification wakes polls again once all present transactions are over.
    perform notifyq.notify_queue(queue, '');
  end if;
end;
$$;

-- Notify queues in which messages wait for the end of a lock, as the locks of ids have ended.
create or replace function notifyq.notify_freed(queues text[], ids bigint[])
  returns void language plpgsql
as $$
begin
  perform notifyq.notify_queue(q, notifyq.compact_ids(notify_freed.ids[1:1000]))
  from messages.queue as q
  join notifyq.limit_turn as f on f.queue = q.name and f.part = 'claim' and f.is_blocked
  where q.name = any (notify_freed.queues);
end;
$$;

-- State: what claims of a queue with limits hand on to the next.

-- The present state; null if the queue has lost its limits meanwhile.
create or replace function notifyq.read_state(queue text)
  returns notifyq.limit_state language plpgsql
as $$
declare
  v_state notifyq.limit_state;
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform notifyq.raise_invalid(
      format('queue %L has limits, which need READ COMMITTED', queue),
      'claim and take in a READ COMMITTED transaction'
    );
  end if;
  select s.* into v_state
  from notifyq.limit_state as s
  where s.queue = read_state.queue
  order by s.number desc
  limit 1;
  return v_state;
end;
$$;

-- Count running messages only as precisely as the limits require, where quantity more are to be
-- claimed. Far from the limits the number claimed since the last count is enough; near them the ids
-- are listed, and those that are not locked any more are removed. new has been claimed before the
-- turn, by this transaction: tokens has the number for each of keys, most is the largest.
create or replace function notifyq.count_running(
  queue messages.queue, quantity integer, state notifyq.limit_state, new bigint[], keys text[],
  tokens integer[], most integer
)
  returns notifyq.limit_state language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
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
    and most > queue.key_concurrency - state.max_per_key
  then
    -- At times all locked messages are counted: some were claimed before there was a limit. Else
    -- the listed ids: most are close together, as a range of ids; the others are found by id.
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
      -- Hashed, however many rows the planner expects.
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
    into v_state.running, v_state.max_per_key;
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

-- Save the state for the next claim. Before its turn a claim saves only where the next one goes on,
-- and not even that if another claim does so at this moment.
create or replace function notifyq.save_limit_state(
  before notifyq.limit_state, state notifyq.limit_state, has_turn boolean
)
  returns void language plpgsql
as $$
begin
  if state is not distinct from before then
    return;
  end if;
  if not has_turn then
    perform from notifyq.limit_state as s
    where s.queue = before.queue
      and s.number = before.number
    for update skip locked;
    if not found then
      return;
    end if;
  end if;
  delete from notifyq.limit_state as s
  where s.queue = before.queue
    and s.number = before.number;
  state.number := before.number + 1;
  insert into notifyq.limit_state values (state.*);
end;
$$;

-- Charge the queue for messages that cost so much together, and its keys, tokens has the cost of
-- each; most is the largest number of messages of one key, null if unknown.
create or replace function notifyq.charge_limits(
  queue messages.queue, ids bigint[], cost bigint, state notifyq.limit_state, most integer,
  keys text[], tokens integer[]
)
  returns notifyq.limit_state language plpgsql
as $$
declare
  v_state notifyq.limit_state := state;
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
    v_state.max_per_key := coalesce(least(state.max_per_key + most, 1000000000), 1000000000);
  end if;
  if queue.rate is not null then
    v_state.paid_at := notifyq.pay_tokens(
      state.paid_at, clock_timestamp(), cost, queue.rate, queue.rate_period
    );
  end if;
  if queue.key_rate is not null then
    v_state := notifyq.charge_keys(queue, v_state, keys, tokens);
  end if;
  return v_state;
end;
$$;
