-- Strays: messages whose queue is gone, or the session that owned them.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive, messages.owner_session
-- calls:   messages._archive, messages._release, messages._retry, messages._attempts_of,
--          messages._requeue, messages._note_attempt, messages._ms
-- raises:  nothing

-- Publishers that stay silent do not ask the registry, so a queue that is dropped while a worker
-- attends it can be published into until that worker has noticed.
create or replace function messages._reject_strays(quantity bigint)
  returns integer
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_queue text := '';
  v_strays messages.message[];
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
    v_strays := array(
      select m
      from messages.message as m
      where m.queue = v_queue
        and m.state <> 'locked'
        and m.id = any (
          array(
            select w.id from messages.message as w
            where w.state = 'waiting' and w.queue = v_queue limit _reject_strays.quantity
          ) || array(
            select w.id from messages.message as w
            where w.state = 'scheduled' and w.queue = v_queue limit _reject_strays.quantity
          )
        )
      order by m.id
      for update skip locked
    );
    v_rejected := v_rejected + cardinality(v_strays);
    perform messages._archive(
      array_agg(s.id), array_agg(s.lock_token),
      array_agg('rejected'::messages.message_status),
      array_agg(format('there is no queue %L any more', left(s.queue, 200))),
      state => s.state
    )
    from unnest(v_strays) as s
    group by s.state;
  end loop;
  return v_rejected;
end;
$$;

-- Puts back what is owned by sessions that are gone, see 63_owned.sql; returns how much that was.
-- Where a queue allows several attempts each such session had one, so that a message which ends its
-- owners is dead in the end; with one it comes back however often, as in Q4M. The rows are read as
-- of before the locks: a session takes its lock first.
create or replace function messages._return_owned(quantity integer)
  returns integer
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set jit = off
as $$
declare
  v_gone text[];
  v_owned messages.message[];
  v_why text := 'the session that owned it is gone';
begin
  if exists (select from messages.owner_session) then
    v_gone := array(
      select format('%s.%s', o.pid, o.number)
      from messages.owner_session as o
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
  -- About twice a minute in any case: a session may have given its lock away by hand.
  if coalesce(v_gone, '{}') = '{}' and random() >= 0.03 then
    return 0;
  end if;
  v_owned := array(
    select m
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at = 'infinity'
      and not exists (
        select from messages.owner_session as o
        where format('%s.%s', o.pid, o.number) = substring(m.locked_by from '\d+\.\d+$')
          and format('%s.%s', o.pid, o.number) <> all (coalesce(v_gone, '{}'))
      )
    order by m.id
    limit quantity
    for update skip locked
  );
  perform messages._retry(
    array_agg(o.id), array_agg(o.lock_token),
    array_agg(interval '0'), array_agg(v_why),
    array_agg('lock_expired'::messages.message_status)
  )
  from unnest(v_owned) as o
  join messages.queue as q on q.name = o.queue
  where messages._attempts_of(o.max_attempts, o.handler_attempts, q.max_attempts) > 1;
  perform messages._release(array_agg(o.id), array_agg(o.lock_token), null)
  from unnest(v_owned) as o
  left join messages.queue as q on q.name = o.queue
  where q.name is null
    or messages._attempts_of(o.max_attempts, o.handler_attempts, q.max_attempts) = 1;
  -- Not while a message is left that another transaction holds: that may put it back.
  delete from messages.owner_session as o
  where format('%s.%s', o.pid, o.number) = any (v_gone)
    and not exists (
      select from messages.message as m
      where m.state = 'locked'
        and m.lock_expires_at = 'infinity'
        and substring(m.locked_by from '\d+\.\d+$') = format('%s.%s', o.pid, o.number)
    );
  return cardinality(v_owned);
end;
$$;

-- The same for a session that found nothing, about once a second; whether something came back.
create or replace function messages._return_gone()
  returns boolean
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_looked bigint := nullif(current_setting('notifyq.owners_looked', true), '')::bigint;
  v_now bigint := messages._ms(clock_timestamp());
begin
  if v_now between v_looked and v_looked + 999
    or not exists (select from messages.owner_session)
  then
    return false;
  end if;
  perform set_config('notifyq.owners_looked', v_now::text, false);
  return messages._return_owned(1000) > 0;
end;
$$;
