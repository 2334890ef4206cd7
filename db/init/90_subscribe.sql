-- Subscribe: who reads a stream, and from where on.
--
-- owns:    nothing
-- writes:  messages.subscription, messages.batch, messages.batch_end, messages.event_retry,
--          messages.stream, messages.tick, messages.segment; notifies new_event
-- calls:   messages._stream, messages._subscription, messages._check_access, messages._check_name,
--          messages._check_captured, messages._place, messages._check_position,
--          messages._add_batch, messages._ring_stream, messages._check_given
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ021
--          subscription not found, NQ025 stream in use, NQ903 not adopted

create or replace function messages.subscribe(
  stream text,
  subscriber text,
  place text default 'last'
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_stream messages.stream := messages._stream(subscribe.stream);
  v_place messages.batch := messages._place(v_stream, subscribe.place);
begin
  if exists (select from messages.queue_grant) then
    perform messages._check_access(v_stream.name, 'consume from');
  end if;
  perform messages._check_name('subscriber', subscribe.subscriber);
  perform messages._check_position(v_place.upto);
  -- drop_stream() and the upkeep, which empties segments, look for subscriptions.
  perform from messages.stream as s where s.id = v_stream.id for share;
  insert into messages.subscription (stream, name)
  values (v_stream.id, subscribe.subscriber)
  on conflict on constraint subscription_stream_name_pk do nothing
  returning id into v_place.subscription;
  if not found then
    return false;
  end if;
  perform messages._add_batch(v_place, 0, null);
  return true;
end;
$$;
comment on function messages.subscribe(text, text, text) is
  'Let a subscriber see every event of the stream from place on: last (its newest tick, so '
  'that nothing of the last moments is missed), now, start (the oldest event that is kept), the '
  'number of a tick, or a time as text (the newest tick before it). False: it subscribed before, '
  'and is where it was. Raises NQ020 for an unknown stream and NQ003 for a position that there is '
  'not.';

-- Take back what is open, and go on from another place.
create or replace function messages._set_position(subscription bigint, place messages.batch)
  returns void
  language plpgsql
as $$
declare
  v_open bigint[];
  v_last bigint;
begin
  perform from messages.subscription as u
  where u.id = _set_position.subscription
  for no key update;
  select max(b.id) filter (where b.previous = v.previous),
    coalesce(array_agg(b.id) filter (where b.kind <> 'position'), '{}')
  into v_last, v_open
  from messages.batch as b
  cross join lateral (
    select max(n.previous) as previous
    from messages.batch as n where n.subscription = _set_position.subscription
  ) as v
  where b.subscription = _set_position.subscription
    and (
      b.previous = v.previous
      or not exists (select from messages.batch_end as e where e.batch = b.id)
    );
  perform from messages.batch as b where b.id = any (v_open) order by b.id for no key update;
  insert into messages.batch_end (batch, is_finished)
  select u.id, false from unnest(v_open) as u (id)
  on conflict on constraint batch_end_batch_pk do nothing;
  delete from messages.event_retry as r where r.batch = any (v_open) and r.due_at is null;
  update messages.event_retry as r set batch = null where r.batch = any (v_open);
  place.subscription := _set_position.subscription;
  perform messages._add_batch(place, coalesce(v_last, 0), null);
end;
$$;

create or replace function messages.seek(stream text, subscriber text, place text)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_subscription messages.subscription := messages._subscription(stream, subscriber);
  v_place messages.batch := messages._place(messages._stream(stream), place);
begin
  perform messages._check_position(v_place.upto);
  perform messages._set_position(v_subscription.id, v_place);
  perform messages._ring_stream(messages._stream(stream));
end;
$$;
comment on function messages.seek(text, text, text) is
  'Set a subscriber to another position of its stream, see subscribe(), back to see events again '
  'or forth to leave some out. Batches that are open are taken back; events that it had put off '
  'with retry_event() still come. Raises NQ021 for an unknown subscriber.';

create or replace function messages._end_subscription(subscription bigint)
  returns void
  language plpgsql
as $$
begin
  delete from messages.subscription as u where u.id = _end_subscription.subscription;
  delete from messages.batch_end as e
  using messages.batch as b
  where b.id = e.batch
    and b.subscription = _end_subscription.subscription;
  delete from messages.batch as b where b.subscription = _end_subscription.subscription;
  delete from messages.event_retry as r where r.subscription = _end_subscription.subscription;
  delete from messages.forward as f where f.subscription = _end_subscription.subscription;
end;
$$;

create or replace function messages.unsubscribe(stream text, subscriber text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._end_subscription(
    (messages._subscription(unsubscribe.stream, unsubscribe.subscriber)).id
  );
  return true;
exception
  when sqlstate 'NQ020' or sqlstate 'NQ021' then
    return false;
end;
$$;
comment on function messages.unsubscribe(text, text) is
  'End a subscription, with its open batches and what it had put off. False: there is none.';

create or replace function messages.drop_stream(name text, force boolean default false)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream := messages._stream(name);
  v_subscriptions bigint[];
begin
  perform messages._check_given('force', drop_stream.force is not null);
  perform messages._check_captured(v_stream.name);
  perform from messages.stream as s where s.id = v_stream.id for update;
  v_subscriptions := array(
    select u.id from messages.subscription as u where u.stream = v_stream.id order by u.id
  );
  if v_subscriptions <> '{}' and not force then
    raise exception using
      errcode = 'NQ025',
      message = format('stream %L has %s subscribers', name, cardinality(v_subscriptions)),
      hint = 'unsubscribe them, or drop it with force';
  end if;
  perform messages._end_subscription(u.id) from unnest(v_subscriptions) as u (id);
  delete from messages.tick as t where t.stream = v_stream.id;
  delete from messages.queue_grant as g where g.queue = v_stream.name;
  delete from messages.stream as s where s.id = v_stream.id;
  -- The upkeep empties them, when nobody writes to them any more.
  update messages.segment as s
  set stream = null, closed_at = coalesce(s.closed_at, clock_timestamp()),
    changed_by = pg_current_xact_id()
  where s.stream = v_stream.id;
  return cardinality(v_subscriptions);
end;
$$;
comment on function messages.drop_stream(text, boolean) is
  'Drop a stream with its events; with force its subscriptions, too. Returns how many those were. '
  'Raises NQ020 for an unknown stream, and NQ025 while somebody subscribes.';
