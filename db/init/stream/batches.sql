-- Batches: cut the next batch of a subscription, and read it.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ021
-- subscription not found, NQ022 batch not open, NQ903 not adopted

create or replace function notifyq.find_subscription(
  stream text, subscriber text, to_read boolean default false
)
  returns messages.subscription language plpgsql stable
as $$
declare
  v_stream messages.stream;
  v_subscription messages.subscription;
begin
  -- One statement for the common case; the others below.
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
  if not to_read and exists (select from messages.queue_grant) then
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

-- to_read: the caller of this function checks the right to read.
create or replace function notifyq.find_batch(id bigint, to_read boolean default false)
  returns notifyq.batch language plpgsql stable
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
      hint = 'call next_batch() for the open batch';
  end if;
  if not to_read and exists (select from messages.queue_grant) then
    perform notifyq.check_access(s.name, 'consume from')
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    where u.id = v_batch.subscription;
  end if;
  return v_batch;
end;
$$;

create or replace function notifyq.open_batch(id bigint)
  returns notifyq.batch language plpgsql stable
as $$
declare
  v_batch notifyq.batch;
begin
  -- One statement for the common case; the others below.
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
      hint = 'call next_batch() for the open batch';
  end if;
  return v_batch;
end;
$$;

-- The events that follow the last batch: the rest of its window, else those of a new window, which
-- ends at the next requested tick, or now. has_more: events are known to follow. Null: there are
-- none.
create or replace function notifyq.next_events(
  last notifyq.batch, quantity integer, fresh bigint, has_more boolean default false
)
  returns notifyq.batch language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_next notifyq.batch := last;
  v_tick notifyq.tick;
  v_newest notifyq.tick;
  v_horizon record;
  v_events bigint;
  v_last bigint;
begin
  if not last.is_last then
    v_next.last_id := last.upto_high;
    v_next.after_id := last.last_id;
    select a.events, a.last_id into v_events, v_last
    from notifyq.count_next_events(v_next, quantity) as a;
  end if;
  if last.is_last or v_events = 0 then
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
        and t.is_requested
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
      v_horizon := notifyq.current_horizon(
        greatest(last.upto_low, v_newest.low),
        greatest(pg_snapshot_xmax(last.upto), pg_snapshot_xmax(v_newest.snapshot)),
        fresh
      );
      -- No transaction has ended since, or this transaction keeps an older snapshot.
      if notifyq.progress_of(v_horizon.snapshot) <= notifyq.progress_of(last.upto) then
        return null;
      end if;
      v_next := notifyq.batch_window(last, v_horizon.snapshot, v_horizon.low, v_horizon.high);
      v_next.tick := coalesce(v_newest.id, 0);
    end if;
    -- An upper bound: if quantity covers it, the events need not be counted.
    v_events := v_next.upto_high - v_next.after_id;
    if v_tick.id is null and not has_more and not notifyq.has_events(v_next) then
      return null;
    end if;
    if v_events > quantity then
      select a.events, a.last_id into v_events, v_last
      from notifyq.count_next_events(v_next, quantity) as a;
    end if;
  end if;
  v_next.kind := 'events';
  v_next.is_last := v_events < quantity or v_last is null;
  if not v_next.is_last then
    v_next.last_id := v_last;
  end if;
  return v_next;
end;
$$;

create or replace function notifyq.add_batch(batch notifyq.batch, last bigint, member text)
  returns bigint language plpgsql
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

-- The open batch of a member; a batch that another member has held longer than takeover passes to
-- it.
create or replace function notifyq.held_batch(subscription bigint, member text, takeover interval)
  returns bigint language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_batch notifyq.batch;
begin
  v_batch := notifyq.newest_batch(held_batch.subscription, held_batch.member);
  if v_batch.id is not null and notifyq.is_open(v_batch) then
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

-- Events that are due again, as a batch of their own that goes first. Null: none is due.
create or replace function notifyq.select_retry_batch(
  last notifyq.batch, quantity integer, member text
)
  returns bigint language plpgsql
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

-- For a subscription that this transaction has locked. peeked: the last batch, if peek_batch()
-- found events after it.
create or replace function notifyq.select_batch(
  stream text,
  subscription messages.subscription,
  quantity integer,
  fresh bigint,
  member text default null,
  takeover interval default null,
  peeked bigint default null
)
  returns bigint language plpgsql
as $$
declare
  v_last notifyq.batch;
  v_next notifyq.batch;
  v_has_more boolean;
  v_id bigint;
begin
  v_last := notifyq.last_batch(select_batch.subscription.id);
  v_has_more := coalesce(v_last.id = select_batch.peeked, false);
  if not v_has_more then
    perform notifyq.check_position(v_last.upto);
  end if;
  if select_batch.member is not null then
    v_id := notifyq.held_batch(
      select_batch.subscription.id, select_batch.member, select_batch.takeover
    );
  elsif not v_has_more and notifyq.is_open(v_last) then
    v_id := v_last.id;
  end if;
  if v_id is null and not v_has_more then
    v_id := notifyq.select_retry_batch(v_last, select_batch.quantity, select_batch.member);
  end if;
  if v_id is not null then
    return v_id;
  end if;
  v_next := notifyq.next_events(
    v_last, select_batch.quantity, select_batch.fresh, v_has_more
  );
  if v_next.id is null then
    return null;
  end if;
  -- This subscriber or another one suppresses notifications: the others need one now.
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
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_fresh bigint := notifyq.fresh_low();
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
  v_peek record;
begin
  perform notifyq.check_quantity(next_batch.quantity, 1000000);
  perform notifyq.check_positive('takeover', next_batch.takeover);
  v_peek := notifyq.peek_batch(v_subscription.id, next_batch.member, next_batch.takeover);
  if v_peek.is_empty then
    return null;
  end if;
  -- One session at a time; the second one gets the batch of the first.
  perform from messages.subscription as u where u.id = v_subscription.id for no key update;
  if not found then
    v_subscription := notifyq.find_subscription(stream, subscriber);
  end if;
  if current_setting('transaction_isolation') = 'read committed' then
    return notifyq.select_batch(
      stream, v_subscription, quantity, v_fresh, member, takeover, v_peek.peeked
    );
  end if;
  begin
    return notifyq.select_batch(
      stream, v_subscription, quantity, v_fresh, member, takeover, v_peek.peeked
    );
  exception
    -- Another session has opened a batch that this snapshot does not see. After the standard code
    -- programs try again.
    when unique_violation then
      raise sqlstate '40001' using
        message = format(
          'another session has opened a batch of %L since this transaction began', subscriber
        ),
        hint = 'call it again in a new transaction, preferably in read committed';
  end;
end;
$$;
comment on function messages.next_batch(text, text, integer, text, interval) is
  'The batch that the subscriber is to work on, or null if there is none: the same in every '
  'session until finish_batch(), or recover_batch(), after which its events come in smaller '
  'batches. It has at most quantity (up to 1000000) events, and none only where it ends at a '
  'tick() without events before it. Events to be delivered again come in a batch of their own. '
  'With member, several sessions share the subscription: each has a batch of its own, and a batch '
  'that another member has held for longer than takeover passes to this one. Raises NQ020 and '
  'NQ021 for an unknown stream and subscriber, NQ903 in a database that was restored and not '
  'adopted; 40001 in a repeatable read transaction if another session has opened a batch since it '
  'began.';

-- The text of a query for the events of a batch. The caller executes it itself: each function that
-- returned the events would store them once more.
create or replace function notifyq.batch_query(batch notifyq.batch, event bigint default null)
  returns text language plpgsql stable
as $$
begin
  if batch.kind = 'retries' then
    return format(
      'select r.event_id, r.created_at, r.type, r.key, r.message, r.headers, '
      'nullif(r.retries, 0), r.reason '
      'from notifyq.event_retry as r '
      'where r.batch = %L and (%L::bigint is null or r.event_id = %L) '
      'order by r.event_id',
      batch.id, event, event
    );
  end if;
  -- A transaction with an older snapshot would see a part and take it for the whole batch.
  if notifyq.progress_of(pg_current_snapshot()) < notifyq.progress_of(batch.upto) then
    perform notifyq.raise_invalid(
      format('batch %s is newer than the snapshot of this transaction', batch.id),
      'read it in a new transaction'
    );
  end if;
  if event is not null then
    batch.after_id := greatest(batch.after_id, greatest(event, 1) - 1);
    batch.last_id := least(batch.last_id, event);
  end if;
  return notifyq.window_query(batch);
end;
$$;

create or replace function notifyq.read_events(batch notifyq.batch, event bigint default null)
  returns setof messages.batch_event language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
  return query execute notifyq.batch_query(batch, event);
end;
$$;

create or replace function messages.batch_events(batch bigint)
  returns setof messages.batch_event language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_batch notifyq.batch := notifyq.open_batch(batch);
begin
  return query execute notifyq.batch_query(v_batch);
end;
$$;
comment on function messages.batch_events(bigint) is
  'The events of an open batch by id, the same each time. retries is null for the first delivery, '
  'else how often the event was delivered again, with the reason. Raises NQ022 for a batch that '
  'is finished or unknown.';
