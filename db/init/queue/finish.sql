-- Finish: end a lock with an outcome; every call must show the token of the lock.
--
-- raises: NQ003 invalid argument

create or replace function messages.finish_many(
  ids bigint[],
  lock_tokens bigint[],
  statuses messages.message_status[],
  details text[] default null,
  results jsonb[] default null
)
  returns setof bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if statuses is null or array_position(statuses, null) is not null then
    perform notifyq.check_given('each of statuses', false);
  end if;
  if cardinality(ids) <> cardinality(lock_tokens) or cardinality(ids) <> cardinality(statuses) then
    perform notifyq.raise_invalid('ids, lock_tokens and statuses must have the same length');
  end if;
  if exists (select from messages.queue_grant) then
    ids := notifyq.hide_barred(ids);
  end if;
  if array_remove(details, null) <> '{}' then
    perform notifyq.check_texts(ids, 'details', details);
  end if;
  return query select a.id from notifyq.archive(ids, lock_tokens, statuses, details, results)
    as a (id);
end;
$$;
comment on function messages.finish_many is
  'Finish several locked messages at once and return their ids. If an id is missing, its lock was '
  'lost and nothing changed for it.';

create or replace function messages.finish(
  id bigint,
  lock_token bigint,
  status messages.message_status default 'success',
  details text default null,
  result jsonb default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if status is null then
    perform notifyq.check_given('status', false);
  end if;
  if exists (select from messages.queue_grant) then
    id := (notifyq.hide_barred(array[id]))[1];
  end if;
  if details is not null then
    perform notifyq.check_texts(array[id], 'details', array[details]);
  end if;
  return exists (
    select from notifyq.archive(
      array[id], array[lock_token], array[status], array[details], array[result]
    )
  );
end;
$$;
comment on function messages.finish is
  'Move a locked message to the archive. False: the lock was lost, and nothing changed.';

-- Retry messages that are still locked under their tokens: put them back, or archive those whose
-- last attempt this was. The caller has checked access.
create or replace function notifyq.retry_locked(
  ids bigint[], lock_tokens bigint[], delays interval[], details text[],
  statuses messages.message_status[], error_types text[] default null, errors text[] default null,
  tracebacks text[] default null, give_ups boolean[] default null, out id bigint,
  out max_attempts integer, out delay interval
)
  returns setof record language plpgsql
  -- As in archive(): rows are locked in id order, and no nested loop.
  set enable_bitmapscan = off set enable_seqscan = off set enable_nestloop = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_last bigint[];
  v_last_ordinals integer[];
  v_again bigint[];
  v_queues text[];
  v_delays interval[];
  v_details text[];
  v_last_most integer[];
  v_again_most integer[];
begin
  with held as materialized (
    select m.id, m.lock_token, m.locked_at, m.locked_by, m.attempts, m.queue,
      notifyq.attempts_of(m.max_attempts, m.handler_attempts, q.max_attempts) as most,
      q.backoff, q.backoff_max
    from messages.message as m
    left join messages.queue as q on q.name = m.queue
    where m.id = any (retry_locked.ids)
      and (
        (m.id, m.lock_token, m.state) in (
          select g.id, g.lock_token, 'locked'::messages.message_state
          from unnest(retry_locked.ids, retry_locked.lock_tokens) as g (id, lock_token)
        )
      ) is true
    order by m.id
    for update of m
  ),
  listed as materialized (
    -- A caller may list a message twice.
    select distinct on (u.id, u.lock_token) u.id, u.lock_token, u.ordinal::integer as ordinal
    from unnest(retry_locked.ids, retry_locked.lock_tokens) with ordinality
      as u (id, lock_token, ordinal)
  ),
  failing as materialized (
    select h.*, p.ordinal,
      h.backoff is null or h.attempts >= h.most or coalesce(retry_locked.give_ups[p.ordinal], false)
        as ends,
      coalesce(
        retry_locked.delays[p.ordinal], notifyq.backoff(h.backoff, h.backoff_max, h.attempts)
      ) as delay
    from held as h
    join listed as p on p.id = h.id and p.lock_token = h.lock_token
  ),
  noted as (
    insert into messages.attempt (
      message_id, lock_token, locked_at, retry_at, number, status, queue, handled_by, error_type,
      details, traceback
    )
    -- Texts are cut: programs may give anything.
    select f.id, f.lock_token, f.locked_at, v_now + greatest(f.delay, interval '0'), f.attempts,
      retry_locked.statuses[f.ordinal], f.queue, f.locked_by,
      left(retry_locked.error_types[f.ordinal], 200),
      left(coalesce(retry_locked.errors[f.ordinal], retry_locked.details[f.ordinal]), 8000),
      left(retry_locked.tracebacks[f.ordinal], 32000)
    from failing as f
    where not f.ends
  )
  select array_agg(f.id) filter (where f.ends), array_agg(f.ordinal) filter (where f.ends),
    array_agg(f.id) filter (where not f.ends), array_agg(f.queue) filter (where not f.ends),
    array_agg(f.delay) filter (where not f.ends),
    array_agg(retry_locked.details[f.ordinal]) filter (where not f.ends),
    array_agg(f.most) filter (where f.ends), array_agg(f.most) filter (where not f.ends)
  into v_last, v_last_ordinals, v_again, v_queues, v_delays, v_details, v_last_most, v_again_most
  from failing as f;
  if v_again is not null then
    update messages.message as m
    set state = 'waiting',
      locked_at = null,
      lock_expires_at = null,
      locked_by = null,
      lock_token = least(m.lock_token, 9223372036854775806) + 1,
      available_at = case
        when u.delay > interval '0' then v_now + u.delay else m.available_at end,
      details = u.details
    from unnest(v_again, v_delays, v_details) as u (id, delay, details)
    where m.id = any (v_again)
      and m.id = u.id;
    perform notifyq.notify_requeued(v_again, v_queues, v_delays);
  end if;
  if v_last is not null then
    perform notifyq.archive(
      v_last, array_agg(retry_locked.lock_tokens[p.ordinal] order by p.number),
      array_agg(retry_locked.statuses[p.ordinal] order by p.number),
      array_agg(retry_locked.details[p.ordinal] order by p.number)
    )
    from unnest(v_last_ordinals) with ordinality as p (ordinal, number);
    -- The trigger of the archive has recorded these attempts, without the error.
    update messages.attempt as a
    set error_type = left(retry_locked.error_types[p.ordinal], 200),
      details = left(
        coalesce(retry_locked.errors[p.ordinal], retry_locked.details[p.ordinal]), 8000
      ),
      traceback = left(retry_locked.tracebacks[p.ordinal], 32000)
    from unnest(v_last_ordinals) as p (ordinal)
    where a.message_id = any (v_last)
      and a.message_id = retry_locked.ids[p.ordinal]
      and a.lock_token = retry_locked.lock_tokens[p.ordinal]
      and a.ended_at >= transaction_timestamp()
      and concat(
        retry_locked.error_types[p.ordinal], retry_locked.errors[p.ordinal],
        retry_locked.tracebacks[p.ordinal]
      ) <> '';
  end if;
  return query
  select u.id, u.most, u.delay
  from unnest(v_again || v_last, v_again_most || v_last_most, v_delays) as u (id, most, delay)
  order by u.id;
end;
$$;

-- Once for each queue. Messages due in less than a minute notify as well: sleeping workers must
-- know when to poll. Workers that suppress notifications poll anyway.
create or replace function notifyq.notify_requeued(ids bigint[], queues text[], delays interval[])
  returns void language plpgsql
as $$
declare
  v_name text;
  v_near bigint[];
  v_all bigint[];
begin
  for v_name, v_near, v_all in
    select u.queue, array_agg(u.id order by u.id) filter (where u.delay < interval '1 minute'),
      array_agg(u.id order by u.id)
    from unnest(ids, queues, delays) as u (id, queue, delay)
    group by u.queue
    order by u.queue
  loop
    if v_near is not null
      and pg_try_advisory_xact_lock_shared(notifyq.suppression_key(v_name))
    then
      perform notifyq.notify_queue(notifyq.find_queue(v_name), notifyq.compact_ids(v_near));
    elsif exists (select from notifyq.limit_turn as f where f.is_blocked) then
      perform notifyq.notify_freed(array[v_name], v_all);
    end if;
  end loop;
end;
$$;

create or replace function messages.retry_many(
  ids bigint[],
  lock_tokens bigint[],
  delays interval[] default null,
  details text[] default null,
  statuses messages.message_status[] default null,
  error_types text[] default null,
  errors text[] default null,
  tracebacks text[] default null,
  give_ups boolean[] default null,
  out id bigint,
  out max_attempts integer,
  out delay interval
)
  returns setof record language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_count integer := cardinality(ids);
begin
  if cardinality(lock_tokens) is distinct from v_count or exists (
    select
    from unnest(array[
      cardinality(delays), cardinality(details), cardinality(statuses), cardinality(error_types),
      cardinality(errors), cardinality(tracebacks), cardinality(give_ups)
    ]) as u (length)
    where u.length <> v_count
  ) then
    perform notifyq.raise_invalid(
      'ids, lock_tokens and all other arrays must have the same length'
    );
  end if;
  perform notifyq.check_duration('delay', u.delay)
  from unnest(delays) as u (delay)
  where u.delay is not null;
  if exists (select from messages.queue_grant) then
    ids := notifyq.hide_barred(ids);
  end if;
  perform notifyq.check_texts(ids, 'details', details), notifyq.check_texts(ids, 'details', errors),
    notifyq.check_texts(ids, 'traceback', tracebacks);
  -- A slice begins at 1, wherever the array begins.
  return query
  select r.id, r.max_attempts, r.delay
  from notifyq.retry_locked(
    ids[:], lock_tokens[:], delays[:], details[:],
    array(
      select coalesce(u.status, 'failed')
      from unnest(lock_tokens, statuses) with ordinality as u (lock_token, status, ordinal)
      order by u.ordinal
    ),
    error_types[:], errors[:], tracebacks[:], give_ups[:]
  ) as r;
end;
$$;
comment on function messages.retry_many is
  'retry() for several messages at once: each array is null or has a value for each of ids. '
  'Returns the ids that were still locked under their tokens, with the number of attempts that '
  'each has, and the delay before the next one: null if it was archived. Notifies each queue '
  'once.';

create or replace function messages.retry(
  id bigint,
  lock_token bigint,
  delay interval default null,
  details text default null,
  status messages.message_status default 'failed',
  error_type text default null,
  error text default null,
  traceback text default null,
  give_up boolean default false
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if status is null then
    perform notifyq.check_given('status', false);
  end if;
  return exists (
    select from messages.retry_many(
      array[id], array[lock_token], array[delay], array[details], array[status],
      array[error_type], array[error], array[traceback], array[give_up]
    )
  );
end;
$$;
comment on function messages.retry is
  'End an attempt that failed. The message waits for delay (null: the backoff of its queue) and '
  'can then be claimed again; after its last attempt, or with give_up, it is archived with '
  'status. Its number of attempts is set by the message, else by the handler that claimed it, '
  'else by the queue. Class, text and traceback of the error are kept for messages.attempts(), '
  'with details instead of a missing error. False: the lock was lost, and nothing changed.';
