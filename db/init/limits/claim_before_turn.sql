-- Ahead: claim from a queue with limits before it is this transaction's turn.
--
-- To find messages and to lock them is most of the work of a claim, and needs no turn: no two
-- claims can have the same message. So far from the limits that is done first, and whether the
-- limits allow it is decided in the turn, which is short then. Order and shares alone need none at
-- all: the first message of a key stays its first until it is archived.
--
-- raises: nothing but lock_not_available

-- Whether a claim that comes to this queue takes no turn but its own. Where it would take several,
-- they come before anything else, by name: else two claims could wait for each other.
create or replace function notifyq.claims_alone(queue messages.queue, queues text[])
  returns boolean
  language plpgsql
  stable
as $$
begin
  return not exists (
    select from messages.queue as q
    where coalesce(q.concurrency, q.key_concurrency, q.rate, q.key_rate) is not null
      and q.name <> claims_alone.queue.name
      and not q.paused
      and (queues is null or q.name = any (queues))
  );
end;
$$;

-- What a claim without a turn leaves to the next one: where to go on, and whether others wait for
-- the end of a lock. Who takes the turn of the queue for long, as take() does, is not waited for.
create or replace function notifyq.save_claim_position(
  queue messages.queue, before notifyq.flow_state, pick notifyq.flow_pick
)
  returns void
  language plpgsql
  -- As in enter_turn().
  set lock_timeout = '500ms'
as $$
begin
  perform notifyq.save_limit_state(before, pick.state, false);
  -- Mostly there is nothing to note: asked first, as a subtransaction costs as much as that.
  if pick.is_blocked or pick.ids <> '{}' and exists (
    select from notifyq.flow as f
    where f.queue = save_claim_position.queue.name
      and f.part = 'claim'
      and f.is_held
  ) then
    begin
      perform notifyq.note_held(queue, pick.is_blocked);
    exception
      when lock_not_available then
        -- Who waits finds a freed message at its next poll.
        null;
    end;
  end if;
end;
$$;

-- What was claimed ahead gets its turn: so many of each of these keys, and most of one. Where it
-- cannot be told that all is within the limits it raises lock_not_available.
create or replace function notifyq.take_turn(
  queue messages.queue, picked notifyq.flow_state, ids bigint[], keys text[], tokens integer[],
  most integer
)
  returns void
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_before notifyq.flow_state;
  v_state notifyq.flow_state;
begin
  perform from notifyq.flow as f
  where f.queue = take_turn.queue.name
    and f.part = 'claim'
  for update;
  -- As the claims before this one have left it.
  v_before := notifyq.read_state(queue.name);
  if v_before is null then
    raise lock_not_available;
  end if;
  v_state := v_before;
  if queue.concurrency is not null or queue.key_concurrency is not null then
    v_state := notifyq.count_running(
      queue, cardinality(ids), v_before, ids, keys, tokens, most
    );
  end if;
  if cardinality(ids) > queue.concurrency - cardinality(v_state.running)
    or queue.rate is not null and cardinality(ids) > notifyq.count_tokens(
      v_state.paid_at, clock_timestamp(), queue.rate, queue.rate_period, queue.rate_burst
    )
    -- Where all that runs is less than a key may have, so is what runs of each.
    or cardinality(ids) > queue.key_concurrency - cardinality(v_state.running)
    and most > queue.key_concurrency - v_state.most
  then
    raise lock_not_available;
  end if;
  if queue.key_rate is not null and not notifyq.is_far_from_limits(queue, v_state, most) then
    v_state := notifyq.pay_charges(v_state);
    if not notifyq.have_room(queue, keys, tokens) then
      raise lock_not_available;
    end if;
  end if;
  v_state := notifyq.charge_limits(queue, ids, v_state, most, keys, tokens);
  -- Where to go on is known from before the turn, what was handed out from within it.
  v_state.natural_look := picked.natural_look;
  v_state.after_lane := picked.after_lane;
  v_state.round := picked.round;
  v_state.had := picked.had;
  v_state.walk_at := picked.walk_at;
  v_state.place := picked.place;
  perform notifyq.save_limit_state(v_before, v_state, true);
  perform notifyq.note_held(queue, false);
end;
$$;

-- What was claimed from a queue. Where it cannot be told that all is within the limits it raises
-- lock_not_available: then the turn must come first.
create or replace function notifyq.claim_before_turn(
  queue messages.queue,
  quantity integer,
  lock_timeout interval,
  worker text,
  filter jsonpath,
  thorough boolean,
  max_attempts integer
)
  returns setof messages.message
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
  -- As in enter_turn().
  set lock_timeout = '500ms'
as $$
declare
  v_before constant notifyq.flow_state := notifyq.read_state(queue.name);
  v_pick notifyq.flow_pick;
  v_now timestamptz;
  v_has_keys constant boolean := queue.key_concurrency is not null or queue.key_rate is not null;
begin
  if v_before is null then
    return;
  end if;
  -- A claim that is undone costs more than one that has waited: well away from the limits only.
  if 4 * quantity > queue.concurrency - v_before.unlisted - cardinality(v_before.running)
    or queue.rate is not null and 4 * quantity > notifyq.count_tokens(
      v_before.paid_at, clock_timestamp(), queue.rate, queue.rate_period, queue.rate_burst
    )
    -- The last look by keys found that others are in their way.
    or not (queue.ordered or queue.fair) and v_has_keys and quantity > v_before.natural_look
  then
    raise lock_not_available;
  end if;
  if queue.ordered or queue.fair then
    v_pick := notifyq.select_limited(queue, quantity, filter, thorough, v_before);
    if v_pick.is_blocked then
      raise lock_not_available;
    end if;
  else
    v_pick := row(notifyq.find_messages(queue.name, quantity, filter, thorough), v_before, false);
  end if;
  if v_pick.ids = '{}' then
    return;
  end if;
  v_now := clock_timestamp();
  return query
  with claimed as (
    update messages.message as m
    set state = 'locked',
      locked_at = v_now,
      lock_expires_at = v_now + coalesce(claim_before_turn.lock_timeout, queue.lock_timeout),
      lock_token = least(m.lock_token, 9223372036854775806) + 1,
      locked_by = claim_before_turn.worker,
      dedup_key = case when m.dedup_scope is null then m.dedup_key end,
      given_up_key = case
        when m.dedup_scope is not null then coalesce(m.dedup_key, m.given_up_key) end,
      attempts = least(m.attempts, 2147483646) + 1,
      handler_attempts = claim_before_turn.max_attempts
    where m.id = any (array(select i.id from unnest(v_pick.ids) as i (id)))
    returning m.*
  ),
  -- In the same statement, so that what was claimed need not be read again.
  turn as materialized (
    select notifyq.take_turn(
      queue, v_pick.state, v_pick.ids, coalesce(array_agg(k.key), '{}'),
      coalesce(array_agg(k.quantity), '{}'), coalesce(max(k.quantity), 0)
    )
    from (
      select c.key, count(*)::integer as quantity
      from claimed as c
      -- Of each row, so that all are claimed before the turn: claims wait for each other in it.
      where case when v_has_keys then c.key end is not null
      group by c.key
    ) as k
  )
  select c.* from claimed as c cross join turn as t order by c.priority desc, c.id;
end;
$$;
