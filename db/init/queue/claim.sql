-- Claim: lock messages and hand them out, for a time.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

create or replace function messages.claim(
  queues text[] default null,
  quantity integer default 1,
  lock_timeout interval default null,
  worker text default null,
  filter jsonpath default null,
  thorough boolean default false,
  max_attempts integer[] default null,
  filters jsonpath[] default null
)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  -- A plan made while the table was empty or never analysed would read the whole backlog later on.
  -- Switched off means very expensive, so expensive that every plan would be compiled: no jit.
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_names text[] := claim.queues;
  v_queue messages.queue;
  v_entered text[];
  v_left integer := claim.quantity;
  v_place notifyq.flow_state;
  v_pick notifyq.flow_pick;
  v_ids bigint[];
  v_now timestamptz;
  v_attempts integer;
  v_began timestamptz;
  v_ahead integer;
begin
  -- Before anything takes a number.
  perform notifyq.note_newest();
  perform notifyq.check_quantity(claim.quantity, 10000);
  perform notifyq.check_positive('lock_timeout', claim.lock_timeout);
  if claim.filters is not null then
    if claim.filter is not null then
      perform notifyq.raise_invalid('give either filter, for all queues, or filters, one for each');
    end if;
    return query
    select c.*
    from notifyq.claim_each(
      claim.queues, claim.filters, claim.quantity, claim.lock_timeout, claim.worker,
      claim.thorough, claim.max_attempts
    ) as c;
    return;
  end if;
  if claim.filter is not null then
    perform notifyq.check_filter(claim.filter);
  end if;
  if claim.max_attempts is not null then
    perform notifyq.check_limits(claim.queues, claim.max_attempts);
  end if;
  perform notifyq.find_queue(u.name)
  from unnest(claim.queues) as u (name)
  where not exists (select from messages.queue as q where q.name = u.name);
  perform notifyq.fetch_forwards(queues, quantity) where exists (select from notifyq.forward);
  -- A look into an empty queue is cheap, but not a thousand of them.
  if cardinality(claim.queues) > 20
    or (claim.queues is null and exists (select from messages.queue as q offset 20))
  then
    v_names := notifyq.queues_with_work(claim.queues, claim.thorough);
  end if;
  for v_queue in
    select q.*
    from messages.queue as q
    where q.name = any (coalesce(v_names, array(select a.name from messages.queue as a)))
      and not q.paused
      and (
        not exists (select from messages.queue_grant as g where g.queue = q.name)
        or notifyq.may_consume(q.name, claim.queues is not null)
      )
    order by array_position(claim.queues, q.name), q.name
  loop
    v_attempts := claim.max_attempts[array_position(claim.queues, v_queue.name)];
    v_place := null;
    if v_queue.is_limited
      and coalesce(v_queue.concurrency, v_queue.key_concurrency, v_queue.rate, v_queue.key_rate)
        is null
    then
      v_place := notifyq.read_state(v_queue.name);
      continue when v_place is null;
      v_pick := notifyq.select_limited(v_queue, v_left, claim.filter, claim.thorough, v_place);
      v_ids := v_pick.ids;
    elsif v_queue.is_limited then
      if v_entered is null and notifyq.claims_alone(v_queue, v_names) then
        v_began := clock_timestamp();
        begin
          return query
          select a.*
          from notifyq.claim_before_turn(
            v_queue, v_left, claim.lock_timeout, claim.worker, claim.filter, claim.thorough,
            v_attempts
          ) as a;
          get diagnostics v_ahead = row_count;
          v_left := v_left - v_ahead;
          exit when v_left = 0;
          continue;
        exception
          when lock_not_available then
            -- It has waited long enough, or the turn must come first.
            continue when clock_timestamp() - v_began > interval '400 ms';
        end;
      end if;
      v_entered := coalesce(
        v_entered,
        notifyq.enter_turn(coalesce(v_names, array(select a.name from messages.queue as a)))
      );
      continue when v_queue.name <> all (v_entered);
      v_ids := notifyq.find_limited(v_queue, v_left, claim.filter, claim.thorough);
    else
      v_ids := notifyq.find_messages(v_queue.name, v_left, claim.filter, claim.thorough);
    end if;
    continue when v_ids = '{}' and v_place is null;
    v_now := clock_timestamp();
    return query
    with claimed as (
      update messages.message as m
      set state = 'locked',
        locked_at = v_now,
        lock_expires_at = v_now + coalesce(claim.lock_timeout, v_queue.lock_timeout),
        lock_token = least(m.lock_token, 9223372036854775806) + 1,
        locked_by = claim.worker,
        dedup_key = case when m.dedup_scope is null then m.dedup_key end,
        given_up_key = case
          when m.dedup_scope is not null then coalesce(m.dedup_key, m.given_up_key) end,
        attempts = least(m.attempts, 2147483646) + 1,
        handler_attempts = v_attempts
      where m.id = any (array(select i.id from unnest(v_ids) as i (id)))
      returning m.*
    )
    select c.* from claimed as c order by c.priority desc, c.id;
    if not v_place is null then
      perform notifyq.save_claim_position(v_queue, v_place, v_pick);
    end if;
    v_left := v_left - cardinality(v_ids);
    exit when v_left = 0;
  end loop;
  -- Sessions that only claim have no maintenance beside them.
  if v_left = claim.quantity and notifyq.return_orphaned() then
    return query
    select c.*
    from messages.claim(
      claim.queues, claim.quantity, claim.lock_timeout, claim.worker, claim.filter,
      claim.thorough, claim.max_attempts
    ) as c;
  end if;
end;
$$;
comment on function messages.claim(
  text[], integer, interval, text, jsonpath, boolean, integer[], jsonpath[]
) is
  'Lock up to quantity (at most 10000) waiting messages and return them: the queues in the order '
  'given (null: all), in a queue by priority, larger first, then by id. Each is held for '
  'lock_timeout (null: that of its queue) and must be finished, released, retried or extended with '
  'its lock_token before that. filter is a JSON path predicate over the message, as in $.n < 3, '
  'with $headers, $id, $type, $key, $priority, $attempts and $created_at beside it; filters has '
  'one for each of queues (null: none), and then a queue may be listed more than once. Returns no '
  'row, and does not wait, where nothing is free. While very many dead rows lie before the first '
  'message, a session goes on behind the last one that it claimed. It finds at once what is '
  'published behind that, or by a transaction that was open; what is put back before it, becomes '
  'due, or has a larger priority, it finds a second later, or ten times as much later as a look at '
  'everything takes; thorough looks at everything now. A session that finds nothing puts back what '
  'sessions owned that are gone, at most once a second, see wait(). max_attempts has for each of '
  'queues how many attempts the worker''s '
  'handler allows, null: what the queue says; a message''s own number goes before both. From a '
  'queue with limits it hands out what they leave, and waits for half a second at most for other '
  'claims of that queue. Raises NQ001 for an unknown queue, NQ003 for filters that are none, and '
  'NQ007 for a queue from which the caller may not consume; with null those are left out.';

-- Claim by id: hand one message to who asks for it, as tools do.

create or replace function messages.claim_id(
  id bigint,
  lock_timeout interval default null,
  worker text default null
)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_barred text[] := notifyq.barred_queues();
  v_limited text := (
    select q.name
    from messages.message as m
    join messages.queue as q on q.name = m.queue
    where m.id = claim_id.id
      and q.is_limited
      and m.queue <> all (v_barred)
  );
begin
  perform notifyq.check_positive('lock_timeout', claim_id.lock_timeout);
  if v_limited is not null then
    perform notifyq.raise_invalid(
      format('queue %L has limits, so its messages are not claimed by id', v_limited),
      'claim from the queue'
    );
  end if;
  return query
  with picked as materialized (
    select m.id, q.lock_timeout
    from messages.message as m
    join messages.queue as q on q.name = m.queue
    where m.id = claim_id.id
      and m.state <> 'locked'
      and m.available_at <= v_now
      and not q.paused
      and m.queue <> all (v_barred)
    for update of m skip locked
  )
  update messages.message as m
  set state = 'locked',
    locked_at = v_now,
    lock_expires_at = v_now + coalesce(claim_id.lock_timeout, p.lock_timeout),
    lock_token = least(m.lock_token, 9223372036854775806) + 1,
    locked_by = claim_id.worker,
    dedup_key = case when m.dedup_scope is null then m.dedup_key end,
    given_up_key = case
      when m.dedup_scope is not null then coalesce(m.dedup_key, m.given_up_key) end,
    attempts = least(m.attempts, 2147483646) + 1,
    handler_attempts = null
  from picked as p
  where m.id = p.id
  returning m.*;
end;
$$;
comment on function messages.claim_id(bigint, interval, text) is
  'Lock the message with this id and return it; no row if it is locked, not yet due, finished, '
  'its queue is paused, or the caller may not consume from it. For tools: workers claim by queue. '
  'Raises NQ003 for a message of a queue with limits, an order or shares.';

-- Claim each: several queues with a filter for each of them.

create or replace function notifyq.check_filters(queues text[], filters jsonpath[])
  returns void
  language plpgsql
as $$
begin
  if queues is null or queues = '{}' or array_position(queues, null) is not null then
    perform notifyq.raise_invalid('queues must name at least one queue');
  end if;
  if filters is not null and cardinality(filters) <> cardinality(queues) then
    perform notifyq.raise_invalid(
      format(
        'there are %s filters for %s queues', cardinality(filters), cardinality(queues)
      ),
      'give one for each queue in the list, null for none'
    );
  end if;
  perform notifyq.check_filter(f.filter)
  from unnest(filters) as f (filter)
  where f.filter is not null;
end;
$$;

-- One claim of several queues with a filter for each: what is first in the list goes first, and a
-- queue may be there more than once.
create or replace function notifyq.claim_each(
  queues text[],
  filters jsonpath[],
  quantity integer,
  lock_timeout interval,
  worker text,
  thorough boolean,
  max_attempts integer[]
)
  returns setof messages.message
  language plpgsql
as $$
declare
  v_left integer := quantity;
  v_count integer;
begin
  perform notifyq.check_filters(queues, filters);
  perform notifyq.find_queue(u.name) from unnest(queues) as u (name);
  if max_attempts is not null then
    perform notifyq.check_limits(queues, max_attempts);
  end if;
  for v_place in 1 .. cardinality(queues) loop
    return query
    select c.*
    from messages.claim(
      array[queues[v_place]], v_left, lock_timeout, worker, filters[v_place], thorough,
      case when max_attempts is not null then array[max_attempts[v_place]] end
    ) as c;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left = 0;
  end loop;
end;
$$;
