-- Settle: finish, retry, fail and recover a batch.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ021
-- subscription not found, NQ022 batch not open, NQ023 event not in the batch

-- Locked until the end of the transaction by each function that settles it or an event of it: two
-- sessions would else deadlock on its events.
create or replace function notifyq.lock_batch(id bigint)
  returns void language plpgsql
as $$
begin
  perform from notifyq.batch as b where b.id = lock_batch.id for no key update;
end;
$$;

create or replace function notifyq.has_outcome(batch notifyq.batch, event bigint)
  returns boolean language plpgsql stable
as $$
begin
  return exists (
    select from notifyq.event_retry as r
    where r.subscription = batch.subscription
      and r.event_id = event
      and (r.batch is distinct from batch.id or r.due_at is null)
  );
end;
$$;

-- Give an event of an open batch an outcome: deliver it again at due_at or, without one, fail it.
-- Returns the event; null if it has an outcome already.
create or replace function notifyq.settle_event(
  batch bigint, event bigint, due_at timestamptz, reason text
)
  returns messages.batch_event language plpgsql
as $$
declare
  v_batch notifyq.batch;
  v_event messages.batch_event;
begin
  perform notifyq.check_given('event', settle_event.event is not null);
  perform notifyq.lock_batch(settle_event.batch);
  v_batch := notifyq.open_batch(settle_event.batch);
  if notifyq.has_outcome(v_batch, settle_event.event) then
    return null;
  end if;
  select e.* into v_event from notifyq.read_events(v_batch, settle_event.event) as e;
  if not found then
    raise exception using
      errcode = 'NQ023',
      message = format('event %s is not in batch %s', settle_event.event, v_batch.id),
      hint = format('select messages.batch_events(%s) lists its events', v_batch.id);
  end if;
  insert into notifyq.event_retry as r (
    subscription, event_id, batch, due_at, retries, reason, created_at, type, key, message, headers
  )
  values (
    v_batch.subscription, v_event.id, case when settle_event.due_at is null then v_batch.id end,
    settle_event.due_at, (settle_event.due_at is not null)::integer, settle_event.reason,
    v_event.created_at, v_event.type, v_event.key, v_event.message, v_event.headers
  )
  on conflict on constraint event_retry_subscription_event_id_pk do update
  set batch = excluded.batch, due_at = excluded.due_at,
    retries = least(r.retries, 2147483646) + excluded.retries,
    reason = case when excluded.due_at is null then r.reason else excluded.reason end
  where r.batch = v_batch.id
    and r.due_at is not null;
  return case when found then v_event end;
end;
$$;

-- Of an encrypted stream the reasons are envelopes, too.
create or replace function notifyq.check_reason(batch bigint, reason text)
  returns void language plpgsql stable
as $$
begin
  perform notifyq.check_envelope(
    s.name, 'details', coalesce(notifyq.envelope_of(reason), to_jsonb(reason))
  )
  from notifyq.batch as b
  join messages.subscription as u on u.id = b.subscription
  join messages.stream as s on s.id = u.stream
  where b.id = check_reason.batch
    and s.encrypted;
end;
$$;

create or replace function messages.retry_event(
  batch bigint, event bigint, delay interval default interval '0', reason text default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if retry_event.delay < interval '0' then
    perform notifyq.raise_invalid(format('delay must not be negative: %s', retry_event.delay));
  end if;
  perform notifyq.check_duration('delay', retry_event.delay);
  perform notifyq.check_reason(batch, reason) where reason is not null;
  return (
    notifyq.settle_event(
      batch, event, clock_timestamp() + coalesce(retry_event.delay, interval '0'), reason
    )
  ).id is not null;
end;
$$;
comment on function messages.retry_event(bigint, bigint, interval, text) is
  'Deliver an event of an open batch once more to this subscriber, after delay, with the same id '
  'and time and with retries raised. False: it has an outcome already. Raises NQ003 without an '
  'event, NQ022 for a batch that is not open, NQ023 for an event that is not in it.';

create or replace function messages.retry_batch(
  batch bigint, delay interval default interval '0', reason text default null
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select count(*)
    from messages.batch_events(retry_batch.batch) as e
    where messages.retry_event(retry_batch.batch, e.id, retry_batch.delay, retry_batch.reason)
  );
end;
$$;
comment on function messages.retry_batch(bigint, interval, text) is
  'Call retry_event() for each event of an open batch that has no outcome yet; returns how many.';

create or replace function messages.fail_event(
  batch bigint,
  event bigint,
  reason text default null,
  status messages.message_status default 'failed'
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_event messages.batch_event;
begin
  perform notifyq.check_given('status', fail_event.status is not null);
  if fail_event.status = 'success' then
    perform notifyq.raise_invalid('an event that fails has another status than success');
  end if;
  perform notifyq.check_reason(batch, reason) where reason is not null;
  v_event := notifyq.settle_event(batch, event, null, reason);
  perform notifyq.archive_event(
    s.name, u.name, v_event.id, v_event.created_at, v_event.type, v_event.key, v_event.message,
    v_event.headers, coalesce(v_event.retries, 0) + 1, fail_event.reason,
    fail_event.status
  )
  from notifyq.batch as b
  join messages.subscription as u on u.id = b.subscription
  join messages.stream as s on s.id = u.stream
  where b.id = fail_event.batch
    and v_event.id is not null;
  return v_event.id is not null;
end;
$$;
comment on function messages.fail_event(bigint, bigint, text, messages.message_status) is
  'Archive an event of an open batch for this subscriber, with the reason and a status other than '
  'success: it is then a dead message, see dead_list(). False: it has an outcome already. Raises '
  'NQ003 for success, NQ022 for a batch that is not open, NQ023 for an event that is not in it.';

create or replace function messages.finish_batch(batch bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_batch notifyq.batch;
begin
  -- One statement for the common case; the others below.
  select b.* into v_batch
  from notifyq.batch as b
  where b.id = finish_batch.batch
    and b.kind <> 'position'
    and not exists (select from messages.queue_grant)
  for no key update;
  if not found then
    perform notifyq.lock_batch(finish_batch.batch);
    v_batch := notifyq.find_batch(finish_batch.batch);
  end if;
  insert into notifyq.batch_end (batch, is_finished)
  values (v_batch.id, true)
  on conflict on constraint batch_end_batch_pk do nothing;
  if not found then
    raise warning 'batch % was finished before', v_batch.id;
    return false;
  end if;
  delete from notifyq.event_retry as r where r.batch = v_batch.id;
  return true;
end;
$$;
comment on function messages.finish_batch(bigint) is
  'Finish a batch: next_batch() returns the next one. What the same transaction writes is written '
  'exactly once. False, with a warning: it was finished before, or revoked by seek(). Raises '
  'NQ022 for an unknown batch.';

-- The newest batch of a subscription: no other batch follows it.
create or replace function notifyq.last_batch(subscription bigint)
  returns notifyq.batch language plpgsql stable
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_last notifyq.batch;
begin
  select b.* into v_last
  from notifyq.batch as b
  where b.subscription = last_batch.subscription
  order by b.previous desc
  limit 1;
  return v_last;
end;
$$;

-- How far a subscription has come for good, as in progress_of(): it needs no older events.
create or replace function notifyq.needed_floor(subscription bigint)
  returns bigint language plpgsql stable
as $$
begin
  return (
    select min(
      notifyq.progress_of(
        case when b.kind = 'position' or (b.is_last and e.batch is not null) then b.upto
        else b.seen end
      )
    )
    from notifyq.batch as b
    left join notifyq.batch_end as e on e.batch = b.id
    where b.subscription = needed_floor.subscription
      and (
        (b.kind <> 'position' and e.batch is null)
        or b.previous = (
          select max(l.previous) from notifyq.batch as l
          where l.subscription = needed_floor.subscription
        )
      )
  );
end;
$$;

-- Whether a subscription may need events of a sealed segment. A subscriber that has read everything
-- keeps its position until there are new events, so the position alone does not decide.
create or replace function notifyq.subscription_needs(subscription bigint, segment notifyq.segment)
  returns boolean language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_last notifyq.batch;
  v_table text := notifyq.event_table(segment.id);
  v_is_there boolean;
begin
  if notifyq.needed_floor(subscription) >= notifyq.progress_of(segment.sealed) then
    return false;
  end if;
  v_last := notifyq.last_batch(subscription_needs.subscription);
  if not v_last.is_last
    or notifyq.needed_floor(subscription) < notifyq.progress_of(v_last.upto)
  then
    return true;
  end if;
  execute format(
    'select exists (select from notifyq.%I as e where e.xid >= %L) '
    'or exists (select from notifyq.%I as e where e.xid = any (%L))',
    v_table, pg_snapshot_xmax(v_last.upto), v_table,
    array(select pg_snapshot_xip(v_last.upto))
  )
  into v_is_there;
  return v_is_there;
end;
$$;

-- Recover: a batch whose reader has ended without a word.
--
-- One of its events may have ended the reader, and which one is unknown. So they come again in
-- batches of a tenth each time: harmless events get through, and the harmful one is alone after a
-- few times and fails permanently after its last attempt.

-- The newest batch of a member, or of a subscription that is not shared. By opened_at: a batch that
-- was taken over is newer to its member than its id.
create or replace function notifyq.newest_batch(subscription bigint, member text)
  returns notifyq.batch language plpgsql stable
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_batch notifyq.batch;
begin
  if member is null then
    return notifyq.last_batch(subscription);
  end if;
  select b.* into v_batch
  from notifyq.batch as b
  where b.subscription = newest_batch.subscription
    and b.member = newest_batch.member
  order by b.opened_at desc
  limit 1;
  return v_batch;
end;
$$;

-- Put off the events that have no outcome yet, in parts; returns how many.
create or replace function notifyq.split_batch(
  batch notifyq.batch, reason text, keeps_order boolean
)
  returns bigint language plpgsql
as $$
#variable_conflict use_column
declare
  v_count bigint;
begin
  insert into notifyq.event_retry as r (
    subscription, event_id, due_at, retries, reason, created_at, type, key, message, headers, part
  )
  select split_batch.batch.subscription, u.id, now_at, 1, split_batch.reason, u.created_at, u.type,
    u.key, u.message, u.headers, min(u.id) over (partition by u.ordinal / ((u.quantity + 9) / 10))
  from (
    select e.*, row_number() over (order by e.id) - 1 as ordinal, count(*) over () as quantity
    from messages.batch_events(split_batch.batch.id) as e
    where not notifyq.has_outcome(split_batch.batch, e.id)
  ) as u
  cross join clock_timestamp() as now_at
  order by u.id
  on conflict on constraint event_retry_subscription_event_id_pk do update
  set batch = null, retries = least(r.retries, 2147483646) + 1, reason = excluded.reason,
    part = excluded.part,
    -- Behind the events that wait already, or in the order of the stream.
    due_at = case when split_batch.keeps_order then r.due_at else excluded.due_at end;
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
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
  v_batch notifyq.batch;
  v_undone messages.batch_event[];
  v_attempts integer;
  v_count bigint;
begin
  perform notifyq.check_given('max_attempts', recover_batch.max_attempts is not null);
  perform notifyq.check_between('max_attempts', max_attempts, 1, 1000);
  perform from messages.subscription as u where u.id = v_subscription.id for no key update;
  v_batch := notifyq.newest_batch(v_subscription.id, member);
  perform notifyq.lock_batch(v_batch.id);
  v_batch := notifyq.newest_batch(v_subscription.id, member);
  if v_batch.id is null or not notifyq.is_open(v_batch) then
    return 0::bigint;
  end if;
  if v_batch.released_at is not null then
    update notifyq.batch as b set released_at = null where b.id = v_batch.id;
    return 0::bigint;
  end if;
  v_undone := array(
    select e
    from messages.batch_events(v_batch.id) as e
    where not notifyq.has_outcome(v_batch, e.id)
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
    v_count := notifyq.split_batch(v_batch, 'its reader was gone before the end', keeps_order);
  end if;
  perform messages.finish_batch(v_batch.id);
  perform notifyq.notify_stream(notifyq.find_stream(stream));
  return v_count;
end;
$$;
comment on function messages.recover_batch(text, text, integer, text, boolean) is
  'Report that the reader of the open batch of a subscriber, or of its member, has ended without '
  'settling it, as when it was killed. Each of its events without outcome has used up an attempt, '
  'and comes again with events of the same tenth of the batch only; one that was alone already '
  'fails permanently after max_attempts. With keeps_order they come before all later events, else '
  'behind events that wait to be delivered again. Returns how many events those are; 0 if no '
  'batch is open, or its reader has called release_batch(). A new reader calls it before '
  'next_batch(). Raises NQ020 and NQ021 for an unknown stream and subscriber.';

create or replace function messages.release_batch(batch bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_batch notifyq.batch;
begin
  perform notifyq.lock_batch(release_batch.batch);
  v_batch := notifyq.find_batch(release_batch.batch);
  if not notifyq.is_open(v_batch) then
    return false;
  end if;
  update notifyq.batch as b set released_at = clock_timestamp() where b.id = v_batch.id;
  return true;
end;
$$;
comment on function messages.release_batch(bigint) is
  'Leave an open batch as it is: it comes again, and recover_batch() does not count this as an '
  'attempt. False: it is finished. Raises NQ022 for an unknown batch.';

create or replace function notifyq.next_retry(stream text, subscriber text)
  returns interval language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_subscription messages.subscription := notifyq.find_subscription(stream, subscriber);
begin
  return (
    select greatest(r.due_at - clock_timestamp(), interval '0')
    from notifyq.event_retry as r
    where r.subscription = v_subscription.id
      and r.batch is null
      and r.due_at is not null
    order by r.due_at
    limit 1
  );
end;
$$;
comment on function notifyq.next_retry(text, text) is
  'How long until the first event of retry_event() is due for the subscriber; null: there is '
  'none. Raises NQ020 and NQ021 for an unknown stream and subscriber.';
