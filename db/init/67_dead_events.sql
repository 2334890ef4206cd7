-- Dead events: what subscribers could not handle, beside the dead messages, and both once more.
--
-- owns:    nothing
-- writes:  messages.message_archive, messages.event_retry; notifies new_event
-- calls:   messages._subscription, messages._stream, messages._ring_stream, messages._queue,
--          messages._invalid, messages._check_quantity, messages.dead_retry
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ020 stream not found, NQ021
--          subscription not found

-- An event stays in its stream, for the other subscribers: so a row of the archive that is about it
-- has an id of its own, and several may be about one event. Whoever calls has locked the batch.
create or replace function messages._archive_event(
  stream text,
  subscriber text,
  event_id bigint,
  created_at timestamptz,
  type text,
  key text,
  message jsonb,
  headers jsonb,
  attempts integer,
  details text default null,
  status messages.message_status default 'failed',
  handled_by text default null
)
  returns bigint
  language plpgsql
as $$
declare
  v_id bigint := nextval('messages.message_id_seq');
begin
  insert into messages.message_archive (
    id, created_at, available_at, lock_token, priority, attempts, status, queue, type, handled_by,
    message, headers, details, key, subscriber, event_id
  )
  values (
    v_id, _archive_event.created_at, _archive_event.created_at, 0, 0, _archive_event.attempts,
    _archive_event.status, _archive_event.stream, _archive_event.type, _archive_event.handled_by,
    coalesce(_archive_event.message, 'null'), coalesce(_archive_event.headers, '{}'),
    _archive_event.details, _archive_event.key, _archive_event.subscriber, _archive_event.event_id
  );
  return v_id;
end;
$$;

-- One that is being handed out again at this moment already is left as it is.
create or replace function messages._deliver_again(ids bigint[])
  returns void
  language plpgsql
as $$
declare
  v_dead messages.message_archive;
  v_subscription messages.subscription;
begin
  for v_dead in
    select a.* from messages.message_archive as a where a.id = any (ids) order by a.id
  loop
    v_subscription := messages._subscription(v_dead.queue, v_dead.subscriber);
    insert into messages.event_retry as r (
      subscription, event_id, due_at, retries, reason, created_at, type, key, message, headers
    )
    values (
      v_subscription.id, v_dead.event_id, clock_timestamp(), v_dead.attempts, v_dead.details,
      v_dead.created_at, v_dead.type, v_dead.key, v_dead.message, v_dead.headers
    )
    on conflict on constraint event_retry_subscription_event_id_pk
    do update set batch = null, due_at = excluded.due_at, retries = excluded.retries,
      reason = excluded.reason
    where r.due_at is null;
  end loop;
  perform messages._ring_stream(messages._stream(d.queue))
  from (
    select distinct a.queue from messages.message_archive as a where a.id = any (ids)
  ) as d;
end;
$$;

create or replace function messages.redrive(
  queue text default null,
  status messages.message_status default null,
  since timestamptz default null,
  until timestamptz default null,
  quantity integer default 1000,
  subscriber text default null
)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_ids bigint[];
begin
  perform messages._check_quantity(redrive.quantity, 100000);
  if redrive.status = 'success' then
    perform messages._invalid(
      'status must not be success', 'messages that succeeded are not dead; null means all that are'
    );
  end if;
  if redrive.queue is not null
    and not exists (select from messages.stream as s where s.name = redrive.queue)
  then
    perform messages._queue(redrive.queue);
  end if;
  -- One at a time: a second session would choose the same messages and find them published.
  lock table messages.redrive in share row exclusive mode;
  -- What was dropped is passed over; else its messages would stop all the others.
  v_ids := array(
    select d.id
    from messages.dead_message as d
    where (redrive.queue is null or d.queue = redrive.queue)
      and (redrive.status is null or d.status = redrive.status)
      and (redrive.since is null or d.archived_at >= redrive.since)
      and (redrive.until is null or d.archived_at < redrive.until)
      and (redrive.subscriber is null or d.subscriber = redrive.subscriber)
      and not exists (select from messages.redrive as r where r.archive_id = d.id)
      and (
        exists (
          select from messages.queue as q where q.name = d.queue and d.subscriber is null
        )
        or exists (
          select from messages.stream as s
          join messages.subscription as u on u.stream = s.id
          where s.name = d.queue and u.name = d.subscriber
        )
      )
      and (d.subscriber is null or d.event_id is not null)
    order by d.archived_at, d.id
    limit redrive.quantity
  );
  return (select count(*)::integer from messages.dead_retry(variadic v_ids));
end;
$$;
comment on function messages.redrive(
  text, messages.message_status, timestamptz, timestamptz, integer, text
) is
  'Publish up to quantity (at most 100000) dead messages again as dead_retry() does, the oldest '
  'first, and return how many: of one queue (null: all there are), of one status (null: any), '
  'archived at or after since and before until, of one subscriber (null: any). Raises NQ001 for an '
  'unknown queue.';
