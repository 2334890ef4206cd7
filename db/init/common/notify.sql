-- Notify: NOTIFY, when publishers may skip it, and which workers it wakes.
--
-- raises: NQ001 queue not found, NQ007 no right to the queue, NQ003 invalid argument

-- '41-43,50' from {41,42,43,50}. A payload has less than 8000 bytes, and the name of its queue up
-- to 200 of them. Further ids are left out: workers claim by queue, not by id.
create or replace function notifyq.compact_ids(ids bigint[])
  returns text language sql immutable
as $$
  with numbered as (
    -- From zero on: the least id has no predecessor.
    select i.id, i.id - (row_number() over (order by i.id) - 1) as island
    from unnest(ids) as i (id)
  ),
  spans as (
    select min(n.id) as first,
      case when count(*) = 1 then min(n.id)::text
        else format('%s-%s', min(n.id), max(n.id)) end as span
    from numbered as n
    group by n.island
  ),
  sized as (
    select s.first, s.span, sum(octet_length(s.span) + 1) over (order by s.first) - 1 as bytes
    from spans as s
  )
  select coalesce(string_agg(z.span, ',' order by z.first), '')
  from sized as z
  where z.bytes <= 7700;
$$;

create or replace function notifyq.send_notification(channel text, queue text, spans text)
  returns void language plpgsql
as $$
begin
  -- A full notification queue would fail the commit, where nothing can catch the error; a skipped
  -- notification costs one poll.
  if pg_notification_queue_usage() < 0.5 then
    -- A message whose queue does not exist may have a longer name.
    perform pg_notify(channel, left(queue, 200) || ':' || spans),
      case when channel = 'new_message' then nextval('notifyq.message_notification_seq') end;
  end if;
end;
$$;

-- For channels about single messages: a full notification queue is no reason to fail here either.
create or replace function notifyq.notify_id(channel text, id bigint)
  returns void language plpgsql
as $$
begin
  if pg_notification_queue_usage() < 0.5 then
    perform pg_notify(channel, id::text);
  end if;
end;
$$;

create or replace function notifyq.is_paused(queue messages.queue)
  returns boolean language sql
as $$
  select queue.paused and coalesce(queue.resumes_at > clock_timestamp(), true);
$$;

create or replace function notifyq.notify_queue(queue messages.queue, spans text)
  returns boolean language plpgsql
as $$
begin
  if queue.notify = 'off' or notifyq.is_paused(queue) then
    return false;
  end if;
  perform notifyq.send_notification('new_message', queue.name, spans);
  return true;
end;
$$;

-- Notify the queues of those of the messages that can be claimed now, once each.
create or replace function notifyq.notify_messages(ids bigint[])
  returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  perform notifyq.notify_queue(q, notifyq.compact_ids((array_agg(m.id order by m.id))[1:1000]))
  from messages.message as m
  join messages.queue as q on q.name = m.queue
  where m.id = any (ids)
    -- A plain condition would let the planner read the whole partial index of that state.
    and (m.state = 'waiting') is true
  group by q;
end;
$$;

-- Suppression: publishers skip NOTIFY while a busy worker polls the queue.
--
-- Such a worker holds the suppression key of the queue exclusively, on its listening session. The
-- insert trigger tries to share the key after the row is written. If that fails it skips NOTIFY;
-- else it notifies, and keeps its share until the end of the transaction. A worker that wants to
-- sleep first releases the key and then takes a transaction id. Publishers that have skipped NOTIFY
-- have smaller ids: once all those are over, one more poll finds their messages. If the worker's
-- session ends, its lock ends too and publishers notify again; messages of that moment are found by
-- the next poll. Details and proof: docs/internals/notifications.md.

create or replace function notifyq.suppression_key(queue text)
  returns bigint language sql immutable
as $$
  -- The condition of the insert trigger has the same expression.
  select hashtextextended(queue, 7305427004);
$$;

-- For the key of a queue or a stream; returns what suppress() returns.
create or replace function notifyq.extend_suppression(key bigint, eager boolean)
  returns boolean language plpgsql
  set lock_timeout = '500ms'
as $$
declare
  v_publishers bigint;
  v_is_held boolean;
begin
  select count(*) filter (where l.mode = 'ShareLock'),
    bool_or(l.mode = 'ExclusiveLock' and l.granted and l.pid = pg_backend_pid())
  into v_publishers, v_is_held
  from pg_locks as l
  join pg_database as d on d.oid = l.database and d.datname = current_database()
  where l.locktype = 'advisory'
    and l.objsubid = 1
    and (l.classid::bigint << 32 | l.objid::bigint) = key;
  if v_is_held then
    return true;  -- a second lock would need a second release
  end if;
  -- As long as commits of publishers do not wait for each other, notifications are cheap and wake a
  -- worker earlier than its next poll.
  if not eager and v_publishers < 2 then
    return false;
  end if;
  if pg_try_advisory_lock(key) then
    return true;
  end if;
  if not pg_try_advisory_lock_shared(key) then
    return false;
  end if;
  perform pg_advisory_unlock_shared(key);
  -- Only publishers share the key. While this waits for those that notify, whose commits come one
  -- after the other, new publishers skip NOTIFY already.
  perform pg_advisory_lock(key);
  return true;
exception
  when lock_not_available then
    return null;
end;
$$;

create or replace function notifyq.suppress(queue text, eager boolean default true)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue := notifyq.find_queue(queue);
begin
  perform notifyq.check_access(v_queue.name, 'consume from');
  if v_queue.notify <> 'auto' or notifyq.is_paused(v_queue) then
    return false;
  end if;
  return notifyq.extend_suppression(notifyq.suppression_key(queue), eager);
end;
$$;
comment on function notifyq.suppress is
  'Suppress notifications of a queue that this session polls every few milliseconds, until '
  'unsuppress() or the end of the session. With eager => false only if several sessions publish '
  'at this moment. False: they do not, another session suppresses them, or notify of the queue is '
  'not auto. Null: notifying publishers did not finish within half a second; others may have '
  'skipped NOTIFY meanwhile, so proceed as after unsuppress(). Raises NQ001 for an unknown queue, '
  'and NQ007 for one from which the caller may not consume.';

create or replace function notifyq.unsuppress(queues text[])
  returns xid8 language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_unlock(notifyq.suppression_key(u.name)) from unnest(queues) as u (name);
  -- Not before the release: publishers that still skip NOTIFY must have smaller ids. A snapshot
  -- would not do: it ends with the last finished transaction, and leaves out later ones that run.
  return pg_current_xact_id();
end;
$$;
comment on function notifyq.unsuppress is
  'End the suppression of notifications by this session, in a transaction of its own. Once '
  'is_transaction_over() is true for the returned number, one more claim finds all that was '
  'published without a notification.';

create or replace function notifyq.is_transaction_over(number xid8)
  returns boolean language sql volatile security definer
  set search_path = pg_catalog, pg_temp
as $$
  select pg_snapshot_xmin(pg_current_snapshot()) >= number;
$$;
comment on function notifyq.is_transaction_over is
  'Whether every transaction with a smaller number is over, prepared ones included.';

-- Wake slots: few of many idle workers answer the notification of a single message.

create or replace function notifyq.wake_slot_key(queue text, slot integer)
  returns bigint language sql immutable
as $$
  select hashtextextended(queue, 7305427100 + slot);
$$;

create or replace function notifyq.take_wake_slots(queues text[], slots integer default 4)
  returns integer[] language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_quantity(take_wake_slots.slots, 100, 'slots');
  perform notifyq.check_access(u.name, 'consume from')
  from unnest(take_wake_slots.queues) as u (name);
  return array(
    select (
      select p.slot
      from generate_series(1, take_wake_slots.slots) as p (slot)
      where pg_try_advisory_lock(notifyq.wake_slot_key(u.name, p.slot))
      limit 1
    )
    from unnest(take_wake_slots.queues) with ordinality as u (name, number)
    order by u.number
  );
end;
$$;
comment on function notifyq.take_wake_slots is
  'Take a wake slot of each queue, until leave_wake_slots() or the end of the session; null where '
  'all are taken. Only workers with a slot answer the notification of a single message, so that a '
  'thousand idle workers do not all wake for it. Do not take a second slot of a queue. Raises '
  'NQ007 for a queue from which the caller may not consume.';

create or replace function notifyq.has_wake_slot(queue text, slots integer)
  returns boolean language plpgsql
as $$
declare
  v_key bigint;
begin
  for v_slot in 1 .. slots loop
    v_key := notifyq.wake_slot_key(queue, v_slot);
    -- Shared, else two checks would take each other for workers. Released at once, not at the end
    -- of the transaction: a worker that the notification wakes must find the slot free.
    if not pg_try_advisory_lock_shared(v_key) then
      return true;
    end if;
    perform pg_advisory_unlock_shared(v_key);
  end loop;
  return false;
end;
$$;

create or replace function notifyq.leave_wake_slots(
  queues text[], held integer[], slots integer default 4
)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_quantity(leave_wake_slots.slots, 100, 'slots');
  perform pg_advisory_unlock(notifyq.wake_slot_key(u.name, u.slot))
  from unnest(leave_wake_slots.queues, leave_wake_slots.held) as u (name, slot);
  -- After the release: if two workers leave at once, at least one finds all slots empty. Workers
  -- without a slot must wake whether or not a message waits: one of them has to take the slot.
  return notifyq.wake_all(
    array(
      select u.name
      from unnest(leave_wake_slots.queues) as u (name)
      where not notifyq.has_wake_slot(u.name, leave_wake_slots.slots)
    ),
    always => true
  );
end;
$$;
comment on function notifyq.leave_wake_slots is
  'Give up the wake slots held in these queues. Where none is taken any more, all workers are '
  'woken. Returns in how many queues.';

create or replace function notifyq.next_due(queues text[], since interval default '0')
  returns interval language plpgsql volatile security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  -- The last claim has staged what was due before, and its dead index entries lie there.
  v_after timestamptz;
begin
  perform notifyq.check_duration('since', next_due.since);
  v_after := v_now - greatest(next_due.since, '0');
  return least(
    (
      select min(q.resumes_at)
      from messages.queue as q
      where q.name = any (next_due.queues)
        and q.resumes_at > v_after
        and notifyq.is_allowed(q.name, 'consume from')
    ),
    (
      select min(d.available_at)
      from messages.queue as q
      cross join lateral (
        select m.available_at
        from messages.message as m
        where m.queue = q.name
          and m.state = 'scheduled'
          and m.available_at > v_after
          and m.available_at < 'infinity'
        order by m.available_at
        limit 1
      ) as d
      where q.name = any (next_due.queues)
        and not notifyq.is_paused(q)
        and notifyq.is_allowed(q.name, 'consume from')
    )
  ) - v_now;
end;
$$;
comment on function notifyq.next_due is
  'Time until the next scheduled message of these queues is due, or until a pause of one of them '
  'ends; null: there is none. Messages '
  'that are due already do not count, as a claim finds them; since is the time since the last '
  'claim, and messages that became due in it count, with a negative result. Messages that are '
  'published less than a minute before they are due notify at once: a worker may sleep for the '
  'result, or a minute.';

create or replace function notifyq.wake_all(queues text[], always boolean default false)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_name text;
  v_notified integer := 0;
begin
  for v_name in
    select q.name
    from messages.queue as q
    where q.name = any (wake_all.queues)
      and not notifyq.is_paused(q)
      and q.notify <> 'off'
      and notifyq.is_allowed(q.name, 'consume from')
    order by q.name
  loop
    continue when not always and not exists (
      select from messages.message as m where m.queue = v_name and m.state = 'waiting'
    );
    -- Without an id: it wakes all workers, not only those with a wake slot.
    perform notifyq.send_notification('new_message', v_name, '');
    v_notified := v_notified + 1;
  end loop;
  return v_notified;
end;
$$;
comment on function notifyq.wake_all is
  'Wake all workers of those of the queues that have a message waiting, or of all: the '
  'notification has no id. A woken worker polls at once, and once more when all present '
  'transactions are over. A worker that suppresses notifications calls it when it has no free '
  'slot, or stops. Returns how many queues it notified.';
