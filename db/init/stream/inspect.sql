-- Inspect: streams, subscriptions, batches, and their lag.
--
-- raises: NQ020 stream not found, NQ021 subscription not found, NQ022 batch not found, NQ003
-- invalid argument, NQ003, NQ007 no right to the stream

create or replace function messages.stream_info(stream text default null)
  returns setof messages.stream_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if stream_info.stream is not null then
    perform notifyq.find_stream(stream_info.stream);
  end if;
  return query
  select s.name, s.created_at,
    (select count(*)::integer from messages.subscription as u where u.stream = s.id),
    g.segments, g.bytes, g.oldest_at, t.id, t.created_at, s.retention, s.max_lag, s.max_events,
    s.max_bytes, s.bell, s.paused, s.durable, s.payload_type, s.payload_schema::jsonb
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
  where s.name = stream_info.stream or stream_info.stream is null
  order by s.name;
end;
$$;
comment on function messages.stream_info(text) is
  'One stream or all, with policy: how many subscribe, the tables and bytes that it takes now, '
  'since when events are kept, and its newest tick. Raises NQ020 for an unknown stream.';

-- What a subscription has yet to finish, as one batch.
create or replace function notifyq.unread_batch(subscription bigint)
  returns notifyq.batch
  language plpgsql
  stable
as $$
declare
  v_unread notifyq.batch;
  v_is_over boolean;
  v_moment record;
  v_late xid8[];
begin
  -- From the oldest batch that is open, else from the newest.
  select b.* into v_unread
  from notifyq.batch as b
  left join notifyq.batch_end as e on e.batch = b.id
  where b.subscription = unread_batch.subscription
  order by b.kind = 'events' and e.batch is null desc,
    case when b.kind = 'events' and e.batch is null then b.previous end, b.previous desc
  limit 1;
  v_is_over := v_unread.kind <> 'events' or not notifyq.is_open(v_unread);
  v_unread.kind := 'events';  -- also behind a batch of what was seen once more
  v_moment := notifyq.snapshot_position(v_unread.upto_low, pg_snapshot_xmax(v_unread.upto), null);
  if v_is_over and v_unread.is_last then
    return notifyq.batch_window(v_unread, v_moment.snapshot, v_moment.low, v_moment.high);
  end if;
  v_late := notifyq.late_transactions(v_unread);
  if v_is_over then
    v_unread.after_id := v_unread.last_id;
  end if;
  v_unread.upto := v_moment.snapshot;
  v_unread.upto_low := v_moment.low;
  v_unread.upto_high := v_moment.high;
  v_unread.last_id := v_moment.high;
  -- What has ended since the open batch was cut may have smaller ids than all that are in it.
  if not v_is_over and v_unread.after_id <= v_unread.seen_low
    and cardinality(notifyq.late_transactions(v_unread)) > cardinality(v_late)
  then
    v_unread.after_id := 0;
  end if;
  return v_unread;
end;
$$;

create or replace function notifyq.first_unread_at(unread notifyq.batch)
  returns timestamptz
  language plpgsql
  stable
as $$
begin
  unread.last_id := (notifyq.count_next_events(unread, 1)).last_id;
  return (select min(e.created_at) from notifyq.read_events(unread) as e);
end;
$$;

create or replace function messages.subscription_info(
  stream text default null,
  subscriber text default null
)
  returns setof messages.subscription_report
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_subscription record;
  v_unread notifyq.batch;
begin
  if subscription_info.subscriber is not null then
    perform notifyq.find_subscription(subscription_info.stream, subscription_info.subscriber);
  elsif subscription_info.stream is not null then
    perform notifyq.find_stream(subscription_info.stream);
  end if;
  for v_subscription in
    select u.id, u.stream as stream_id, s.name as stream, u.name as subscriber
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    where (s.name = subscription_info.stream or subscription_info.stream is null)
      and (u.name = subscription_info.subscriber or subscription_info.subscriber is null)
    order by s.name, u.name
  loop
    v_unread := notifyq.unread_batch(v_subscription.id);
    return query
    select v_subscription.stream, v_subscription.subscriber,
      coalesce(clock_timestamp() - notifyq.first_unread_at(v_unread), interval '0'),
      (notifyq.count_next_events(v_unread, 1000000)).there, l.opened_at, l.tick, o.id,
      (
        select min(t.id) from notifyq.tick as t
        where t.stream = v_subscription.stream_id and t.id > l.tick
      ),
      (
        select count(*) from notifyq.event_retry as r
        where r.subscription = v_subscription.id and r.due_at is not null
      ),
      messages.dead_count(v_subscription.stream, v_subscription.subscriber)::bigint,
      o.members
    from (
      select b.* from notifyq.batch as b
      where b.subscription = v_subscription.id order by b.previous desc limit 1
    ) as l
    cross join lateral (
      select min(b.id), count(distinct b.member)::integer
      from notifyq.batch as b
      where b.subscription = v_subscription.id
        and b.kind <> 'position'
        and not exists (select from notifyq.batch_end as e where e.batch = b.id)
    ) as o (id, members);
  end loop;
end;
$$;
comment on function messages.subscription_info(text, text) is
  'How far subscribers are: lag is the age of the oldest event that is not finished, pending how '
  'many those are (up to 1000000), last_seen_at when a batch was last handed out, last_tick the '
  'newest tick then, current_batch the oldest that is open, next_tick the one after last_tick, '
  'retries the events that are to be seen again, dead those in the archive, members how many have '
  'a batch open. Raises NQ020 and NQ021.';

create or replace function messages.batch_info(batch bigint)
  returns setof messages.batch_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_batch notifyq.batch := notifyq.find_batch(batch_info.batch);
begin
  return query
  select v_batch.id, s.name, u.name, v_batch.member, v_batch.opened_at, e.ended_at,
    v_batch.kind = 'retries', greatest(v_batch.after_id, v_batch.seen_low) + 1, v_batch.last_id,
    v_batch.seen, v_batch.upto, nullif(p.tick, 0), nullif(v_batch.tick, 0), b.created_at,
    t.created_at, clock_timestamp() - case
      when t.is_asked and notifyq.progress_of(t.snapshot) >= notifyq.progress_of(v_batch.upto)
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
  'One batch: whose it is, since when, and between which snapshots and ids its events lie. tick is '
  'the newest tick that there was when its end was determined, previous_tick that of the batch '
  'before it, both with their times; null: none, or it is no longer kept. lag is how long ago the '
  'batch was cut: at the tick() that it ends at, else when it was opened. Raises NQ022 for an '
  'unknown batch.';

-- Open batches: what subscribers have at this moment, and since when.

create or replace function notifyq.open_batches(
  stream text default null,
  quantity integer default 100
)
  returns setof messages.batch_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
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
      and not exists (select from notifyq.batch_end as e where e.batch = b.id)
    order by b.opened_at, b.id
    limit open_batches.quantity
  ) as o
  cross join lateral messages.batch_info(o.id) as i
  order by i.opened_at, i.batch;
end;
$$;
comment on function notifyq.open_batches(text, integer) is
  'The batches that subscribers of a stream (null: of all) have open, as batch_info() reports '
  'them, the oldest first, up to quantity. Raises NQ020 for an unknown stream.';

-- Lags: how far behind subscribers are, for those who ask again and again.

create or replace function notifyq.subscription_lags(most integer default 10000)
  returns setof messages.subscription_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_subscription record;
  v_unread notifyq.batch;
  v_pending bigint;
begin
  perform notifyq.check_quantity(subscription_lags.most, 1000000);
  for v_subscription in
    select u.id, s.name as stream, u.name as subscriber
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    order by s.name, u.name
  loop
    v_unread := notifyq.unread_batch(v_subscription.id);
    v_pending := (notifyq.count_next_events(v_unread, subscription_lags.most)).there;
    return query
    select v_subscription.stream, v_subscription.subscriber,
      case
        when v_pending = 0 then interval '0'
        else coalesce(
          clock_timestamp() - notifyq.first_unread_at(v_unread), interval '0'
        )
      end,
      v_pending,
      (
        select b.opened_at from notifyq.batch as b
        where b.subscription = v_subscription.id order by b.previous desc limit 1
      ),
      null::bigint, null::bigint, null::bigint,
      (
        select count(*)
        from (
          select from notifyq.event_retry as r
          where r.subscription = v_subscription.id and r.due_at is not null
          limit subscription_lags.most
        ) as l
      ),
      null::bigint, null::integer;
  end loop;
end;
$$;
comment on function notifyq.subscription_lags(integer) is
  'How far behind each subscriber is: what messages.subscription_info() says of lag, pending and '
  'retries, of which up to most are counted, and of last_seen_at. The other columns are null, so '
  'that a call stays cheap. Raises NQ003.';

-- Events since: what was published into a stream after a snapshot, for whoever only looks on.

create or replace function messages.events_since(stream text, seen pg_snapshot)
  returns setof messages.batch_event
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_stream messages.stream := notifyq.find_stream(stream);
  v_table text;
begin
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(v_stream.name, 'consume from');
  end if;
  for v_table in
    select notifyq.event_table(s.id)
    from notifyq.segment as s
    where s.stream = v_stream.id
      and (
        s.sealed is null
        or notifyq.progress_of(s.sealed) > notifyq.progress_of(events_since.seen)
      )
    order by s.low, s.id
  loop
    return query execute format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from notifyq.%I as e '
      'where e.xid >= %L and not pg_visible_in_snapshot(e.xid, %L) '
      'order by e.id',
      v_table, pg_snapshot_xmin(events_since.seen), events_since.seen
    );
  end loop;
end;
$$;
comment on function messages.events_since(text, pg_snapshot) is
  'Events whose publishing was not committed in a snapshot, as far as they are kept; no subscriber '
  'is needed, and none is moved. With the snapshot of snapshot_of(current_position()), and the '
  'position taken by the same statement for the next call, none is missed and none comes twice. '
  'Raises NQ020 for an unknown stream.';
