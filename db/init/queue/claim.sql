-- Claim: lock messages for a time and return them.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

-- Lock messages that this transaction has selected for itself, and return them.
create or replace function notifyq.lock_messages(
  ids bigint[], lock_duration interval, worker text, max_attempts integer
)
  returns setof messages.message language plpgsql
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  -- It goes into each message and into the archive.
  if octet_length(lock_messages.worker) > 500 then
    perform notifyq.raise_invalid('the name of a worker must not exceed 500 bytes');
  end if;
  return query
  with claimed as (
    update messages.message as m
    set state = 'locked',
      locked_at = v_now,
      lock_expires_at = v_now + lock_messages.lock_duration,
      lock_token = least(m.lock_token, 9223372036854775806) + 1,
      locked_by = lock_messages.worker,
      dedup_key = case when m.dedup_scope is null then m.dedup_key end,
      given_up_key = case
        when m.dedup_scope is not null then coalesce(m.dedup_key, m.given_up_key) end,
      -- At the largest integer it stays.
      attempts = least(m.attempts, 2147483646) + 1,
      handler_attempts = lock_messages.max_attempts
    where m.id = any (array(select i.id from unnest(lock_messages.ids) as i (id)))
    returning m.*
  )
  select c.* from claimed as c order by c.priority desc, c.id;
end;
$$;

create or replace function messages.claim(
  queues text[] default null,
  quantity integer default 1,
  lock_duration interval default null,
  worker text default null,
  filter jsonpath default null,
  full_scan boolean default false,
  max_attempts integer[] default null,
  filters jsonpath[] default null
)
  returns setof messages.message language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  -- A plan made while the table was empty or not analysed would later read the whole backlog. A
  -- forbidden plan node has a huge cost, for which every plan would be compiled: no jit.
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_names text[] := claim.queues;
  v_has_forwards boolean;
  v_has_grants boolean;
  v_has_owners boolean;
  v_queue messages.queue;
  v_turns text[];
  v_left integer := claim.quantity;
  v_state notifyq.limit_state;
  v_selection notifyq.limit_selection;
  v_ids bigint[];
  v_attempts integer;
  v_began timestamptz;
  v_count integer;
begin
  -- Before this transaction gets a transaction id.
  perform notifyq.remember_newest_id();
  if (claim.quantity between 1 and 10000) is not true then
    perform notifyq.check_quantity(claim.quantity, 10000);
  end if;
  if claim.lock_duration is not null then
    perform notifyq.check_positive('lock_duration', claim.lock_duration);
  end if;
  if claim.filters is not null then
    if claim.filter is not null then
      perform notifyq.raise_invalid('give either filter, for all queues, or filters, one for each');
    end if;
    -- Slices begin at 1, wherever the arrays begin.
    return query
    select c.*
    from notifyq.claim_each(
      claim.queues[:], claim.filters[:], claim.quantity, claim.lock_duration, claim.worker,
      claim.full_scan, claim.max_attempts[:]
    ) as c;
    return;
  end if;
  if claim.filter is not null then
    perform notifyq.check_filter(claim.filter),
      notifyq.check_readable(claim.queues, 'filters');
  end if;
  if claim.max_attempts is not null then
    perform notifyq.check_max_attempts(claim.queues, claim.max_attempts);
    claim.max_attempts := claim.max_attempts[:];
  end if;
  -- All at once: each statement costs a claim of one message 2 %.
  select exists (select from notifyq.forward), exists (select from messages.queue_grant),
    exists (select from notifyq.owner_session)
  into v_has_forwards, v_has_grants, v_has_owners;
  if cardinality(claim.queues) > 1 then
    perform notifyq.find_queue(u.name)
    from unnest(claim.queues) as u (name)
    where not exists (select from messages.queue as q where q.name = u.name);
  end if;
  if v_has_grants then
    perform notifyq.check_access(u.name, 'consume from')
    from unnest(claim.queues) as u (name)
    where exists (select from messages.queue_grant as g where g.queue = u.name);
  end if;
  if v_has_forwards then
    perform notifyq.forward_into(queues, greatest(quantity, 100));
  end if;
  perform notifyq.expire_due();
  -- Reading one empty queue is cheap; reading a thousand is not.
  if cardinality(claim.queues) > 20
    or (claim.queues is null and exists (select from messages.queue as q offset 20))
  then
    v_names := notifyq.queues_with_work(claim.queues, claim.full_scan);
  end if;
  if v_names is null then
    v_names := array(select q.name from messages.queue as q order by q.name);
  end if;
  -- Not a query over the queues: to sort one row costs more than to look one up.
  for v_index in 1 .. cardinality(v_names) loop
    select q.* into v_queue from messages.queue as q where q.name = v_names[v_index];
    if not found and claim.queues is not null then
      perform notifyq.find_queue(v_names[v_index]);
    end if;
    continue when not found
      or array_position(v_names, v_queue.name) < v_index
      or notifyq.is_paused(v_queue)
      or v_has_grants and not notifyq.is_allowed(v_queue.name, 'consume from');
    v_attempts := claim.max_attempts[array_position(claim.queues, v_queue.name)];
    v_state := null;
    if v_queue.is_limited
      and coalesce(v_queue.concurrency, v_queue.key_concurrency, v_queue.rate, v_queue.key_rate)
        is null
    then
      v_state := notifyq.read_state(v_queue.name);
      continue when v_state is null;
      v_selection := notifyq.select_limited(
        v_queue, v_left, claim.filter, claim.full_scan, v_state
      );
      v_ids := v_selection.ids;
    elsif v_queue.is_limited then
      if v_turns is null and notifyq.claims_alone(v_queue, v_names) then
        v_began := clock_timestamp();
        begin
          return query
          select a.*
          from notifyq.claim_before_turn(
            v_queue, v_left, claim.lock_duration, claim.worker, claim.filter, claim.full_scan,
            v_attempts
          ) as a;
          get diagnostics v_count = row_count;
          v_left := v_left - v_count;
          exit when v_left = 0;
          continue;
        exception
          when lock_not_available then
            -- Either it has waited long enough, or the turn must come first.
            continue when clock_timestamp() - v_began > interval '400 ms';
        end;
      end if;
      v_turns := coalesce(v_turns, notifyq.enter_turn(v_names));
      continue when v_queue.name <> all (v_turns);
      v_ids := notifyq.find_limited(v_queue, v_left, claim.filter, claim.full_scan);
    elsif v_queue.aging is not null then
      return query
      select a.*
      from notifyq.claim_aging(
        v_queue, v_left, claim.lock_duration, claim.worker, claim.filter, claim.full_scan,
        v_attempts
      ) as a;
      get diagnostics v_count = row_count;
      v_left := v_left - v_count;
      exit when v_left = 0;
      continue;
    else
      v_ids := notifyq.find_messages(v_queue.name, v_left, claim.filter, claim.full_scan);
    end if;
    if v_ids <> '{}' then
      return query
      select l.*
      from notifyq.lock_messages(
        v_ids, coalesce(claim.lock_duration, v_queue.lock_duration), claim.worker, v_attempts
      ) as l;
    end if;
    if not v_state is null then
      perform notifyq.save_claim_position(v_queue, v_state, v_selection);
    end if;
    v_left := v_left - cardinality(v_ids);
    exit when v_left = 0;
  end loop;
  -- Sessions that only claim have no maintenance beside them.
  if v_has_owners and v_left = claim.quantity and notifyq.return_orphaned() then
    return query
    select c.*
    from messages.claim(
      claim.queues, claim.quantity, claim.lock_duration, claim.worker, claim.filter,
      claim.full_scan, claim.max_attempts
    ) as c;
  end if;
end;
$$;
comment on function messages.claim is
  'Lock up to quantity (at most 10000) waiting messages and return them: queues in the order given '
  '(null: all), in a queue by priority (with its aging), larger first, then by id. Each lock lasts '
  'for lock_duration (null: that of the queue); before that the message must be finished, '
  'released, retried or extended with its lock_token. filter is a JSON path predicate over the '
  'payload, as in $.n < 3, and has $headers, $id, $type, $key, $priority, $attempts and '
  '$created_at; filters has one for each of queues (null: none), and a queue may then be listed '
  'more than once. Returns no row at once if no message is free. If very many dead rows lie before '
  'the first message, a session goes on after the last message that it claimed. It still finds at '
  'once what is published after that, or by a transaction that was open. Messages before that '
  'position that come back, become due or have a larger priority are found by a full scan, a '
  'second later, or ten times the duration of a full scan; full_scan makes one now. A session that '
  'finds nothing puts back messages of ended sessions, at most once a second, see wait(). '
  'max_attempts has for each of queues how many attempts the handler of this worker allows, null: '
  'as set by the queue; the number of a message takes precedence. From a queue with limits it '
  'returns what they allow, and waits up to half a second for other claims of that queue. Raises '
  'NQ001 for an unknown queue, NQ003 for invalid filters, and NQ007 for a queue from which the '
  'caller may not consume; with null those queues are left out.';

create or replace function messages.claim_id(
  id bigint, lock_duration interval default null, worker text default null
)
  returns setof messages.message language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_queue messages.queue;
begin
  perform notifyq.check_positive('lock_duration', claim_id.lock_duration);
  select q.* into v_queue
  from messages.message as m
  join messages.queue as q on q.name = m.queue
  where m.id = claim_id.id
    and q.name <> all (notifyq.barred_queues());
  if v_queue.is_limited then
    perform notifyq.raise_invalid(
      format('queue %L has limits, so its messages are not claimed by id', v_queue.name),
      'claim from the queue'
    );
  end if;
  perform notifyq.expire_due();
  perform
  from messages.message as m
  where m.id = claim_id.id
    and m.queue = v_queue.name
    and m.state <> 'locked'
    and m.available_at <= clock_timestamp()
    and not notifyq.is_paused(v_queue)
  for update skip locked;
  if found then
    return query
    select l.*
    from notifyq.lock_messages(
      array[id], coalesce(claim_id.lock_duration, v_queue.lock_duration), worker, null
    ) as l;
  end if;
end;
$$;
comment on function messages.claim_id is
  'Lock the message with this id and return it; no row if it is locked, not due yet or finished, '
  'its queue is paused, or the caller may not consume from it. For interactive use: workers claim '
  'by queue. Raises NQ003 for a message of a queue with limits, order or shares.';

-- Claim each: claim from several queues with a filter for each.

create or replace function notifyq.check_filters(queues text[], filters jsonpath[])
  returns void language plpgsql
as $$
begin
  if queues is null or queues = '{}' or array_position(queues, null) is not null then
    perform notifyq.raise_invalid('queues must name at least one queue');
  end if;
  if filters is not null and cardinality(filters) <> cardinality(queues) then
    perform notifyq.raise_invalid(
      format('there are %s filters for %s queues', cardinality(filters), cardinality(queues)),
      'give one for each queue in the list, null for none'
    );
  end if;
  perform notifyq.check_filter(f.filter), notifyq.check_readable(array[f.queue], 'filters')
  from unnest(queues, filters) as f (queue, filter)
  where f.filter is not null;
  perform notifyq.find_queue(u.name) from unnest(queues) as u (name);
end;
$$;

-- Queues in the order of the list, in which a queue may stand more than once.
create or replace function notifyq.claim_each(
  queues text[], filters jsonpath[], quantity integer, lock_duration interval, worker text,
  full_scan boolean, max_attempts integer[]
)
  returns setof messages.message language plpgsql
as $$
declare
  v_left integer := quantity;
  v_count integer;
begin
  perform notifyq.check_filters(queues, filters);
  if max_attempts is not null then
    perform notifyq.check_max_attempts(queues, max_attempts);
  end if;
  for v_index in 1 .. cardinality(queues) loop
    return query
    select c.*
    from messages.claim(
      array[queues[v_index]], v_left, lock_duration, worker, filters[v_index], full_scan,
      case when max_attempts is not null then array[max_attempts[v_index]] end
    ) as c;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left = 0;
  end loop;
end;
$$;
