-- Finish: end a lock with an outcome. Every call shows the token of the lock that it means.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive, messages.attempt
-- calls:   messages._archive, messages._backoff, messages._ring, messages._attended_key,
--          messages._queue, messages._invalid, messages._screen, messages._note_attempt,
--          messages._ring_freed, messages._attempts_of
-- raises:  NQ003 invalid argument

create or replace function messages.finish_many(
  ids bigint[],
  lock_tokens bigint[],
  statuses messages.message_status[],
  details text[] default null,
  results jsonb[] default null
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if cardinality(ids) <> cardinality(lock_tokens) or cardinality(ids) <> cardinality(statuses) then
    perform messages._invalid('ids, lock_tokens and statuses must have the same length');
  end if;
  if exists (select from messages.queue_grant) then
    ids := messages._screen(ids);
  end if;
  return query select a.id from messages._archive(ids, lock_tokens, statuses, details, results)
    as a (id);
end;
$$;
comment on function messages.finish_many(
  bigint[], bigint[], messages.message_status[], text[], jsonb[]
) is
  'Finish several locked messages at once and return the ids that were; an id that is missing lost '
  'its lock, and nothing changed for it.';

create or replace function messages.finish(
  id bigint,
  lock_token bigint,
  status messages.message_status default 'success',
  details text default null,
  result jsonb default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if exists (select from messages.queue_grant) then
    id := (messages._screen(array[id]))[1];
  end if;
  return exists (
    select from messages._archive(
      array[id], array[lock_token], array[status], array[details], array[result]
    )
  );
end;
$$;
comment on function messages.finish(bigint, bigint, messages.message_status, text, jsonb) is
  'Move a locked message to the archive. False: the lock was lost, and nothing changed.';

-- Returns when the message is due again.
create or replace function messages._requeue(
  message messages.message,
  queue messages.queue,
  delay interval,
  details text
)
  returns timestamptz
  language plpgsql
as $$
declare
  v_delay interval := coalesce(
    delay, messages._backoff(queue.backoff, queue.backoff_max, message.attempts)
  );
  v_now timestamptz := clock_timestamp();
begin
  update messages.message as m
  set state = 'waiting',
    locked_at = null,
    lock_expires_at = null,
    locked_by = null,
    lock_token = m.lock_token + 1,
    available_at = case
      when v_delay > interval '0' then v_now + v_delay else m.available_at end,
    details = _requeue.details
  where m.id = message.id;
  -- Whoever sleeps must know when to look, and who attends looks all the time.
  if v_delay < interval '1 minute'
    and pg_try_advisory_xact_lock_shared(messages._attended_key(queue.name))
  then
    perform messages._ring(queue, message.id::text);
  elsif exists (select from messages.flow as f where f.is_held) then
    perform messages._ring_freed(array[queue.name], array[message.id]);
  end if;
  return v_now + greatest(v_delay, interval '0');
end;
$$;

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
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_message messages.message;
  v_queue messages.queue;
  v_retry_at timestamptz;
begin
  if exists (select from messages.queue_grant) then
    id := (messages._screen(array[id]))[1];
  end if;
  select m.* into v_message
  from messages.message as m
  where m.id = retry.id
    and m.lock_token = retry.lock_token
    and m.state = 'locked'
  for update;
  if not found then
    return false;
  end if;
  v_queue := messages._queue(v_message.queue);
  if give_up or v_message.attempts >= messages._attempts_of(v_message, v_queue) then
    -- The trigger of the archive knows nothing of the error: it leaves this attempt out.
    perform set_config('notifyq.noted', format('%s:%s', id, lock_token), true);
    perform messages.finish(id, lock_token, status, details);
  else
    v_retry_at := messages._requeue(v_message, v_queue, delay, details);
  end if;
  perform messages._note_attempt(
    v_message, status, v_retry_at, error_type, coalesce(error, details), traceback
  );
  return true;
end;
$$;
comment on function messages.retry(
  bigint, bigint, interval, text, messages.message_status, text, text, text, boolean
) is
  'End an attempt that failed: the message waits for delay (null: the backoff of its queue) and is '
  'handed out again, or is archived with status once its attempts are used up, or at once with '
  'give_up. How many it has is said by the message, else by the handler that claimed it, else by '
  'the queue. The class, text and traceback of the error are for messages.attempts(); without '
  'error that has the details. False: the lock was lost, and nothing changed.';
