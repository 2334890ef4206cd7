-- Batches: cut the next batch of a subscription, and read it.
--
-- raises: NQ020 stream not found, NQ021 subscription not found, NQ022 batch not open, NQ003 invalid
-- argument, NQ903 not adopted, NQ007 no right to the stream

create or replace function notifyq.find_subscription(stream text, subscriber text)
  returns messages.subscription
  language plpgsql
  stable
as $$
declare
  v_stream messages.stream;
  v_subscription messages.subscription;
begin
  -- One statement answers most: what cannot be so is told below.
  select u.* into v_subscription
  from messages.stream as s
  join messages.subscription as u on u.stream = s.id
  where s.name = find_subscription.stream
    and u.name = find_subscription.subscriber
    and not exists (select from messages.queue_grant);
  if found then
    return v_subscription;
  end if;
  v_stream := notifyq.find_stream(stream);
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(v_stream.name, 'consume from');
  end if;
  select u.* into v_subscription
  from messages.subscription as u
  where u.stream = v_stream.id
    and u.name = find_subscription.subscriber;
  if not found then
    raise exception using
      errcode = 'NQ021',
      message = format('%L does not subscribe to stream %L', subscriber, stream),
      hint = format('select messages.subscribe(%L, %L)', stream, subscriber);
  end if;
  return v_subscription;
end;
$$;

create or replace function notifyq.find_batch(id bigint)
  returns notifyq.batch
  language plpgsql
  stable
as $$
declare
  v_batch notifyq.batch;
begin
  select b.* into v_batch
  from notifyq.batch as b
  where b.id = find_batch.id
    and b.kind <> 'position';
  if not found then
    raise exception using
      errcode = 'NQ022',
      message = format('there is no batch %s', id),
      hint = 'ask next_batch() for the one that is open';
  end if;
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(s.name, 'consume from')
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    where u.id = v_batch.subscription;
  end if;
  return v_batch;
end;
$$;

create or replace function notifyq.open_batch(id bigint)
  returns notifyq.batch
  language plpgsql
  stable
as $$
declare
  v_batch notifyq.batch;
begin
  -- One statement answers most: what cannot be so is told below.
  select b.* into v_batch
  from notifyq.batch as b
  where b.id = open_batch.id
    and b.kind <> 'position'
    and not exists (select from notifyq.batch_end as e where e.batch = b.id)
    and not exists (select from messages.queue_grant);
  if found then
    return v_batch;
  end if;
  v_batch := notifyq.find_batch(id);
  if not notifyq.is_open(v_batch) then
    raise exception using
      errcode = 'NQ022',
      message = format('batch %s is finished', id),
      hint = 'ask next_batch() for the one that is open';
  end if;
  return v_batch;
end;
$$;

-- The events that follow the last batch: the rest of its window, else those of a new window, which
-- ends at the next tick that was asked for, or now; is_ahead: it is known that those are there.
-- Null: there are none.
create or replace function notifyq.next_events(
  last notifyq.batch,
  quantity integer,
  fresh bigint,
  is_ahead boolean default false
)
  returns notifyq.batch
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_next notifyq.batch := last;
  v_tick notifyq.tick;
  v_newest notifyq.tick;
  v_moment record;
  v_there bigint;
  v_last bigint;
begin
  if not last.is_last then
    v_next.last_id := last.upto_high;
    v_next.after_id := last.last_id;
    select a.there, a.last_id into v_there, v_last
    from notifyq.count_next_events(v_next, quantity) as a;
  end if;
  if last.is_last or v_there = 0 then
    select t.* into v_newest
    from notifyq.tick as t
    where t.stream = (
      select u.stream from messages.subscription as u where u.id = last.subscription
    )
    order by t.id desc
    limit 1;
    if v_newest.id > last.tick then
      select t.* into v_tick
      from notifyq.tick as t
      where t.stream = v_newest.stream
        and t.is_asked
        and t.id > last.tick
        and notifyq.progress_of(t.snapshot) > notifyq.progress_of(last.upto)
      order by t.id
      limit 1;
    end if;
    if v_tick.id is not null then
      v_next := notifyq.batch_window(
        last, notifyq.snapshot_until(v_tick.snapshot, pg_snapshot_xmax(last.upto)),
        greatest(v_tick.low, last.upto_low), v_tick.high
      );
      v_next.tick := v_tick.id;
    else
      v_moment := notifyq.snapshot_position(
        greatest(last.upto_low, v_newest.low),
        greatest(pg_snapshot_xmax(last.upto), pg_snapshot_xmax(v_newest.snapshot)),
        fresh
      );
      -- Nothing has ended since, or this transaction keeps a snapshot that is older.
      if notifyq.progress_of(v_moment.snapshot) <= notifyq.progress_of(last.upto) then
        return null;
      end if;
      v_next := notifyq.batch_window(last, v_moment.snapshot, v_moment.low, v_moment.high);
      v_next.tick := coalesce(v_newest.id, 0);
    end if;
    -- Not more than so many: where they all are to be had, they need not be counted.
    v_there := v_next.upto_high - v_next.after_id;
    if v_tick.id is null and not is_ahead and not notifyq.has_events(v_next) then
      return null;
    end if;
    if v_there > quantity then
      select a.there, a.last_id into v_there, v_last
      from notifyq.count_next_events(v_next, quantity) as a;
    end if;
  end if;
  v_next.kind := 'events';
  v_next.is_last := v_there < quantity or v_last is null;
  if not v_next.is_last then
    v_next.last_id := v_last;
  end if;
  return v_next;
end;
$$;

create or replace function notifyq.add_batch(batch notifyq.batch, last bigint, member text)
  returns bigint
  language plpgsql
as $$
#variable_conflict use_column
declare
  v_id bigint;
begin
  insert into notifyq.batch (
    subscription, previous, member, kind, seen, seen_low, upto, upto_low, upto_high, after_id,
    last_id, is_last, tick
  )
  values (
    add_batch.batch.subscription, add_batch.last, add_batch.member, add_batch.batch.kind,
    add_batch.batch.seen, add_batch.batch.seen_low, add_batch.batch.upto,
    add_batch.batch.upto_low, add_batch.batch.upto_high, add_batch.batch.after_id,
    add_batch.batch.last_id, add_batch.batch.is_last, add_batch.batch.tick
  )
  returning id into v_id;
  return v_id;
end;
$$;

-- Next batch: hand out batches, to one reader or to several members.

-- The batch that a member has open; an other's that was held for longer than takeover becomes its.
create or replace function notifyq.held_batch(
  subscription bigint,
  member text,
  takeover interval
)
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set jit = off
as $$
declare
  v_batch notifyq.batch;
begin
  select b.* into v_batch
  from notifyq.batch as b
  where b.subscription = held_batch.subscription
    and b.member = held_batch.member
  -- By the time: one that was taken over is newer to this member than its number says.
  order by b.opened_at desc
  limit 1;
  if found and notifyq.is_open(v_batch) then
    return v_batch.id;
  end if;
  select b.* into v_batch
  from notifyq.batch as b
  where b.subscription = held_batch.subscription
    and b.opened_at < clock_timestamp() - held_batch.takeover
    and b.kind <> 'position'
    and not exists (select from notifyq.batch_end as e where e.batch = b.id)
  order by b.previous
  limit 1;
  update notifyq.batch as b
  set member = held_batch.member, opened_at = clock_timestamp()
  where b.id = v_batch.id;
  return v_batch.id;
end;
$$;

-- What is to be seen once more, in a batch of its own that goes first. Null: nothing is due.
create or replace function notifyq.select_retry_batch(
  last notifyq.batch, quantity integer, member text
)
  returns bigint
  language plpgsql
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_first notifyq.event_retry;
  v_due bigint[];
  v_batch notifyq.batch := last;
  v_id bigint;
begin
  select r.* into v_first
  from notifyq.event_retry as r
  where r.subscription = last.subscription
    and r.batch is null
    and r.due_at <= v_now
  order by r.due_at, r.event_id
  limit 1;
  if not found then
    return null;
  end if;
  v_due := array(
    select r.event_id
    from notifyq.event_retry as r
    where r.subscription = last.subscription
      and r.batch is null
      and r.due_at <= v_now
      and r.part is not distinct from v_first.part
    order by r.due_at, r.event_id
    limit quantity
  );
  v_batch.kind := 'retries';
  v_id := notifyq.add_batch(v_batch, last.id, member);
  update notifyq.event_retry as r
  set batch = v_id
  where r.subscription = last.subscription
    and r.event_id = any (v_due);
  return v_id;
end;
$$;

-- Of a subscription that this transaction has locked. glanced: the batch that was the last one,
-- and finished, when events were seen ahead of it; null: none were.
create or replace function notifyq.select_batch(
  stream text,
  subscription messages.subscription,
  quantity integer,
  fresh bigint,
  member text default null,
  takeover interval default null,
  glanced bigint default null
)
  returns bigint
  language plpgsql
as $$
declare
  v_last notifyq.batch;
  v_next notifyq.batch;
  v_is_ahead boolean;
  v_id bigint;
begin
  v_last := notifyq.last_batch(select_batch.subscription.id);
  v_is_ahead := coalesce(v_last.id = select_batch.glanced, false);
  if not v_is_ahead then
    perform notifyq.check_position(v_last.upto);
  end if;
  if select_batch.member is not null then
    v_id := notifyq.held_batch(
      select_batch.subscription.id, select_batch.member, select_batch.takeover
    );
  elsif not v_is_ahead and notifyq.is_open(v_last) then
    v_id := v_last.id;
  end if;
  if v_id is null and not v_is_ahead then
    v_id := notifyq.select_retry_batch(v_last, select_batch.quantity, select_batch.member);
  end if;
  if v_id is not null then
    return v_id;
  end if;
  v_next := notifyq.next_events(
    v_last, select_batch.quantity, select_batch.fresh, v_is_ahead
  );
  if v_next.id is null then
    return null;
  end if;
  -- Where publishers are silent because this subscriber or another one attends, the others are to
  -- hear of it now.
  if v_next.upto::text <> v_last.upto::text
    and exists (
      select from messages.subscription as u
      where u.stream = select_batch.subscription.stream and u.id <> select_batch.subscription.id
    )
    and not pg_try_advisory_xact_lock_shared(notifyq.stream_key(stream))
  then
    perform notifyq.notify_stream(notifyq.find_stream(stream));
  end if;
  return notifyq.add_batch(v_next, v_last.id, select_batch.member);
end;
$$;

create or replace function messages.next_batch(
  stream text,
  subscriber text,
  quantity integer default 10000,
  member text default null,
  takeover interval default null
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_fresh bigint := notifyq.fresh_low();
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
  v_glance record;
begin
  perform notifyq.check_quantity(next_batch.quantity, 1000000);
  perform notifyq.check_positive('takeover', next_batch.takeover);
  v_glance := notifyq.peek_batch(v_subscription.id, next_batch.member, next_batch.takeover);
  if v_glance.nothing then
    return null;
  end if;
  -- One at a time; whoever comes second is given the batch that the first was given.
  perform from messages.subscription as u where u.id = v_subscription.id for no key update;
  if not found then
    v_subscription := notifyq.find_subscription(stream, subscriber);
  end if;
  if current_setting('transaction_isolation') = 'read committed' then
    return notifyq.select_batch(
      stream, v_subscription, next_batch.quantity, v_fresh, next_batch.member,
      next_batch.takeover, case when v_glance.is_ahead then v_glance.last end
    );
  end if;
  begin
    return notifyq.select_batch(
      stream, v_subscription, next_batch.quantity, v_fresh, next_batch.member,
      next_batch.takeover, case when v_glance.is_ahead then v_glance.last end
    );
  exception
    -- The newest batch that its snapshot sees has been followed by another one. The standard's own
    -- code, which whoever works with such transactions tries again after.
    when unique_violation then
      raise sqlstate '40001' using
        message = format(
          'another session has gone on with %L since this transaction began', subscriber
        ),
        hint = 'ask again in a new transaction, best with the isolation level read committed';
  end;
end;
$$;
comment on function messages.next_batch(text, text, integer, text, interval) is
  'The batch that the subscriber is to work on, or null where nothing is there: the same in every '
  'session until finish_batch(), or recover_batch(), after which its events come in smaller ones. '
  'It has at most quantity (up to 1000000) events, and none only where it ends at a tick() before '
  'which nothing was published. Events to be seen again come in a '
  'batch of their own. With member several sessions share the subscription: each has a batch of '
  'its own, and one that another member has held for longer than takeover passes to this one. '
  'Raises NQ020 and NQ021 for an unknown stream and subscriber, NQ903 in a database that was '
  'restored and not adopted; 40001 in a repeatable read that another session has overtaken.';

-- Read batch: the events of a batch.

-- The text of a query for what is in a batch. Whoever hands it out runs that himself: each function
-- that the events went through would store them once more.
create or replace function notifyq.batch_query(batch notifyq.batch)
  returns text
  language plpgsql
  stable
as $$
begin
  if batch.kind = 'retries' then
    return format(
      'select r.event_id, r.created_at, r.type, r.key, r.message, r.headers, '
      'nullif(r.retries, 0), r.reason '
      'from notifyq.event_retry as r '
      'where r.batch = %L and r.event_id > %L and r.event_id <= %L '
      'order by r.event_id',
      batch.id, batch.after_id, batch.last_id
    );
  end if;
  -- A transaction that keeps an older snapshot would see a part of it, and take it for the whole.
  if notifyq.progress_of(pg_current_snapshot()) < notifyq.progress_of(batch.upto) then
    perform notifyq.raise_invalid(
      format('batch %s is younger than the snapshot of this transaction', batch.id),
      'read it in a new transaction'
    );
  end if;
  return notifyq.window_query(batch);
end;
$$;

-- Those that lie between its two ids.
create or replace function notifyq.read_events(batch notifyq.batch)
  returns setof messages.batch_event
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
begin
  return query execute notifyq.batch_query(batch);
end;
$$;

create or replace function messages.batch_events(batch bigint)
  returns setof messages.batch_event
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_batch notifyq.batch := notifyq.open_batch(batch);
begin
  if v_batch.kind = 'retries' then
    v_batch.after_id := 0;
    v_batch.last_id := 9223372036854775807;
  end if;
  return query execute notifyq.batch_query(v_batch);
end;
$$;
comment on function messages.batch_events(bigint) is
  'The events of an open batch by id, the same each time. retries is null for one that is seen for '
  'the first time, else how often it was retried, with the reason. Raises NQ022 for a batch that '
  'is finished or unknown.';
