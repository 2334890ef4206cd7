-- Subscriptions: subscribe, unsubscribe, seek.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ903 not
-- adopted, NQ021 subscription not found, NQ025 stream in use

-- A snapshot means nothing on a server that did not take it: there, what was seen would come again,
-- or what is new would be passed over.
create or replace function notifyq.check_position(seen pg_snapshot)
  returns void
  language plpgsql
  stable
as $$
begin
  -- This transaction may have taken it, and put its own number in.
  if pg_snapshot_xmax(seen) > greatest(
      pg_snapshot_xmax(pg_current_snapshot()),
      (pg_current_xact_id_if_assigned()::text::bigint + 1)::text::xid8
    )
    or (pg_control_system()).system_identifier is distinct from (
      select o.system_identifier from notifyq.origin as o order by o.epoch desc limit 1
    )
  then
    raise exception using
      errcode = 'NQ903',
      message = 'this database came from another server and has not been adopted',
      hint = '`notifyq migrate` tells how, or call messages.adopt(); until then subscribers wait';
  end if;
end;
$$;

create or replace function notifyq.cut_tick(
  stream messages.stream,
  is_asked boolean,
  fresh bigint default null
)
  returns bigint
  language plpgsql
as $$
#variable_conflict use_column
declare
  v_fresh bigint := coalesce(fresh, notifyq.fresh_low());
  v_last notifyq.tick;
  v_id bigint;
begin
  -- In their order: a later tick sees what an earlier one does.
  perform from messages.stream as s where s.id = cut_tick.stream.id for no key update;
  select t.* into v_last
  from notifyq.tick as t where t.stream = cut_tick.stream.id order by t.id desc limit 1;
  insert into notifyq.tick (stream, snapshot, low, high, is_asked)
  select cut_tick.stream.id, m.snapshot, m.low, m.high, cut_tick.is_asked
  from notifyq.snapshot_position(
    coalesce(v_last.low, 0), pg_snapshot_xmax(v_last.snapshot), v_fresh
  ) as m
  returning id into v_id;
  return v_id;
end;
$$;

create or replace function messages.tick(stream text default null)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream;
  v_tick bigint;
begin
  if stream is null then
    return (
      select count(messages.tick(s.name)) from messages.stream as s
      where notifyq.is_allowed(s.name, 'consume from')
    );
  end if;
  v_stream := notifyq.find_stream(stream);
  perform notifyq.check_access(v_stream.name, 'consume from');
  v_tick := notifyq.cut_tick(v_stream, true);
  perform notifyq.notify_stream(v_stream);
  return v_tick;
end;
$$;
comment on function messages.tick(text) is
  'Mark this moment of a stream and return the number of the tick: a batch ends here, even one '
  'without events, and subscribers can be set to it. Not needed for anything to be delivered. '
  'Without a stream: of all streams from which the caller may consume; returns how many. Raises '
  'NQ007 without the right to consume, and NQ020 for an unknown stream.';

-- What a place says, as a batch that ends there.
create or replace function notifyq.position_batch(stream messages.stream, place text)
  returns notifyq.batch
  language plpgsql
as $$
declare
  v_place notifyq.batch;
  v_fresh bigint;
  v_tick notifyq.tick;
  v_time timestamptz;
begin
  perform notifyq.check_given('place', position_batch.place is not null);
  v_place.kind := 'position';
  v_place.is_last := true;
  if position_batch.place = 'now' then
    v_fresh := notifyq.fresh_low();
    select t.* into v_tick
    from notifyq.tick as t where t.stream = position_batch.stream.id order by t.id desc limit 1;
    select m.low, m.snapshot, m.high
    into v_tick.low, v_tick.snapshot, v_tick.high
    from notifyq.snapshot_position(
      coalesce(v_tick.low, 0), pg_snapshot_xmax(v_tick.snapshot), v_fresh
    ) as m;
  elsif position_batch.place = 'last' then
    select t.* into v_tick
    from notifyq.tick as t where t.stream = position_batch.stream.id order by t.id desc limit 1;
  elsif position_batch.place ~ '^\d{1,18}$' then
    select t.* into v_tick
    from notifyq.tick as t
    where t.stream = position_batch.stream.id
      and t.id = position_batch.place::bigint;
    if not found then
      perform notifyq.raise_invalid(
        format('stream %L has no tick %s, or none any more', stream.name, place),
        'take `start` for the oldest event that is kept'
      );
    end if;
  elsif position_batch.place is distinct from 'start' then
    begin
      v_time := position_batch.place::timestamptz;
    exception
      when others then
        perform notifyq.raise_invalid(
          format('%L is no position', left(place, 100)),
          'take last, now, start, the number of a tick, or a time with its zone'
        );
    end;
    select t.* into v_tick
    from notifyq.tick as t
    where t.stream = position_batch.stream.id
      and t.created_at <= v_time
    order by t.id desc
    limit 1;
  end if;
  -- Before everything that is kept: no transaction has a number below 3.
  v_place.upto := coalesce(v_tick.snapshot, '3:3:');
  v_place.upto_low := coalesce(v_tick.low, 0);
  v_place.upto_high := coalesce(v_tick.high, 0);
  v_place.tick := coalesce(v_tick.id, 0);
  v_place.seen := v_place.upto;
  v_place.seen_low := v_place.upto_low;
  v_place.after_id := 0;
  v_place.last_id := v_place.upto_high;
  return v_place;
end;
$$;

-- Subscribe: who reads a stream, and from where on.

create or replace function messages.subscribe(
  stream text,
  subscriber text,
  place text default 'last'
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_stream messages.stream := notifyq.find_stream(subscribe.stream);
  v_place notifyq.batch := notifyq.position_batch(v_stream, coalesce(subscribe.place, 'last'));
begin
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(v_stream.name, 'consume from');
  end if;
  perform notifyq.check_name('subscriber', subscribe.subscriber);
  perform notifyq.check_position(v_place.upto);
  -- drop_stream() and the upkeep, which empties segments, look for subscriptions.
  perform from messages.stream as s where s.id = v_stream.id for share;
  insert into messages.subscription (stream, name)
  values (v_stream.id, subscribe.subscriber)
  on conflict on constraint subscription_stream_name_pk do nothing
  returning id into v_place.subscription;
  if not found then
    return false;
  end if;
  perform notifyq.add_batch(v_place, 0, null);
  return true;
end;
$$;
comment on function messages.subscribe(text, text, text) is
  'Let a subscriber see every event of the stream from place on: last, or null (its newest tick, '
  'so that nothing of the last moments is missed), now, start (the oldest event that is kept), the '
  'number of a tick, or a time as text (the newest tick before it). False: it subscribed before, '
  'and is where it was. Raises NQ020 for an unknown stream and NQ003 for a position that there is '
  'not.';

-- Take back what is open, and go on from another place.
create or replace function notifyq.set_position(subscription bigint, place notifyq.batch)
  returns void
  language plpgsql
as $$
declare
  v_open bigint[];
  v_last bigint;
begin
  perform from messages.subscription as u
  where u.id = set_position.subscription
  for no key update;
  select max(b.id) filter (where b.previous = v.previous),
    coalesce(array_agg(b.id) filter (where b.kind <> 'position'), '{}')
  into v_last, v_open
  from notifyq.batch as b
  cross join lateral (
    select max(n.previous) as previous
    from notifyq.batch as n where n.subscription = set_position.subscription
  ) as v
  where b.subscription = set_position.subscription
    and (
      b.previous = v.previous
      or not exists (select from notifyq.batch_end as e where e.batch = b.id)
    );
  perform from notifyq.batch as b where b.id = any (v_open) order by b.id for no key update;
  insert into notifyq.batch_end (batch, is_finished)
  select u.id, false from unnest(v_open) as u (id)
  on conflict on constraint batch_end_batch_pk do nothing;
  delete from notifyq.event_retry as r where r.batch = any (v_open) and r.due_at is null;
  update notifyq.event_retry as r set batch = null where r.batch = any (v_open);
  place.subscription := set_position.subscription;
  perform notifyq.add_batch(place, coalesce(v_last, 0), null);
end;
$$;

create or replace function messages.seek(stream text, subscriber text, place text)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
  v_place notifyq.batch := notifyq.position_batch(notifyq.find_stream(stream), place);
begin
  perform notifyq.check_position(v_place.upto);
  perform notifyq.set_position(v_subscription.id, v_place);
  perform notifyq.notify_stream(notifyq.find_stream(stream));
end;
$$;
comment on function messages.seek(text, text, text) is
  'Set a subscriber to another position of its stream, see subscribe(), back to see events again '
  'or forth to leave some out. Batches that are open are taken back; events that it had put off '
  'with retry_event() still come. Raises NQ021 for an unknown subscriber.';

create or replace function notifyq.end_subscription(subscription bigint)
  returns void
  language plpgsql
as $$
begin
  delete from messages.subscription as u where u.id = end_subscription.subscription;
  delete from notifyq.batch_end as e
  using notifyq.batch as b
  where b.id = e.batch
    and b.subscription = end_subscription.subscription;
  delete from notifyq.batch as b where b.subscription = end_subscription.subscription;
  delete from notifyq.event_retry as r where r.subscription = end_subscription.subscription;
  delete from notifyq.forward as f where f.subscription = end_subscription.subscription;
end;
$$;

create or replace function messages.unsubscribe(stream text, subscriber text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.end_subscription(
    (notifyq.find_subscription(unsubscribe.stream, unsubscribe.subscriber)).id
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
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream := notifyq.find_stream(name);
  v_subscriptions bigint[];
begin
  perform notifyq.check_given('force', drop_stream.force is not null);
  perform notifyq.check_captured(v_stream.name);
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
  perform notifyq.end_subscription(u.id) from unnest(v_subscriptions) as u (id);
  delete from notifyq.tick as t where t.stream = v_stream.id;
  delete from messages.queue_grant as g where g.queue = v_stream.name;
  delete from messages.stream as s where s.id = v_stream.id;
  -- The upkeep empties them, when nobody writes to them any more.
  update notifyq.segment as s
  set stream = null, closed_at = coalesce(s.closed_at, clock_timestamp()),
    changed_by = pg_current_xact_id()
  where s.stream = v_stream.id;
  return cardinality(v_subscriptions);
end;
$$;
comment on function messages.drop_stream(text, boolean) is
  'Drop a stream with its events; with force its subscriptions, too. Returns how many those were. '
  'Raises NQ020 for an unknown stream, and NQ025 while somebody subscribes.';
