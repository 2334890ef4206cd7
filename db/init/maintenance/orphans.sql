-- Orphans: messages whose queue, or the session that owned them, is gone.

-- Publishers that skip NOTIFY do not read the queue: a queue that is dropped while a worker
-- suppresses its notifications can be published into until the worker notices.
create or replace function notifyq.reject_orphans(quantity bigint)
  returns integer language plpgsql
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_queue text := '';
  v_orphans messages.message[];
  v_rejected integer := 0;
begin
  loop
    -- From one queue to the next in the indexes, however many messages each has.
    v_queue := least(
      (
        select m.queue from messages.message as m
        where m.state = 'waiting' and m.queue > v_queue order by m.queue limit 1
      ),
      (
        select m.queue from messages.message as m
        where m.state = 'scheduled' and m.queue > v_queue order by m.queue limit 1
      )
    );
    exit when v_queue is null;
    continue when exists (select from messages.queue as q where q.name = v_queue);
    v_orphans := array(
      select m
      from messages.message as m
      where m.queue = v_queue
        and m.state <> 'locked'
        and m.id = any (
          array(
            select w.id from messages.message as w
            where w.state = 'waiting' and w.queue = v_queue limit reject_orphans.quantity
          ) || array(
            select w.id from messages.message as w
            where w.state = 'scheduled' and w.queue = v_queue limit reject_orphans.quantity
          )
        )
      order by m.id
      for update skip locked
    );
    v_rejected := v_rejected + cardinality(v_orphans);
    perform notifyq.reject_all(
      v_orphans, format('there is no queue %L any more', left(v_queue, 200))
    );
  end loop;
  return v_rejected;
end;
$$;

-- Put back messages of sessions that have ended, see queue/owned.sql; returns how many. Where a
-- queue allows several attempts each such session counts as one: a message that ends its sessions
-- is dead in the end. Where it allows one, the message comes back any number of times, as in Q4M.
-- Rows are read as of before the locks: a session takes its lock first.
create or replace function notifyq.return_owned(quantity integer)
  returns integer language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_gone text[];
  v_owned messages.message[];
  v_why text := 'the session that owned it has ended';
begin
  if exists (select from notifyq.owner_session) then
    v_gone := array(
      select format('%s.%s', o.pid, o.number)
      from notifyq.owner_session as o
      where (o.pid, o.number) not in (
        select l.pid, l.objid::bigint
        from pg_locks as l
        join pg_database as d on d.oid = l.database and d.datname = current_database()
        where l.locktype = 'advisory'
          and l.classid = 730542
          and l.objsubid = 2
          and l.granted
      )
      for update of o skip locked
    );
  end if;
  -- About twice a minute in any case: a session may have released its lock by hand.
  if coalesce(v_gone, '{}') = '{}' and random() >= 0.03 then
    return 0;
  end if;
  v_owned := array(
    select m
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at = 'infinity'
      and not exists (
        select from notifyq.owner_session as o
        where format('%s.%s', o.pid, o.number) = substring(m.locked_by from '[0-9]+[.][0-9]+$')
          and format('%s.%s', o.pid, o.number) <> all (coalesce(v_gone, '{}'))
      )
    order by m.id
    limit quantity
    for update skip locked
  );
  perform notifyq.retry_locked(
    array_agg(o.id), array_agg(o.lock_token),
    array_agg(interval '0'), array_agg(v_why),
    array_agg('lock_expired'::messages.message_status)
  )
  from unnest(v_owned) as o
  join messages.queue as q on q.name = o.queue
  where notifyq.attempts_of(o.max_attempts, o.handler_attempts, q.max_attempts) > 1;
  perform notifyq.release_locked(array_agg(o.id), array_agg(o.lock_token), null)
  from unnest(v_owned) as o
  left join messages.queue as q on q.name = o.queue
  where q.name is null
    or notifyq.attempts_of(o.max_attempts, o.handler_attempts, q.max_attempts) = 1;
  -- Not while another transaction has locked such a message: it may put it back.
  delete from notifyq.owner_session as o
  where format('%s.%s', o.pid, o.number) = any (v_gone)
    and not exists (
      select from messages.message as m
      where m.state = 'locked'
        and m.lock_expires_at = 'infinity'
        and substring(m.locked_by from '[0-9]+[.][0-9]+$') = format('%s.%s', o.pid, o.number)
    );
  return cardinality(v_owned);
end;
$$;

-- The same for a claim that found nothing, about once a second; whether anything came back.
create or replace function notifyq.return_orphaned()
  returns boolean language plpgsql
  set enable_seqscan = off
as $$
declare
  v_checked bigint := nullif(current_setting('notifyq.owners_checked', true), '')::bigint;
  v_now bigint := notifyq.epoch_ms(clock_timestamp());
begin
  if v_now between v_checked and v_checked + 999
    or not exists (select from notifyq.owner_session)
  then
    return false;
  end if;
  perform set_config('notifyq.owners_checked', v_now::text, false);
  return notifyq.return_owned(1000) > 0;
end;
$$;
