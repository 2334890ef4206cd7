-- Next batch: hand out batches, to one reader or to several members.
--
-- owns:    nothing
-- writes:  messages.batch, messages.event_retry; notifies new_event
-- calls:   messages._subscription, messages._check_quantity, messages._check_positive,
--          messages._check_position, messages._is_open, messages._next_events,
--          messages._add_batch, messages._ring_stream, messages._stream, messages._stream_key,
--          messages._fresh_low, messages._glance, messages._last_batch
-- raises:  NQ003 invalid argument, NQ020 stream not found, NQ021 subscription not found, NQ903 not
--          adopted

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
