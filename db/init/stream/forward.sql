-- Forward: move the events of a stream into a queue, each exactly once.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the stream or the queue,
-- NQ020 stream not found

-- One transaction publishes the events of a batch and finishes the batch, so each is moved exactly
-- once. Claims from the queue do it when messages are needed, and maintenance when no worker runs.

-- Apply a filter to an event as a claim does to a message.
create or replace function notifyq.matches_event(event messages.batch_event, filter jsonpath)
  returns boolean language plpgsql stable
as $$
declare
  v_message messages.message;
begin
  v_message.id := event.id;
  v_message.created_at := event.created_at;
  v_message.priority := 0;
  v_message.attempts := coalesce(event.retries, 0);
  v_message.type := event.type;
  v_message.key := event.key;
  v_message.message := event.message;
  v_message.headers := event.headers;
  return notifyq.matches(v_message, filter);
end;
$$;

-- Publish events into a queue; if that fails, one by one. An event that the queue rejects is
-- archived.
-- Only notifyq can give the token to a new message, see admit(): the right to publish was checked
-- when the forward was made, and the session that moves events need not have it.
create or replace function notifyq.move_events(
  stream text, subscriber text, queue text, events messages.batch_event[]
)
  returns void language plpgsql
as $$
begin
  insert into messages.message (queue, message, type, key, headers, lock_token)
  select move_events.queue, e.message, e.type, e.key,
    e.headers || jsonb_build_object('stream', move_events.stream, 'event', e.id), 1
  from unnest(events) as e
  order by e.id;
exception
  when others then
    if not notifyq.is_refusal(sqlstate) then
      raise;
    elsif cardinality(events) > 1 then
      perform notifyq.move_events(stream, subscriber, queue, array[e])
      from unnest(events) as e
      order by e.id;
    else
      perform notifyq.archive_event(
        stream, subscriber, e.id, e.created_at, e.type, e.key, e.message, e.headers,
        coalesce(e.retries, 0) + 1, format('queue %s rejects it: %s', queue, sqlerrm), 'rejected'
      )
      from unnest(events) as e;
    end if;
end;
$$;

-- Returns how many events were read; null: another session moves events of this forward.
create or replace function notifyq.forward_batch(
  forward notifyq.forward, quantity integer, fresh bigint
)
  returns integer language plpgsql
as $$
declare
  v_subscription messages.subscription;
  v_stream text;
  v_id bigint;
  v_batch notifyq.batch;
  v_all messages.batch_event[];
  v_events messages.batch_event[];
begin
  select u.* into v_subscription
  from messages.subscription as u
  where u.id = forward.subscription
  for no key update skip locked;
  if not found then
    return null;
  end if;
  v_stream := (select s.name from messages.stream as s where s.id = v_subscription.stream);
  v_id := notifyq.select_batch(v_stream, v_subscription, quantity, fresh);
  select b.* into v_batch from notifyq.batch as b where b.id = v_id;
  if not found then
    return 0;
  end if;
  v_all := array(select e from notifyq.read_events(v_batch) as e order by e.id);
  v_events := case
    when forward.filter is null then v_all
    else array(
      select e from unnest(v_all) as e
      where notifyq.matches_event(e, forward.filter)
      order by e.id
    )
  end;
  if v_events <> '{}' then
    perform notifyq.move_events(v_stream, v_subscription.name, forward.queue, v_events);
  end if;
  insert into notifyq.batch_end (batch, is_finished) values (v_batch.id, true);
  delete from notifyq.event_retry as r where r.batch = v_batch.id;
  return greatest(cardinality(v_all), 1);
end;
$$;

-- Up to quantity events of one forward. An error stops neither other forwards nor the caller.
create or replace function notifyq.forward_one(
  forward notifyq.forward, quantity integer, fresh bigint
)
  returns integer language plpgsql
as $$
declare
  v_moved integer := 0;
  v_now integer;
  v_error text;
begin
  loop
    begin
      v_now := notifyq.forward_batch(forward, quantity - v_moved, fresh);
    exception
      -- The queue is full: the events wait in the stream.
      when sqlstate 'NQ010' then
        exit;
      when lock_not_available or deadlock_detected or serialization_failure then
        exit;
      when others then
        get stacked diagnostics v_error = message_text;
        update notifyq.forward as f
        set failed_at = clock_timestamp(), last_error = left(v_error, 1000)
        where f.subscription = forward.subscription;
        raise warning 'notifyq: events cannot be forwarded into queue %, next try in a '
          'minute: %', forward.queue, v_error;
        exit;
    end;
    exit when coalesce(v_now, 0) = 0;
    v_moved := v_moved + v_now;
    exit when v_moved >= quantity;
  end loop;
  if v_moved > 0 and forward.failed_at is not null then
    update notifyq.forward as f
    set failed_at = null, last_error = null
    where f.subscription = forward.subscription;
  end if;
  return v_moved;
end;
$$;

create or replace function notifyq.forward_into(queues text[], quantity integer)
  returns integer language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_fresh bigint := notifyq.fresh_low();
  v_forward notifyq.forward;
  v_moved integer := 0;
begin
  for v_forward in
    select f.*
    from notifyq.forward as f
    where (queues is null or f.queue = any (queues))
      and (f.failed_at is null or f.failed_at < clock_timestamp() - interval '1 minute')
    order by f.subscription
  loop
    v_moved := v_moved + notifyq.forward_one(v_forward, quantity, v_fresh);
  end loop;
  return v_moved;
end;
$$;

-- Workers of the queues move the events: notify them.
create or replace function notifyq.notify_forwards(stream messages.stream)
  returns void language plpgsql
as $$
begin
  perform notifyq.notify_queue(q, '')
  from notifyq.forward as f
  join messages.subscription as u on u.id = f.subscription
  join messages.queue as q on q.name = f.queue
  where u.stream = notify_forwards.stream.id
  order by q.name;
end;
$$;

create or replace function notifyq.forward_pending(quantity integer default 10000)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_quantity(forward_pending.quantity, 100000);
  return notifyq.forward_into(null, forward_pending.quantity);
end;
$$;
comment on function notifyq.forward_pending(integer) is
  'Move up to quantity events of each subscription that forwards into its queue; return how many '
  'were read. maintain() does it, and so does each claim from such a queue.';

create or replace function messages.forward(
  stream text,
  subscriber text,
  queue text,
  "position" text default 'last',
  filter jsonpath default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_stream messages.stream := notifyq.find_stream(stream);
  v_queue messages.queue := notifyq.find_queue(queue);
  v_subscription messages.subscription;
  v_is_new boolean;
begin
  if forward.filter is not null then
    perform notifyq.check_filter(forward.filter);
  end if;
  perform notifyq.check_readable(array[v_stream.name, v_queue.name], 'forwarded events');
  perform notifyq.check_access(v_stream.name, 'consume from');
  perform notifyq.check_access(v_queue.name, 'publish into');
  perform messages.subscribe(v_stream.name, subscriber, position);
  v_subscription := notifyq.find_subscription(v_stream.name, subscriber);
  insert into notifyq.forward as f (subscription, queue, filter)
  values (v_subscription.id, v_queue.name, forward.filter)
  on conflict on constraint forward_subscription_pk
  do update set queue = excluded.queue, filter = excluded.filter, failed_at = null,
    last_error = null
  returning f.xmax = 0 into v_is_new;
  -- Idle workers claim, which moves the events that exist already.
  perform notifyq.notify_queue(v_queue, '');
  return v_is_new;
end;
$$;
comment on function messages.forward(text, text, text, text, jsonpath) is
  'Move the events of a subscription into a queue, each exactly once, where competing workers '
  'claim them: with type, key and headers, and with the stream and the id of the event in the '
  'headers. Subscribes at position if needed, as subscribe() does. filter is a JSON path '
  'predicate as in claim(), like $.n < 3: other events are left out. An event that the queue '
  'rejects becomes a dead event. False: it forwarded before, and continues into this queue with '
  'this filter. Raises NQ001 and NQ020 for an unknown queue and stream, NQ007 without the right '
  'to consume from the stream and to publish into the queue.';

create or replace function messages.unforward(
  stream text, subscriber text, keep boolean default false
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
begin
  delete from notifyq.forward as f where f.subscription = v_subscription.id;
  if not found then
    return false;
  end if;
  if not unforward.keep then
    perform messages.unsubscribe(stream, subscriber);
  end if;
  return true;
end;
$$;
comment on function messages.unforward(text, text, boolean) is
  'End forwarding, and the subscription with it; with keep the subscription stays at its '
  'position, for a program to read. False: it did not forward. Raises NQ020 and NQ021 for an '
  'unknown stream and subscriber.';

create or replace function messages.forwards(stream text default null)
  returns setof messages.forward_report language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select s.name, u.name, f.queue, f.filter, f.created_at, f.failed_at, f.last_error
  from notifyq.forward as f
  join messages.subscription as u on u.id = f.subscription
  join messages.stream as s on s.id = u.stream
  cross join notifyq.readable_names(forwards.stream, to_workers => true) as r (names)
  where (forwards.stream is null or s.name = forwards.stream)
    and (r.names is null or array[s.name, f.queue] <@ r.names)
  order by s.name, u.name;
$$;
comment on function messages.forwards(text) is
  'Subscriptions that forward into a queue and, if that fails, since when and why.';
