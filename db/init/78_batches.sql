-- Batches: the next part of a stream for a subscriber.
--
-- owns:    nothing
-- writes:  messages.batch
-- calls:   messages._stream, messages._check_access, messages._moment, messages._until,
--          messages._passed, messages._window, messages._is_ahead, messages._ahead,
--          messages._is_open
-- raises:  NQ020 stream not found, NQ021 subscription not found, NQ022 batch not open

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
