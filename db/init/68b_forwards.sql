-- Forwards: make a subscription that forwards into a queue, end it, and list them.
--
-- owns:    nothing
-- writes:  messages.forward, messages.subscription (by subscribe and unsubscribe); notifies
--          new_message
-- calls:   messages._stream, messages._queue, messages._check_access, messages.subscribe,
--          messages.unsubscribe, messages._subscription, messages._ring, messages._forward_one,
--          messages._check_quantity, messages._check_filter, messages._fresh_low
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the stream or the
--          queue, NQ020 stream not found

create or replace function messages._forward_into(
  queues text[],
  quantity integer,
  fresh bigint default null
)
  returns integer
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_fresh bigint := coalesce(fresh, messages._fresh_low());
  v_forward messages.forward;
  v_moved integer := 0;
begin
  for v_forward in
    select f.*
    from messages.forward as f
    where (queues is null or f.queue = any (queues))
      and (f.failed_at is null or f.failed_at < clock_timestamp() - interval '1 minute')
    order by f.subscription
  loop
    v_moved := v_moved + messages._forward_one(v_forward, quantity, v_fresh);
  end loop;
  return v_moved;
end;
$$;

-- What is forwarded is moved when somebody claims it; not one by one, nor very many at once.
create or replace function messages._fetch_forwards(queues text[], quantity integer)
  returns integer
  language sql
as $$
  select messages._forward_into(queues, greatest(quantity, 100));
$$;

-- As workers of the queues would move the events, they are told of them.
create or replace function messages._ring_forwards(stream messages.stream)
  returns void
  language plpgsql
as $$
begin
  perform messages._ring(q, '')
  from messages.forward as f
  join messages.subscription as u on u.id = f.subscription
  join messages.queue as q on q.name = f.queue
  where u.stream = _ring_forwards.stream.id
  order by q.name;
end;
$$;

create or replace function messages.forward_pending(quantity integer default 10000)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_quantity(forward_pending.quantity, 100000);
  return messages._forward_into(null, forward_pending.quantity);
end;
$$;
comment on function messages.forward_pending(integer) is
  'Move up to quantity events of each subscription that forwards into its queue; return how many '
  'were looked at. maintain() does it, and so does each claim from such a queue.';

create or replace function messages.forward(
  stream text,
  subscriber text,
  queue text,
  place text default 'last',
  filter jsonpath default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_stream messages.stream := messages._stream(stream);
  v_queue messages.queue := messages._queue(queue);
  v_subscription messages.subscription;
  v_is_new boolean;
begin
  if forward.filter is not null then
    perform messages._check_filter(forward.filter);
  end if;
  perform messages._check_access(v_stream.name, 'consume from');
  perform messages._check_access(v_queue.name, 'publish into');
  perform messages.subscribe(v_stream.name, subscriber, place);
  v_subscription := messages._subscription(v_stream.name, subscriber);
  insert into messages.forward as f (subscription, queue, filter)
  values (v_subscription.id, v_queue.name, forward.filter)
  on conflict on constraint forward_subscription_pk
  do update set queue = excluded.queue, filter = excluded.filter, failed_at = null,
    last_error = null
  returning f.xmax = 0 into v_is_new;
  -- Workers that sleep claim, and with that move what is there already.
  perform messages._ring(v_queue, '');
  return v_is_new;
end;
$$;
comment on function messages.forward(text, text, text, text, jsonpath) is
  'Move the events of a subscription into a queue, each exactly once, where competing workers '
  'claim them: with type, key and headers, and in the headers the stream and the id of the event. '
  'Subscribes at place if need be, as subscribe() does. filter is a JSON path predicate as that of '
  'claim(), as in $.n < 3: other events are left out. What the queue does not take is a dead '
  'event. False: it forwarded already, and goes on into this queue with this filter. Raises NQ001 '
  'and NQ020 for an unknown queue and stream, NQ007 without the right to consume from the stream '
  'and to publish into the queue.';

create or replace function messages.unforward(
  stream text,
  subscriber text,
  keep boolean default false
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_subscription messages.subscription := messages._subscription(stream, subscriber);
begin
  delete from messages.forward as f where f.subscription = v_subscription.id;
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
  'End forwarding, and the subscription with it; with keep the subscription stays where it is, for '
  'somebody to read. False: it did not forward. Raises NQ020 and NQ021 for an unknown stream and '
  'subscriber.';

create or replace function messages.forwards(stream text default null)
  returns setof messages.forward_report
  language sql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select s.name, u.name, f.queue, f.filter, f.created_at, f.failed_at, f.last_error
  from messages.forward as f
  join messages.subscription as u on u.id = f.subscription
  join messages.stream as s on s.id = u.stream
  where forwards.stream is null
    or s.name = forwards.stream
  order by s.name, u.name;
$$;
comment on function messages.forwards(text) is
  'Which subscriptions forward into which queue, and, where that fails, since when and why.';
