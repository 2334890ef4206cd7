-- Inspect: streams, subscriptions, batches, and their lag.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ021
-- subscription not found, NQ022 batch not found

create or replace function messages.stream_info(stream text default null)
  returns setof messages.stream_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_readable text[] := notifyq.readable_names(stream_info.stream, to_workers => true);
begin
  if stream_info.stream is not null then
    perform notifyq.find_stream(stream_info.stream);
  end if;
  return query
  select s.name, s.created_at,
    (select count(*)::integer from messages.subscription as u where u.stream = s.id),
    g.segments, g.bytes, g.oldest_at, t.id, t.created_at, s.retention, s.max_lag, s.max_events,
    s.max_bytes, s.notify, s.paused, s.durable, s.payload_type, s.payload_schema::jsonb,
    s.encrypted
  from messages.stream as s
  cross join lateral (
    select count(*)::integer, coalesce(
        sum(pg_total_relation_size(to_regclass('notifyq.' || notifyq.event_table(e.id)))), 0
      )::bigint, min(e.opened_at)
    from notifyq.segment as e
    where e.stream = s.id
  ) as g (segments, bytes, oldest_at)
  left join lateral (
    select t.id, t.created_at
    from notifyq.tick as t where t.stream = s.id order by t.id desc limit 1
  ) as t on true
  where (s.name = stream_info.stream or stream_info.stream is null)
    and (v_readable is null or s.name = any (v_readable))
  order by s.name;
end;
$$;
comment on function messages.stream_info(text) is
  'One stream or all, with policy: how many subscriptions, tables and bytes it has, since when '
  'events are kept, and its newest tick. Raises NQ020 for an unknown stream.';

-- The unfinished events of a subscription, as one batch.
create or replace function notifyq.unread_batch(subscription bigint)
  returns notifyq.batch language plpgsql stable
as $$
declare
  v_unread notifyq.batch;
  v_is_over boolean;
  v_horizon record;
  v_late xid8[];
begin
  -- From the oldest open batch, else from the newest batch.
  select b.* into v_unread
  from notifyq.batch as b
  left join notifyq.batch_end as e on e.batch = b.id
  where b.subscription = unread_batch.subscription
  order by b.kind = 'events' and e.batch is null desc,
    case when b.kind = 'events' and e.batch is null then b.previous end, b.previous desc
  limit 1;
  v_is_over := v_unread.kind <> 'events' or not notifyq.is_open(v_unread);
  v_unread.kind := 'events';  -- also behind a batch of retries
  v_horizon := notifyq.current_horizon(v_unread.upto_low, pg_snapshot_xmax(v_unread.upto), null);
  if v_is_over and v_unread.is_last then
    return notifyq.batch_window(v_unread, v_horizon.snapshot, v_horizon.low, v_horizon.high);
  end if;
  v_late := notifyq.late_transactions(v_unread);
  if v_is_over then
    v_unread.after_id := v_unread.last_id;
  end if;
  v_unread.upto := v_horizon.snapshot;
  v_unread.upto_low := v_horizon.low;
  v_unread.upto_high := v_horizon.high;
  v_unread.last_id := v_horizon.high;
  -- Transactions that ended since the batch was cut may have smaller event ids than all in it.
  if not v_is_over and v_unread.after_id <= v_unread.seen_low
    and cardinality(notifyq.late_transactions(v_unread)) > cardinality(v_late)
  then
    v_unread.after_id := 0;
  end if;
  return v_unread;
end;
$$;

create or replace function notifyq.first_unread_at(unread notifyq.batch)
  returns timestamptz language plpgsql stable
as $$
begin
  unread.last_id := (notifyq.count_next_events(unread, 1)).last_id;
  return (select min(e.created_at) from notifyq.read_events(unread) as e);
end;
$$;

create or replace function notifyq.subscription_lags(
  most integer default 10000, stream text default null, subscriber text default null
)
  returns setof messages.subscription_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_subscription record;
  v_unread notifyq.batch;
  v_report messages.subscription_report;
begin
  perform notifyq.check_quantity(subscription_lags.most, 1000000);
  for v_subscription in
    select u.id, s.name as stream, u.name as subscriber
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    where (s.name = subscription_lags.stream or subscription_lags.stream is null)
      and (u.name = subscription_lags.subscriber or subscription_lags.subscriber is null)
      and notifyq.may_read(s.name)
    order by s.name, u.name
  loop
    v_unread := notifyq.unread_batch(v_subscription.id);
    v_report.stream := v_subscription.stream;
    v_report.subscriber := v_subscription.subscriber;
    v_report.pending := (notifyq.count_next_events(v_unread, subscription_lags.most)).events;
    v_report.lag := case
      when v_report.pending > 0 then clock_timestamp() - notifyq.first_unread_at(v_unread)
    end;
    v_report.lag := coalesce(v_report.lag, interval '0');
    v_report.last_seen_at := (notifyq.last_batch(v_subscription.id)).opened_at;
    v_report.retries := (
      select count(*)
      from (
        select from notifyq.event_retry as r
        where r.subscription = v_subscription.id and r.due_at is not null
        limit subscription_lags.most
      ) as l
    );
    return next v_report;
  end loop;
end;
$$;
comment on function notifyq.subscription_lags(integer, text, text) is
  'How far behind each subscriber is: stream, subscriber, lag, pending, last_seen_at and retries '
  'as in messages.subscription_info(). Counts up to most pending events and retries. The other '
  'columns are null, which keeps a call cheap. Leaves out streams that are closed to the caller, '
  'unless it is a reader. Raises NQ003.';

create or replace function messages.subscription_info(
  stream text default null, subscriber text default null
)
  returns setof messages.subscription_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  -- Before an error could name streams that a viewer may not read.
  perform notifyq.readable_names(subscription_info.stream, to_workers => true);
  if subscription_info.subscriber is not null then
    perform notifyq.find_subscription(
      subscription_info.stream, subscription_info.subscriber,
      notifyq.may_read(subscription_info.stream)
    );
  elsif subscription_info.stream is not null then
    perform notifyq.find_stream(subscription_info.stream);
  end if;
  return query
  select l.stream, l.subscriber, l.lag, l.pending, l.last_seen_at, b.tick, o.id,
    (select min(t.id) from notifyq.tick as t where t.stream = s.id and t.id > b.tick),
    (
      select count(*) from notifyq.event_retry as r
      where r.subscription = u.id and r.due_at is not null
    ),
    messages.dead_count(l.stream, l.subscriber)::bigint, o.members
  from notifyq.subscription_lags(
    1000000, subscription_info.stream, subscription_info.subscriber
  ) as l
  join messages.stream as s on s.name = l.stream
  join messages.subscription as u on u.stream = s.id and u.name = l.subscriber
  cross join lateral notifyq.last_batch(u.id) as b
  cross join lateral (
    select min(b.id), count(distinct b.member)::integer
    from notifyq.list_open_batches(u.id) as b
  ) as o (id, members)
  order by s.name, u.name;
end;
$$;
comment on function messages.subscription_info(text, text) is
  'How far subscribers are: lag is the age of the oldest unfinished event, pending how many those '
  'are (up to 1000000), last_seen_at when the last batch was opened, last_tick the newest tick '
  'then, current_batch the oldest open one, next_tick the one after last_tick, retries the events '
  'to be delivered again, dead those in the archive, members how many have a batch open. Leaves '
  'out streams that are closed to the caller, unless it is a reader. Raises NQ020 and NQ021.';

create or replace function messages.batch_info(batch bigint)
  returns setof messages.batch_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_batch notifyq.batch := notifyq.find_batch(batch_info.batch, to_read => true);
begin
  perform notifyq.check_readable(s.name)
  from messages.subscription as u
  join messages.stream as s on s.id = u.stream
  where u.id = v_batch.subscription;
  return query
  select v_batch.id, s.name, u.name, v_batch.member, v_batch.opened_at, e.ended_at,
    v_batch.kind = 'retries', greatest(v_batch.after_id, v_batch.seen_low) + 1, v_batch.last_id,
    v_batch.seen, v_batch.upto, nullif(p.tick, 0), nullif(v_batch.tick, 0), b.created_at,
    t.created_at, clock_timestamp() - case
      when t.is_requested and notifyq.progress_of(t.snapshot) >= notifyq.progress_of(v_batch.upto)
        then t.created_at
      else v_batch.opened_at
    end
  from messages.subscription as u
  join messages.stream as s on s.id = u.stream
  left join notifyq.batch_end as e on e.batch = v_batch.id
  left join notifyq.batch as p on p.id = v_batch.previous
  left join notifyq.tick as b on b.stream = s.id and b.id = p.tick
  left join notifyq.tick as t on t.stream = s.id and t.id = v_batch.tick
  where u.id = v_batch.subscription;
end;
$$;
comment on function messages.batch_info(bigint) is
  'One batch: its subscription, its times, and the snapshots and ids that its events lie between. '
  'tick is the newest tick when its end was set, previous_tick that of the batch before it, both '
  'with their times; null: none, or it was deleted. lag is how long ago the batch was cut: at the '
  'tick() that ends it, else when it was opened. Raises NQ022 for an unknown batch, NQ007 without '
  'the right to its stream.';

create or replace function notifyq.open_batches(
  stream text default null, quantity integer default 100
)
  returns setof messages.batch_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
declare
  v_readable text[] := notifyq.readable_names(stream);
begin
  perform notifyq.check_quantity(open_batches.quantity, 10000);
  if open_batches.stream is not null then
    perform notifyq.find_stream(open_batches.stream);
  end if;
  return query
  select i.*
  from (
    select b.id
    from notifyq.batch as b
    join messages.subscription as u on u.id = b.subscription
    join messages.stream as s on s.id = u.stream
    where b.kind <> 'position'
      and (open_batches.stream is null or s.name = open_batches.stream)
      and (v_readable is null or s.name = any (v_readable))
      and not exists (select from notifyq.batch_end as e where e.batch = b.id)
    order by b.opened_at, b.id
    limit open_batches.quantity
  ) as o
  cross join lateral messages.batch_info(o.id) as i
  order by i.opened_at, i.batch;
end;
$$;
comment on function notifyq.open_batches(text, integer) is
  'The open batches of a stream (null: of all), as batch_info() reports them, the oldest first, '
  'up to quantity. Raises NQ020 for an unknown stream.';

create or replace function messages.events_since(stream text, seen text default null)
  returns setof messages.batch_event language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_seen pg_snapshot := notifyq.snapshot_since(seen);
  v_stream messages.stream;
  v_table text;
begin
  perform notifyq.check_readable(stream);
  v_stream := notifyq.find_stream(stream);
  for v_table in
    select notifyq.event_table(s.id)
    from notifyq.segment as s
    where s.stream = v_stream.id
      and (s.sealed is null or notifyq.progress_of(s.sealed) > notifyq.progress_of(v_seen))
    order by s.low, s.id
  loop
    return query execute format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from notifyq.%I as e '
      'where e.xid >= %L and not pg_visible_in_snapshot(e.xid, %L) '
      'order by e.id',
      v_table, pg_snapshot_xmin(v_seen), v_seen
    );
  end loop;
end;
$$;
comment on function messages.events_since(text, text) is
  'Events that were committed after the position seen, as far as they are kept. seen is a text of '
  'current_position(); null: all. It needs no subscriber and moves none. Read current_position() '
  'in the same statement and pass it as seen next time: no event is missed and none comes twice. '
  'Raises NQ007 without the right to read the stream, NQ020 for an unknown one, NQ903 and NQ904 as '
  'dead_since().';
