-- Notify: NOTIFY, and when publishers may skip it.
--
-- raises: NQ001 queue not found, NQ007 no right to the queue, NQ003 invalid argument

-- '41-43,50' from {41,42,43,50}. A payload has less than 8000 bytes, and the queue's name up to 200
-- of them. Ids that don't fit are left out: a bell is a hint, workers claim by queue and not by id.
create or replace function notifyq.compact_ids(ids bigint[])
  returns text
  language sql
  immutable
as $$
  with numbered as (
    select i.id, i.id - row_number() over (order by i.id) as island
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
  returns void
  language plpgsql
as $$
begin
  -- A full notification queue fails the commit, where nothing can catch it; a bell that is not rung
  -- costs a worker one poll.
  if pg_notification_queue_usage() < 0.5 then
    -- A name longer than a queue's can only be that of a message without a queue.
    perform pg_notify(channel, left(queue, 200) || ':' || spans),
      case when channel = 'new_message' then nextval('notifyq.message_notification_seq') end;
  end if;
end;
$$;

create or replace function notifyq.notify_queue(queue messages.queue, spans text)
  returns boolean
  language plpgsql
as $$
begin
  if queue.paused or queue.bell = 'off' then
    return false;
  end if;
  perform notifyq.send_notification('new_message', queue.name, spans);
  return true;
end;
$$;

-- Attend: publishers need not ring for a queue that a busy worker keeps looking at.
--
-- A worker under load holds the key K of a queue exclusively, on its listening session. The insert
-- trigger tries to share K after the row is written: refused, it stays silent; granted, it rings
-- and keeps its share to the end of the transaction. To stop, a worker releases K and only then
-- takes a transaction number. Whoever was silent has a smaller one, so once all smaller ones are
-- over, one more look finds whatever was published silently, and the worker may sleep. If its
-- session dies, K falls with it: publishers ring again, and what was silent in that instant waits
-- for the next poll. More of it, and the proof: docs/bell.md.

create or replace function notifyq.suppression_key(queue text)
  returns bigint
  language plpgsql
  immutable
as $$
begin
  -- The insert trigger has the same expression in its condition.
  return hashtextextended(queue, 7305427004);
end;
$$;

-- Of the key of a queue or of a stream; answers as attend() does.
create or replace function notifyq.extend_suppression(key bigint, eager boolean)
  returns boolean
  language plpgsql
  set lock_timeout = '500ms'
as $$
declare
  v_publishers bigint;
  v_is_attended boolean;
begin
  select count(*) filter (where l.mode = 'ShareLock'),
    bool_or(l.mode = 'ExclusiveLock' and l.granted and l.pid = pg_backend_pid())
  into v_publishers, v_is_attended
  from pg_locks as l
  join pg_database as d on d.oid = l.database and d.datname = current_database()
  where l.locktype = 'advisory'
    and l.objsubid = 1
    and (l.classid::bigint << 32 | l.objid::bigint) = key;
  if v_is_attended then
    return true;  -- a second lock would need a second release
  end if;
  -- Bells cost little where their commits do not wait for each other, and wake a worker sooner than
  -- the next look would.
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
  -- Only publishers share the key. While this waits, those that come later stay silent; it has to
  -- wait for the commits of those that ring, which are one after the other.
  perform pg_advisory_lock(key);
  return true;
exception
  when lock_not_available then
    return null;
end;
$$;

create or replace function notifyq.suppress(queue text, eager boolean default true)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue := notifyq.find_queue(queue);
begin
  perform notifyq.check_access(v_queue.name, 'consume from');
  if v_queue.bell <> 'auto' or v_queue.paused then
    return false;
  end if;
  return notifyq.extend_suppression(notifyq.suppression_key(queue), eager);
end;
$$;
comment on function notifyq.suppress(text, boolean) is
  'Promise that this session looks at the queue every few milliseconds: publishers stop ringing '
  'for it until unattend() or the end of the session. With eager => false only if several '
  'sessions publish at this moment. False: they do not, or another session attends, or the bell of '
  'the queue is not auto. Null: publishers that ring did not end within half a second; some may '
  'have been silent meanwhile, as if unattend() had been called now. Raises NQ001 for an unknown '
  'queue, and NQ007 for one from which the caller may not consume.';

create or replace function notifyq.unsuppress(queues text[])
  returns xid8
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_unlock(notifyq.suppression_key(u.name)) from unnest(queues) as u (name);
  -- Not before the release: a publisher that is still silent has a smaller number. Nor a snapshot
  -- instead: that ends with the last transaction that is over, and one that began later and still
  -- runs would be missing.
  return pg_current_xact_id();
end;
$$;
comment on function notifyq.unsuppress(text[]) is
  'Take back the promise of attend() for queues that this session attends, in a transaction of its '
  'own. Once settled() says true of the number returned, one more claim finds whatever was '
  'published silently.';

create or replace function notifyq.is_transaction_over(number xid8)
  returns boolean
  language sql
  volatile
  security definer
  set search_path = pg_catalog, pg_temp
as $$
  select pg_snapshot_xmin(pg_current_snapshot()) >= number;
$$;
comment on function notifyq.is_transaction_over(xid8) is
  'Whether every transaction that had a smaller number is over, prepared ones included.';

-- Watch: of many idle workers few get up for one message, and all of them when they are called.

create or replace function notifyq.wake_slot_key(queue text, place integer)
  returns bigint
  language plpgsql
  immutable
as $$
begin
  return hashtextextended(queue, 7305427100 + place);
end;
$$;

create or replace function notifyq.check_slots(places integer)
  returns void
  language plpgsql
as $$
begin
  if (places between 1 and 100) is not true then
    perform notifyq.raise_invalid(
      format('places must be between 1 and 100, not %s', coalesce(places::text, 'null'))
    );
  end if;
end;
$$;

create or replace function notifyq.take_wake_slots(queues text[], places integer default 4)
  returns integer[]
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_slots(take_wake_slots.places);
  perform notifyq.check_access(u.name, 'consume from')
  from unnest(take_wake_slots.queues) as u (name);
  return array(
    select (
      select p.place
      from generate_series(1, take_wake_slots.places) as p (place)
      where pg_try_advisory_lock(notifyq.wake_slot_key(u.name, p.place))
      limit 1
    )
    from unnest(take_wake_slots.queues) with ordinality as u (name, number)
    order by u.number
  );
end;
$$;
comment on function notifyq.take_wake_slots(text[], integer) is
  'Take a place among those who answer the bell for a single message, in each of the queues; null '
  'where all are taken. A thousand idle workers need not all get up for one message. Held to '
  'unwatch() or the end of the session; do not take a second place of the same queue. Raises NQ007 '
  'for a queue from which the caller may not consume.';

create or replace function notifyq.has_wake_slot(queue text, places integer)
  returns boolean
  language plpgsql
as $$
declare
  v_key bigint;
begin
  for v_place in 1 .. places loop
    v_key := notifyq.wake_slot_key(queue, v_place);
    -- Shared, or two who ask would take each other for watchers. Given back at once, and not with
    -- the transaction, or whoever hears the bell might still find the place taken.
    if not pg_try_advisory_lock_shared(v_key) then
      return true;
    end if;
    perform pg_advisory_unlock_shared(v_key);
  end loop;
  return false;
end;
$$;

create or replace function notifyq.leave_wake_slots(
  queues text[], held integer[], places integer default 4
)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_slots(leave_wake_slots.places);
  perform pg_advisory_unlock(notifyq.wake_slot_key(u.name, u.place))
  from unnest(leave_wake_slots.queues, leave_wake_slots.held) as u (name, place);
  -- After the release: of two that leave at once, one at least finds all places empty. Whether or
  -- not a message waits: those who do not answer single bells must hear that somebody has to.
  return notifyq.wake_all(
    array(
      select u.name
      from unnest(leave_wake_slots.queues) as u (name)
      where not notifyq.has_wake_slot(u.name, leave_wake_slots.places)
    ),
    always => true
  );
end;
$$;
comment on function notifyq.leave_wake_slots(text[], integer[], integer) is
  'Give up the places held in these queues. Where nobody is left who watches, all workers are '
  'summoned. Returns for how many queues.';

create or replace function notifyq.next_due(queues text[], since interval default '0')
  returns interval
  language plpgsql
  volatile
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  -- What was due before that a claim has found; and of what was, dead rows lie there.
  v_after timestamptz;
begin
  perform notifyq.check_duration('since', next_due.since);
  v_after := v_now - greatest(next_due.since, '0');
  return (
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
      and not q.paused
      and notifyq.is_allowed(q.name, 'consume from')
  ) - v_now;
end;
$$;
comment on function notifyq.next_due(text[], interval) is
  'How long it takes until the next scheduled message of these queues is due; null if there is '
  'none. What is due already does not count, as a claim finds it; but who has claimed a while ago '
  'says how long that is, since: what has become due in that time counts, by a negative interval. '
  'A bell rings for what is published with less than a minute to go, so who sleeps until then, or '
  'a minute, misses nothing.';

create or replace function notifyq.wake_all(queues text[], always boolean default false)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_name text;
  v_rung integer := 0;
begin
  for v_name in
    select q.name
    from messages.queue as q
    where q.name = any (wake_all.queues)
      and not q.paused
      and q.bell <> 'off'
      and notifyq.is_allowed(q.name, 'consume from')
    order by q.name
  loop
    continue when not always and not exists (
      select from messages.message as m where m.queue = v_name and m.state = 'waiting'
    );
    -- No id: everybody is meant, not those alone who watch.
    perform notifyq.send_notification('new_message', v_name, '');
    v_rung := v_rung + 1;
  end loop;
  return v_rung;
end;
$$;
comment on function notifyq.wake_all(text[], boolean) is
  'Ring for every worker of those of the queues that have a message waiting, or of all: the bell '
  'names no id. Whoever hears it looks now, and once more when all transactions of that moment are '
  'over, as after unattend(). A worker that attends but has no free slot, or stops, calls the '
  'others with it. Returns for how many queues it rang.';
