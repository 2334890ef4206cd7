-- Claim before turn: claim from a queue with limits before the turn of this transaction.
--
-- Finding and locking messages is most of the work of a claim and needs no turn, as no two claims
-- can lock the same message. Far from the limits this is done first. The turn, which is short then,
-- decides whether the limits allow it. A queue with only an order or shares needs no turn at all:
-- the first message of a key stays its first until it is archived.
--
-- raises: nothing but lock_not_available

-- Whether a claim needs the turn of this queue only. Turns of several queues have to be entered
-- first, in order of names: otherwise two claims could deadlock.
create or replace function notifyq.claims_alone(queue messages.queue, queues text[])
  returns boolean language plpgsql stable
as $$
begin
  return not exists (
    select from messages.queue as q
    where coalesce(q.concurrency, q.key_concurrency, q.rate, q.key_rate) is not null
      and q.name <> claims_alone.queue.name
      and not notifyq.is_paused(q)
      and q.name = any (queues)
  );
end;
$$;

-- Save what a claim without a turn hands on: where to go on, and whether messages wait for the end
-- of a lock. It does not wait for a transaction that holds the turn for long, as take() may.
create or replace function notifyq.save_claim_position(
  queue messages.queue, before notifyq.limit_state, pick notifyq.limit_selection
)
  returns void language plpgsql
  set lock_timeout = '500ms'
as $$
begin
  perform notifyq.save_limit_state(before, pick.state, false);
  -- Tested first, as mostly there is nothing to record, and a subtransaction costs as much.
  if pick.is_blocked or pick.ids <> '{}' and exists (
    select from notifyq.limit_turn as f
    where f.queue = save_claim_position.queue.name
      and f.part = 'claim'
      and f.is_blocked
  ) then
    begin
      perform notifyq.note_blocked(queue, pick.is_blocked);
    exception
      when lock_not_available then
        -- A waiting worker finds a freed message at its next poll.
        null;
    end;
  end if;
end;
$$;

-- Take the turn of messages claimed before it: quantities has their number for each of keys, most
-- is the largest; costs has their cost for each, cost is that of all. Raises lock_not_available if
-- the limits may not allow all of them.
create or replace function notifyq.take_turn(
  queue messages.queue, picked notifyq.limit_state, ids bigint[], cost bigint, keys text[],
  quantities integer[], costs integer[], most integer
)
  returns void language plpgsql
as $$
declare
  v_before notifyq.limit_state;
  v_state notifyq.limit_state;
begin
  perform from notifyq.limit_turn as f
  where f.queue = take_turn.queue.name
    and f.part = 'claim'
  for update;
  -- The state that the claims before this one have saved.
  v_before := notifyq.read_state(queue.name);
  if v_before is null then
    raise lock_not_available;
  end if;
  v_state := v_before;
  if queue.concurrency is not null or queue.key_concurrency is not null then
    v_state := notifyq.count_running(
      queue, cardinality(ids), v_before, ids, keys, quantities, most
    );
  end if;
  if cardinality(ids) > queue.concurrency - cardinality(v_state.running)
    or queue.rate is not null and cost > notifyq.count_tokens(
      v_state.paid_at, clock_timestamp(), queue.rate, queue.rate_period, queue.rate_burst
    )
    -- If fewer run in all than a key may have, no key has too many.
    or cardinality(ids) > queue.key_concurrency - cardinality(v_state.running)
    and most > queue.key_concurrency - v_state.max_per_key
  then
    raise lock_not_available;
  end if;
  if queue.key_rate is not null and not notifyq.is_far_from_limits(
    queue, v_state, (select coalesce(max(c.cost), 0) from unnest(costs) as c (cost))
  ) then
    v_state := notifyq.pay_charges(v_state);
    if exists (
      select from notifyq.room_of_keys(queue, keys, '{}', '{}') as r
      join unnest(keys, quantities, costs) as k (key, quantity, cost) on k.key = r._key
      where k.quantity > r._room or k.cost > r._tokens
    ) then
      raise lock_not_available;
    end if;
  end if;
  v_state := notifyq.charge_limits(queue, ids, cost, v_state, most, keys, costs);
  -- The search was made before the turn, the counts in it.
  v_state.scan_size := picked.scan_size;
  v_state.after_key_hash := picked.after_key_hash;
  v_state.round := picked.round;
  v_state.served := picked.served;
  v_state.keyless_scan_at := picked.keyless_scan_at;
  v_state.position := picked.position;
  perform notifyq.save_limit_state(v_before, v_state, true);
  perform notifyq.note_blocked(queue, false);
end;
$$;

-- Claim from a queue. Raises lock_not_available if the limits may not allow all of it: then the
-- turn has to come first.
create or replace function notifyq.claim_before_turn(
  queue messages.queue, quantity integer, lock_duration interval, worker text, filter jsonpath,
  full_scan boolean, max_attempts integer
)
  returns setof messages.message language plpgsql
  -- As in enter_turn().
  set lock_timeout = '500ms'
as $$
declare
  v_before constant notifyq.limit_state := notifyq.read_state(queue.name);
  v_selection notifyq.limit_selection;
  v_has_keys constant boolean := queue.key_concurrency is not null or queue.key_rate is not null;
begin
  if v_before is null then
    return;
  end if;
  queue := notifyq.with_least_limit(queue);
  -- Undoing a claim costs more than waiting: only far away from the limits.
  if 4 * quantity > queue.concurrency - v_before.unlisted - cardinality(v_before.running)
    or queue.rate is not null and 4 * quantity > notifyq.count_tokens(
      v_before.paid_at, clock_timestamp(), queue.rate, queue.rate_period, queue.rate_burst
    )
    -- The last search by keys found many keys at their limits.
    or not (queue.ordered or queue.fair) and v_has_keys and quantity > v_before.scan_size
  then
    raise lock_not_available;
  end if;
  if queue.ordered or queue.fair then
    v_selection := notifyq.select_limited(queue, quantity, filter, full_scan, v_before);
    if v_selection.is_blocked then
      raise lock_not_available;
    end if;
  else
    v_selection := row(
      notifyq.find_messages(queue.name, quantity, filter, full_scan), v_before, false
    );
  end if;
  if v_selection.ids = '{}' then
    return;
  end if;
  return query
  with claimed as materialized (
    select l.*
    from notifyq.lock_messages(
      v_selection.ids, coalesce(claim_before_turn.lock_duration, queue.lock_duration), worker,
      max_attempts
    ) as l
  ),
  -- In the same statement: the claimed messages need not be read again.
  turn as materialized (
    select notifyq.take_turn(
      queue, v_selection.state, v_selection.ids,
      case when queue.rate is not null then
        (select sum(notifyq.cost_of(c.headers)) from claimed as c)
      end,
      coalesce(array_agg(k.key), '{}'), coalesce(array_agg(k.quantity), '{}'),
      coalesce(array_agg(k.cost), '{}'), coalesce(max(k.quantity), 0)
    )
    from (
      select c.key, count(*)::integer as quantity,
        least(
          sum(case when queue.key_rate is not null then notifyq.cost_of(c.headers) end), 2147483647
        )::integer as cost
      from claimed as c
      -- Evaluated for each row: all are claimed before the turn, in which claims wait for each
      -- other.
      where case when v_has_keys then c.key end is not null
      group by c.key
    ) as k
  )
  select c.* from claimed as c cross join turn as t order by c.priority desc, c.id;
end;
$$;
