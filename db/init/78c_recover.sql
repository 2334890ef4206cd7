-- Recover: what becomes of a batch whose reader is gone without a word.
--
-- One of its events may be what ended it, and nobody can tell which. So each time they come again
-- in batches of a tenth: what does no harm gets through, and what ends its readers is alone after a
-- few times, and dead after its last attempt.
--
-- owns:    nothing
-- writes:  messages.batch, messages.event_retry; notifies new_event
-- calls:   messages._subscription, messages._last_batch, messages._is_open,
--          messages._hold_batch, messages._batch,
--          messages.batch_events, messages._has_outcome, messages.fail_event,
--          messages.finish_batch, messages._ring_stream, messages._stream,
--          messages._check_attempts, messages._check_given
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ021
--          subscription not found, NQ022 batch not found

-- The newest batch of a member, or of a subscription that is not shared.
create or replace function messages._newest_batch(subscription bigint, member text)
  returns messages.batch
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_sort = off
  set jit = off
as $$
declare
  v_batch messages.batch;
begin
  if member is null then
    return messages._last_batch(subscription);
  end if;
  select b.* into v_batch
  from messages.batch as b
  where b.subscription = _newest_batch.subscription
    and b.member = _newest_batch.member
  order by b.opened_at desc
  limit 1;
  return v_batch;
end;
$$;

-- Its events that have no outcome yet, in parts; returns how many those are.
create or replace function messages._scatter(
  batch messages.batch,
  reason text,
  keeps_order boolean
)
  returns bigint
  language plpgsql
as $$
#variable_conflict use_column
declare
  v_count bigint;
begin
  insert into messages.event_retry as r (
    subscription, event_id, due_at, retries, reason, created_at, type, key, message, headers, part
  )
  select _scatter.batch.subscription, u.id, now_at, 1, _scatter.reason, u.created_at, u.type,
    u.key, u.message, u.headers, min(u.id) over (partition by u.place / ((u.quantity + 9) / 10))
  from (
    select e.*, row_number() over (order by e.id) - 1 as place, count(*) over () as quantity
    from messages.batch_events(_scatter.batch.id) as e
    where not messages._has_outcome(_scatter.batch, e.id)
  ) as u
  cross join clock_timestamp() as now_at
  order by u.id
  on conflict on constraint event_retry_subscription_event_id_pk do update
  set batch = null, retries = least(r.retries, 2147483646) + 1, reason = excluded.reason,
    part = excluded.part,
    -- Behind the others, which have done nothing yet, or before those that come after it.
    due_at = case when _scatter.keeps_order then r.due_at else excluded.due_at end;
  get diagnostics v_count = row_count;
  return v_count;
end;
$$;

create or replace function messages.recover_batch(
  stream text,
  subscriber text,
  max_attempts integer default 5,
  member text default null,
  keeps_order boolean default false
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_subscription messages.subscription := messages._subscription(stream, subscriber);
  v_batch messages.batch;
  v_undone messages.batch_event[];
  v_attempts integer;
  v_count bigint;
begin
  perform messages._check_given('max_attempts', recover_batch.max_attempts is not null);
  perform messages._check_attempts(max_attempts);
  perform from messages.subscription as u where u.id = v_subscription.id for no key update;
  v_batch := messages._newest_batch(v_subscription.id, member);
  perform messages._hold_batch(v_batch.id);
  v_batch := messages._newest_batch(v_subscription.id, member);
  if v_batch.id is null or not messages._is_open(v_batch) then
    return 0::bigint;
  end if;
  if v_batch.left_at is not null then
    update messages.batch as b set left_at = null where b.id = v_batch.id;
    return 0::bigint;
  end if;
  v_undone := array(
    select e
    from messages.batch_events(v_batch.id) as e
    where not messages._has_outcome(v_batch, e.id)
    limit 2
  );
  v_attempts := coalesce(v_undone[1].retries, 0) + 1;
  if cardinality(v_undone) = 1 and v_attempts >= max_attempts then
    perform messages.fail_event(
      v_batch.id, v_undone[1].id,
      format('delivered %s times, and its reader was gone before the end', v_attempts)
    );
    v_count := 1::bigint;
  else
    v_count := messages._scatter(v_batch, 'its reader was gone before the end', keeps_order);
  end if;
  perform messages.finish_batch(v_batch.id);
  perform messages._ring_stream(messages._stream(stream));
  return v_count;
end;
$$;
comment on function messages.recover_batch(text, text, integer, text, boolean) is
  'Say that whoever had the open batch of a subscriber, or of its member, is gone without a word, '
  'as if it had been killed. Each of its events that has no outcome has had an attempt, and comes '
  'again with those of the same tenth of the batch alone; one that was alone already is dead after '
  'max_attempts. With keeps_order they come before all that is behind them, else behind what waits '
  'to be seen again already. Returns how many events those are; 0 where no batch is open, or its '
  'reader has left it with leave_batch(). Call it in place of who is gone, before next_batch(). '
  'Raises NQ020 and NQ021 for an unknown stream and subscriber.';

create or replace function messages.leave_batch(batch bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_batch messages.batch;
begin
  perform messages._hold_batch(leave_batch.batch);
  v_batch := messages._batch(leave_batch.batch);
  if not messages._is_open(v_batch) then
    return false;
  end if;
  update messages.batch as b set left_at = clock_timestamp() where b.id = v_batch.id;
  return true;
end;
$$;
comment on function messages.leave_batch(bigint) is
  'Leave an open batch as it is: it comes again, and recover_batch() does not count this as an '
  'attempt. False: it is finished. Raises NQ022 for an unknown batch.';

create or replace function messages.next_retry(stream text, subscriber text)
  returns interval
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_subscription messages.subscription := messages._subscription(stream, subscriber);
begin
  return (
    select greatest(r.due_at - clock_timestamp(), interval '0')
    from messages.event_retry as r
    where r.subscription = v_subscription.id
      and r.batch is null
      and r.due_at is not null
    order by r.due_at
    limit 1
  );
end;
$$;
comment on function messages.next_retry(text, text) is
  'How long until the first event is due that the subscriber has put off with retry_event(); null: '
  'there is none. Raises NQ020 and NQ021 for an unknown stream and subscriber.';
