-- Subscriptions: subscribe, unsubscribe, seek.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ021
-- subscription not found, NQ025 stream in use, NQ903 not adopted

-- A snapshot is only valid on the server that took it: on another one, subscribers would get events
-- twice or miss new ones.
create or replace function notifyq.check_position(seen pg_snapshot)
  returns void language plpgsql stable
as $$
begin
  -- This transaction may have taken it, with its own transaction id as running.
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
      hint = 'see `notifyq migrate`, or call messages.adopt(); until then subscribers wait';
  end if;
end;
$$;

create or replace function notifyq.cut_tick(
  stream messages.stream, is_requested boolean, fresh bigint default null
)
  returns bigint language plpgsql
as $$
#variable_conflict use_column
declare
  v_fresh bigint := coalesce(fresh, notifyq.fresh_low());
  v_last notifyq.tick;
  v_id bigint;
begin
  -- One at a time: a later tick sees all that an earlier one sees.
  perform from messages.stream as s where s.id = cut_tick.stream.id for no key update;
  select t.* into v_last
  from notifyq.tick as t where t.stream = cut_tick.stream.id order by t.id desc limit 1;
  insert into notifyq.tick (stream, snapshot, low, high, is_requested)
  select cut_tick.stream.id, m.snapshot, m.low, m.high, cut_tick.is_requested
  from notifyq.current_horizon(
    coalesce(v_last.low, 0), pg_snapshot_xmax(v_last.snapshot), v_fresh
  ) as m
  returning id into v_id;
  return v_id;
end;
$$;

create or replace function messages.tick(stream text default null)
  returns bigint language plpgsql security definer
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
  'without events, and a subscriber can be set to it. Events are delivered without it. Without a '
  'stream: of all streams from which the caller may consume; returns how many. Raises NQ007 '
  'without the right to consume, and NQ020 for an unknown stream.';

-- A position as a batch that ends there.
create or replace function notifyq.position_batch(stream messages.stream, "position" text)
  returns notifyq.batch language plpgsql
as $$
declare
  v_batch notifyq.batch;
  v_fresh bigint := notifyq.fresh_low();
  v_tick notifyq.tick;
  v_id bigint;
  v_time timestamptz;
begin
  perform notifyq.check_given('position', position_batch.position is not null);
  if position_batch.position ~ '^[0-9]{1,18}$' then
    v_id := position_batch.position::bigint;
  elsif position_batch.position not in ('last', 'now', 'start') then
    begin
      v_time := position_batch.position::timestamptz;
    exception
      when others then
        perform notifyq.raise_invalid(
          format('%L is not a position', left(position, 100)),
          'give last, now, start, the number of a tick, or a time with its zone'
        );
    end;
  end if;
  if position_batch.position <> 'start' then
    select t.* into v_tick
    from notifyq.tick as t
    where t.stream = position_batch.stream.id
      and t.id between coalesce(v_id, 0) and coalesce(v_id, 9223372036854775807)
      and (v_time is null or t.created_at <= v_time)
    order by t.id desc
    limit 1;
  end if;
  if v_id is not null and v_tick.id is null then
    perform notifyq.raise_invalid(
      format('stream %L has no tick %s, or has deleted it', stream.name, v_id),
      'give `start` for the oldest event that is kept'
    );
  end if;
  if position_batch.position = 'now' then
    select h.low, h.snapshot, h.high into v_tick.low, v_tick.snapshot, v_tick.high
    from notifyq.current_horizon(
      coalesce(v_tick.low, 0), pg_snapshot_xmax(v_tick.snapshot), v_fresh
    ) as h;
  end if;
  v_batch.kind := 'position';
  v_batch.is_last := true;
  -- Before all events that are kept: no transaction has an id below 3.
  v_batch.upto := coalesce(v_tick.snapshot, '3:3:');
  v_batch.upto_low := coalesce(v_tick.low, 0);
  v_batch.upto_high := coalesce(v_tick.high, 0);
  v_batch.tick := coalesce(v_tick.id, 0);
  v_batch.seen := v_batch.upto;
  v_batch.seen_low := v_batch.upto_low;
  v_batch.after_id := 0;
  v_batch.last_id := v_batch.upto_high;
  return v_batch;
end;
$$;

create or replace function messages.subscribe(
  stream text, subscriber text, "position" text default 'last'
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_stream messages.stream := notifyq.find_stream(subscribe.stream);
  v_position notifyq.batch := notifyq.position_batch(v_stream, coalesce(position, 'last'));
begin
  perform notifyq.check_access(v_stream.name, 'consume from');
  perform notifyq.check_name('subscriber', subscribe.subscriber);
  perform notifyq.check_position(v_position.upto);
  -- Excludes drop_stream(), and maintenance while it truncates segments.
  perform from messages.stream as s where s.id = v_stream.id for share;
  insert into messages.subscription (stream, name)
  values (v_stream.id, subscribe.subscriber)
  on conflict on constraint subscription_stream_name_pk do nothing
  returning id into v_position.subscription;
  if not found then
    return false;
  end if;
  perform notifyq.add_batch(v_position, 0, null);
  return true;
end;
$$;
comment on function messages.subscribe(text, text, text) is
  'Deliver every event of the stream from a position on to a subscriber. position: last or null '
  '(the newest tick: events of the last second are not missed), now, start (the oldest event that '
  'is kept), the number of a tick, or a time as text (the newest tick before it). False: it '
  'subscribed before, and keeps its position. Raises NQ020 for an unknown stream and NQ003 for an '
  'invalid position.';

-- The open batches of a subscription, the oldest first.
create or replace function notifyq.list_open_batches(subscription bigint)
  returns setof notifyq.batch language sql stable
  set enable_seqscan = off
as $$
  select b.*
  from notifyq.batch as b
  where b.subscription = list_open_batches.subscription
    and b.kind <> 'position'
    and not exists (select from notifyq.batch_end as e where e.batch = b.id)
  order by b.id;
$$;

-- End an open batch that the caller has locked: finish_batch() then returns false.
create or replace function notifyq.revoke_batch(batch notifyq.batch)
  returns void language plpgsql
as $$
begin
  insert into notifyq.batch_end (batch, is_finished) values (batch.id, false)
  on conflict on constraint batch_end_batch_pk do nothing;
  delete from notifyq.event_retry as r where r.batch = revoke_batch.batch.id and r.due_at is null;
  -- Events that wait to be delivered again still do.
  update notifyq.event_retry as r set batch = null where r.batch = revoke_batch.batch.id;
end;
$$;

-- Revoke the open batches, and continue at another position.
create or replace function notifyq.set_position(subscription bigint, "position" notifyq.batch)
  returns void language plpgsql
as $$
begin
  perform from messages.subscription as u
  where u.id = set_position.subscription
  for no key update;
  perform notifyq.lock_batch(b.id), notifyq.revoke_batch(b)
  from notifyq.list_open_batches(set_position.subscription) as b;
  position.subscription := set_position.subscription;
  perform notifyq.add_batch(
    position, coalesce((notifyq.last_batch(set_position.subscription)).id, 0), null
  );
end;
$$;

create or replace function messages.seek(stream text, subscriber text, "position" text)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
  v_stream messages.stream := notifyq.find_stream(stream);
  v_position notifyq.batch := notifyq.position_batch(v_stream, position);
begin
  perform notifyq.check_position(v_position.upto);
  perform notifyq.set_position(v_subscription.id, v_position);
  perform notifyq.notify_stream(v_stream);
end;
$$;
comment on function messages.seek(text, text, text) is
  'Set a subscriber to another position of its stream, see subscribe(): back to get events again, '
  'or forth to leave some out. Open batches are revoked; events of retry_event() still come. '
  'Raises NQ021 for an unknown subscriber.';

create or replace function notifyq.end_subscription(subscription bigint)
  returns void language plpgsql
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
  returns boolean language plpgsql security definer
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
  'End a subscription, with its open batches and events that wait to be delivered again. False: '
  'there is none.';

create or replace function messages.drop_stream(name text, force boolean default false)
  returns integer language plpgsql security definer
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
      hint = 'call messages.unsubscribe() for each, or drop it with force => true';
  end if;
  perform notifyq.end_subscription(u.id) from unnest(v_subscriptions) as u (id);
  delete from notifyq.tick as t where t.stream = v_stream.id;
  delete from messages.queue_grant as g where g.queue = v_stream.name;
  delete from messages.read_grant as g where g.queue = v_stream.name;
  delete from messages.stream as s where s.id = v_stream.id;
  -- Maintenance truncates them, once nobody writes to them.
  update notifyq.segment as s
  set stream = null, closed_at = coalesce(s.closed_at, clock_timestamp()),
    changed_by = pg_current_xact_id()
  where s.stream = v_stream.id;
  return cardinality(v_subscriptions);
end;
$$;
comment on function messages.drop_stream(text, boolean) is
  'Drop a stream with its events and, with force, its subscriptions. Returns how many '
  'subscriptions there were. Raises NQ020 for an unknown stream, and NQ025 for a stream with '
  'subscribers.';
