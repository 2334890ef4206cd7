-- Batches: cut the next batch of a subscription, and read it.
--
-- raises: NQ020 stream not found, NQ021 subscription not found, NQ022 batch not open, NQ003 invalid
-- argument, NQ903 not adopted, NQ007 no right to the stream

create or replace function messages._subscription(stream text, subscriber text)
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
  where s.name = _subscription.stream
    and u.name = _subscription.subscriber
    and not exists (select from messages.queue_grant);
  if found then
    return v_subscription;
  end if;
  v_stream := messages._stream(stream);
  if exists (select from messages.queue_grant) then
    perform messages._check_access(v_stream.name, 'consume from');
  end if;
  select u.* into v_subscription
  from messages.subscription as u
  where u.stream = v_stream.id
    and u.name = _subscription.subscriber;
  if not found then
    raise exception using
      errcode = 'NQ021',
      message = format('%L does not subscribe to stream %L', subscriber, stream),
      hint = format('select messages.subscribe(%L, %L)', stream, subscriber);
  end if;
  return v_subscription;
end;
$$;

create or replace function messages._batch(id bigint)
  returns messages.batch
  language plpgsql
  stable
as $$
declare
  v_batch messages.batch;
begin
  select b.* into v_batch
  from messages.batch as b
  where b.id = _batch.id
    and b.kind <> 'position';
  if not found then
    raise exception using
      errcode = 'NQ022',
      message = format('there is no batch %s', id),
      hint = 'ask next_batch() for the one that is open';
  end if;
  if exists (select from messages.queue_grant) then
    perform messages._check_access(s.name, 'consume from')
    from messages.subscription as u
    join messages.stream as s on s.id = u.stream
    where u.id = v_batch.subscription;
  end if;
  return v_batch;
end;
$$;

create or replace function messages._open_batch(id bigint)
  returns messages.batch
  language plpgsql
  stable
as $$
declare
  v_batch messages.batch;
begin
  -- One statement answers most: what cannot be so is told below.
  select b.* into v_batch
  from messages.batch as b
  where b.id = _open_batch.id
    and b.kind <> 'position'
    and not exists (select from messages.batch_end as e where e.batch = b.id)
    and not exists (select from messages.queue_grant);
  if found then
    return v_batch;
  end if;
  v_batch := messages._batch(id);
  if not messages._is_open(v_batch) then
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
create or replace function messages._next_events(
  last messages.batch,
  quantity integer,
  fresh bigint,
  is_ahead boolean default false
)
  returns messages.batch
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_next messages.batch := last;
  v_tick messages.tick;
  v_newest messages.tick;
  v_moment record;
  v_there bigint;
  v_last bigint;
begin
  if not last.is_last then
    v_next.last_id := last.upto_high;
    v_next.after_id := last.last_id;
    select a.there, a.last_id into v_there, v_last from messages._ahead(v_next, quantity) as a;
  end if;
  if last.is_last or v_there = 0 then
    select t.* into v_newest
    from messages.tick as t
    where t.stream = (
      select u.stream from messages.subscription as u where u.id = last.subscription
    )
    order by t.id desc
    limit 1;
    if v_newest.id > last.tick then
      select t.* into v_tick
      from messages.tick as t
      where t.stream = v_newest.stream
        and t.is_asked
        and t.id > last.tick
        and messages._passed(t.snapshot) > messages._passed(last.upto)
      order by t.id
      limit 1;
    end if;
    if v_tick.id is not null then
      v_next := messages._window(
        last, messages._until(v_tick.snapshot, pg_snapshot_xmax(last.upto)),
        greatest(v_tick.low, last.upto_low), v_tick.high
      );
      v_next.tick := v_tick.id;
    else
      v_moment := messages._moment(
        greatest(last.upto_low, v_newest.low),
        greatest(pg_snapshot_xmax(last.upto), pg_snapshot_xmax(v_newest.snapshot)),
        fresh
      );
      -- Nothing has ended since, or this transaction keeps a snapshot that is older.
      if messages._passed(v_moment.snapshot) <= messages._passed(last.upto) then
        return null;
      end if;
      v_next := messages._window(last, v_moment.snapshot, v_moment.low, v_moment.high);
      v_next.tick := coalesce(v_newest.id, 0);
    end if;
    -- Not more than so many: where they all are to be had, they need not be counted.
    v_there := v_next.upto_high - v_next.after_id;
    if v_tick.id is null and not is_ahead and not messages._is_ahead(v_next) then
      return null;
    end if;
    if v_there > quantity then
      select a.there, a.last_id into v_there, v_last from messages._ahead(v_next, quantity) as a;
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

create or replace function messages._add_batch(batch messages.batch, last bigint, member text)
  returns bigint
  language plpgsql
as $$
#variable_conflict use_column
declare
  v_id bigint;
begin
  insert into messages.batch (
    subscription, previous, member, kind, seen, seen_low, upto, upto_low, upto_high, after_id,
    last_id, is_last, tick
  )
  values (
    _add_batch.batch.subscription, _add_batch.last, _add_batch.member, _add_batch.batch.kind,
    _add_batch.batch.seen, _add_batch.batch.seen_low, _add_batch.batch.upto,
    _add_batch.batch.upto_low, _add_batch.batch.upto_high, _add_batch.batch.after_id,
    _add_batch.batch.last_id, _add_batch.batch.is_last, _add_batch.batch.tick
  )
  returning id into v_id;
  return v_id;
end;
$$;

-- Next batch: hand out batches, to one reader or to several members.

-- The batch that a member has open; an other's that was held for longer than takeover becomes its.
create or replace function messages._held_batch(
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
  v_batch messages.batch;
begin
  select b.* into v_batch
  from messages.batch as b
  where b.subscription = _held_batch.subscription
    and b.member = _held_batch.member
  -- By the time: one that was taken over is newer to this member than its number says.
  order by b.opened_at desc
  limit 1;
  if found and messages._is_open(v_batch) then
    return v_batch.id;
  end if;
  select b.* into v_batch
  from messages.batch as b
  where b.subscription = _held_batch.subscription
    and b.opened_at < clock_timestamp() - _held_batch.takeover
    and b.kind <> 'position'
    and not exists (select from messages.batch_end as e where e.batch = b.id)
  order by b.previous
  limit 1;
  update messages.batch as b
  set member = _held_batch.member, opened_at = clock_timestamp()
  where b.id = v_batch.id;
  return v_batch.id;
end;
$$;

-- What is to be seen once more, in a batch of its own that goes first. Null: nothing is due.
create or replace function messages._retry_batch(last messages.batch, quantity integer, member text)
  returns bigint
  language plpgsql
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_first messages.event_retry;
  v_due bigint[];
  v_batch messages.batch := last;
  v_id bigint;
begin
  select r.* into v_first
  from messages.event_retry as r
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
    from messages.event_retry as r
    where r.subscription = last.subscription
      and r.batch is null
      and r.due_at <= v_now
      and r.part is not distinct from v_first.part
    order by r.due_at, r.event_id
    limit quantity
  );
  v_batch.kind := 'retries';
  v_id := messages._add_batch(v_batch, last.id, member);
  update messages.event_retry as r
  set batch = v_id
  where r.subscription = last.subscription
    and r.event_id = any (v_due);
  return v_id;
end;
$$;

-- Of a subscription that this transaction has locked. glanced: the batch that was the last one,
-- and finished, when events were seen ahead of it; null: none were.
create or replace function messages._next_batch(
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
  v_last messages.batch;
  v_next messages.batch;
  v_is_ahead boolean;
  v_id bigint;
begin
  v_last := messages._last_batch(_next_batch.subscription.id);
  v_is_ahead := coalesce(v_last.id = _next_batch.glanced, false);
  if not v_is_ahead then
    perform messages._check_position(v_last.upto);
  end if;
  if _next_batch.member is not null then
    v_id := messages._held_batch(
      _next_batch.subscription.id, _next_batch.member, _next_batch.takeover
    );
  elsif not v_is_ahead and messages._is_open(v_last) then
    v_id := v_last.id;
  end if;
  if v_id is null and not v_is_ahead then
    v_id := messages._retry_batch(v_last, _next_batch.quantity, _next_batch.member);
  end if;
  if v_id is not null then
    return v_id;
  end if;
  v_next := messages._next_events(
    v_last, _next_batch.quantity, _next_batch.fresh, v_is_ahead
  );
  if v_next.id is null then
    return null;
  end if;
  -- Where publishers are silent because this subscriber or another one attends, the others are to
  -- hear of it now.
  if v_next.upto::text <> v_last.upto::text
    and exists (
      select from messages.subscription as u
      where u.stream = _next_batch.subscription.stream and u.id <> _next_batch.subscription.id
    )
    and not pg_try_advisory_xact_lock_shared(messages._stream_key(stream))
  then
    perform messages._ring_stream(messages._stream(stream));
  end if;
  return messages._add_batch(v_next, v_last.id, _next_batch.member);
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
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_fresh bigint := messages._fresh_low();
  v_subscription messages.subscription := messages._subscription(stream, subscriber);
  v_glance record;
begin
  perform messages._check_quantity(next_batch.quantity, 1000000);
  perform messages._check_positive('takeover', next_batch.takeover);
  v_glance := messages._glance(v_subscription.id, next_batch.member, next_batch.takeover);
  if v_glance.nothing then
    return null;
  end if;
  -- One at a time; whoever comes second is given the batch that the first was given.
  perform from messages.subscription as u where u.id = v_subscription.id for no key update;
  if not found then
    v_subscription := messages._subscription(stream, subscriber);
  end if;
  if current_setting('transaction_isolation') = 'read committed' then
    return messages._next_batch(
      stream, v_subscription, next_batch.quantity, v_fresh, next_batch.member,
      next_batch.takeover, case when v_glance.is_ahead then v_glance.last end
    );
  end if;
  begin
    return messages._next_batch(
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
create or replace function messages._batch_query(batch messages.batch)
  returns text
  language plpgsql
  stable
as $$
begin
  if batch.kind = 'retries' then
    return format(
      'select r.event_id, r.created_at, r.type, r.key, r.message, r.headers, '
      'nullif(r.retries, 0), r.reason '
      'from messages.event_retry as r '
      'where r.batch = %L and r.event_id > %L and r.event_id <= %L '
      'order by r.event_id',
      batch.id, batch.after_id, batch.last_id
    );
  end if;
  -- A transaction that keeps an older snapshot would see a part of it, and take it for the whole.
  if messages._passed(pg_current_snapshot()) < messages._passed(batch.upto) then
    perform messages._invalid(
      format('batch %s is younger than the snapshot of this transaction', batch.id),
      'read it in a new transaction'
    );
  end if;
  return messages._window_query(batch);
end;
$$;

-- Those that lie between its two ids.
create or replace function messages._events(batch messages.batch)
  returns setof messages.batch_event
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
begin
  return query execute messages._batch_query(batch);
end;
$$;

create or replace function messages.batch_events(batch bigint)
  returns setof messages.batch_event
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_batch messages.batch := messages._open_batch(batch);
begin
  if v_batch.kind = 'retries' then
    v_batch.after_id := 0;
    v_batch.last_id := 9223372036854775807;
  end if;
  return query execute messages._batch_query(v_batch);
end;
$$;
comment on function messages.batch_events(bigint) is
  'The events of an open batch by id, the same each time. retries is null for one that is seen for '
  'the first time, else how often it was retried, with the reason. Raises NQ022 for a batch that '
  'is finished or unknown.';
