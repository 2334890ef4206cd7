-- Settle: say what became of an event of a batch, and that the batch is done.
--
-- owns:    nothing
-- writes:  messages.event_retry, messages.batch_end
-- calls:   messages._batch, messages._open_batch, messages._events, messages.batch_events,
--          messages._archive_event, messages._invalid, messages._check_given,
--          messages._check_duration
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ022 batch not open, NQ023 event
--          not in the batch

-- Held to the end of the transaction by whoever settles it or an event of it: two sessions that
-- work on the same batch would wait for each other's events.
create or replace function messages._hold_batch(id bigint)
  returns void
  language plpgsql
as $$
begin
  perform from messages.batch as b where b.id = _hold_batch.id for no key update;
end;
$$;

create or replace function messages._event_of(batch messages.batch, event bigint)
  returns messages.batch_event
  language plpgsql
  stable
as $$
declare
  v_event messages.batch_event;
  v_of messages.batch := batch;
begin
  if v_of.kind = 'retries' then
    v_of.after_id := greatest(event, -9223372036854775807) - 1;
    v_of.last_id := event;
  else
    v_of.after_id := greatest(v_of.after_id, greatest(event, -9223372036854775807) - 1);
    v_of.last_id := least(v_of.last_id, event);
  end if;
  select e.* into v_event from messages._events(v_of) as e;
  if not found then
    raise exception using
      errcode = 'NQ023',
      message = format('event %s is not in batch %s', event, batch.id),
      hint = 'batch_events() gives those that are';
  end if;
  return v_event;
end;
$$;

create or replace function messages._has_outcome(batch messages.batch, event bigint)
  returns boolean
  language plpgsql
  stable
as $$
begin
  return exists (
    select from messages.event_retry as r
    where r.subscription = batch.subscription
      and r.event_id = event
      and (r.batch is distinct from batch.id or r.due_at is null)
  );
end;
$$;

create or replace function messages.retry_event(
  batch bigint,
  event bigint,
  delay interval default interval '0',
  reason text default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_batch messages.batch;
  v_event messages.batch_event;
begin
  perform messages._check_given('event', retry_event.event is not null);
  perform messages._hold_batch(batch);
  v_batch := messages._open_batch(batch);
  if retry_event.delay < interval '0' then
    perform messages._invalid(format('delay must not be negative: %s', retry_event.delay));
  end if;
  perform messages._check_duration('delay', retry_event.delay);
  if messages._has_outcome(v_batch, retry_event.event) then
    return false;
  end if;
  v_event := messages._event_of(v_batch, retry_event.event);
  insert into messages.event_retry as r (
    subscription, event_id, due_at, retries, reason, created_at, type, key, message, headers
  )
  values (
    v_batch.subscription, v_event.id,
    clock_timestamp() + coalesce(retry_event.delay, interval '0'), 1, retry_event.reason,
    v_event.created_at, v_event.type, v_event.key, v_event.message, v_event.headers
  )
  on conflict on constraint event_retry_subscription_event_id_pk do update
  set batch = null, due_at = excluded.due_at, retries = least(r.retries, 2147483646) + 1,
    reason = excluded.reason
  where r.batch = v_batch.id
    and r.due_at is not null;
  return found;
end;
$$;
comment on function messages.retry_event(bigint, bigint, interval, text) is
  'Have an event of an open batch delivered once more to this subscriber alone, after delay, with '
  'the same id and time, and with retries raised. False: it has an outcome already. Raises NQ003 '
  'without an event, NQ022 for a batch that is not open, NQ023 for an event that is not in it.';

create or replace function messages.retry_batch(
  batch bigint,
  delay interval default interval '0',
  reason text default null
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return (
    select count(*)
    from messages.batch_events(retry_batch.batch) as e
    where messages.retry_event(retry_batch.batch, e.id, retry_batch.delay, retry_batch.reason)
  );
end;
$$;
comment on function messages.retry_batch(bigint, interval, text) is
  'retry_event() for each event of an open batch that has no outcome yet; returns how many.';

create or replace function messages.fail_event(
  batch bigint,
  event bigint,
  reason text default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_batch messages.batch;
  v_event messages.batch_event;
begin
  perform messages._check_given('event', fail_event.event is not null);
  perform messages._hold_batch(batch);
  v_batch := messages._open_batch(batch);
  if messages._has_outcome(v_batch, fail_event.event) then
    return false;
  end if;
  v_event := messages._event_of(v_batch, fail_event.event);
  insert into messages.event_retry as r (
    subscription, event_id, batch, retries, reason, created_at, type, key, message, headers
  )
  values (
    v_batch.subscription, v_event.id, v_batch.id, 0, fail_event.reason, v_event.created_at,
    v_event.type, v_event.key, v_event.message, v_event.headers
  )
  on conflict on constraint event_retry_subscription_event_id_pk do update
  set due_at = null
  where r.batch = v_batch.id
    and r.due_at is not null;
  if not found then
    return false;
  end if;
  perform messages._archive_event(
    s.name, u.name, v_event.id, v_event.created_at, v_event.type, v_event.key, v_event.message,
    v_event.headers, coalesce(v_event.retries, 0) + 1, fail_event.reason
  )
  from messages.subscription as u
  join messages.stream as s on s.id = u.stream
  where u.id = v_batch.subscription;
  return true;
end;
$$;
comment on function messages.fail_event(bigint, bigint, text) is
  'Archive an event of an open batch as failed for this subscriber, with the reason: it is a dead '
  'message from then on, see dead_list(). False: it has an outcome already. Raises NQ022 for a '
  'batch that is not open, and NQ023 for an event that is not in it.';

create or replace function messages.finish_batch(batch bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_batch messages.batch;
begin
  -- One statement answers most: what cannot be so is told below.
  select b.* into v_batch
  from messages.batch as b
  where b.id = finish_batch.batch
    and b.kind <> 'position'
    and not exists (select from messages.queue_grant)
  for no key update;
  if not found then
    perform messages._hold_batch(finish_batch.batch);
    v_batch := messages._batch(finish_batch.batch);
  end if;
  insert into messages.batch_end (batch, is_finished)
  values (v_batch.id, true)
  on conflict on constraint batch_end_batch_pk do nothing;
  if not found then
    raise warning 'batch % was finished before', v_batch.id;
    return false;
  end if;
  delete from messages.event_retry as r where r.batch = v_batch.id;
  return true;
end;
$$;
comment on function messages.finish_batch(bigint) is
  'Say that a batch is done: the next one is handed out from then on. What is written in the same '
  'transaction is written exactly once. False, with a warning: it was finished before, or taken '
  'back by seek(). Raises NQ022 for an unknown batch.';
