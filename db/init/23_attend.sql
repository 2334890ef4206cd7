-- Attend: publishers need not ring for a queue that a busy worker keeps looking at.
--
-- A worker under load holds the key K of a queue exclusively, on its listening session. The insert
-- trigger tries to share K after the row is written: refused, it stays silent; granted, it rings
-- and keeps its share to the end of the transaction. To stop, a worker releases K and only then
-- takes a transaction number. Whoever was silent has a smaller one, so once all smaller ones are
-- over, one more look finds whatever was published silently, and the worker may sleep. If its
-- session dies, K falls with it: publishers ring again, and what was silent in that instant waits
-- for the next poll.
-- More of it, and the proof: docs/bell.md.
--
-- owns:    nothing
-- writes:  nothing; notifies new_message
-- calls:   messages._queue, messages._notify, messages._invalid
-- raises:  NQ001 queue not found

create or replace function messages._attended_key(queue text)
  returns bigint
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  -- The insert trigger has the same expression in its condition.
  select hashtextextended(queue, 7305427004);
$$;

create or replace function messages._watching_key(queue text, place integer)
  returns bigint
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select hashtextextended(queue, 7305427100 + place);
$$;

create or replace function messages.attend(queue text, eager boolean default true)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '500ms'
as $$
declare
  v_queue messages.queue := messages._queue(queue);
  v_key bigint := messages._attended_key(queue);
begin
  if v_queue.bell <> 'auto' or v_queue.paused then
    return false;
  end if;
  -- Bells cost little where their commits do not wait for each other, and wake a worker sooner than
  -- the next look would.
  if not eager and 2 > (
    select count(*)
    from pg_locks as l
    join pg_database as d on d.oid = l.database and d.datname = current_database()
    where l.locktype = 'advisory'
      and l.objsubid = 1
      and (l.classid::bigint << 32 | l.objid::bigint) = v_key
  ) then
    return false;
  end if;
  if pg_try_advisory_lock(v_key) then
    return true;
  end if;
  if not pg_try_advisory_lock_shared(v_key) then
    return false;
  end if;
  perform pg_advisory_unlock_shared(v_key);
  -- Only publishers share the key. While this waits, those that come later stay silent; it has to
  -- wait for the commits of those that ring, which are one after the other.
  perform pg_advisory_lock(v_key);
  return true;
exception
  when lock_not_available then
    return null;
end;
$$;
comment on function messages.attend(text, boolean) is
  'Promise that this session looks at the queue every few milliseconds: publishers stop ringing '
  'for it until unattend() or the end of the session. With eager => false only if several '
  'sessions publish at this moment. False: they do not, or another session attends, or the bell of '
  'the queue is not auto. Null: publishers that ring did not end within half a second; some may '
  'have been silent meanwhile, as if unattend() had been called now. Raises NQ001 for an unknown '
  'queue.';

create or replace function messages.unattend(queues text[])
  returns xid8
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform pg_advisory_unlock(messages._attended_key(u.name)) from unnest(queues) as u (name);
  -- Not before the release: a publisher that is still silent has a smaller number. Nor a snapshot
  -- instead: that ends with the last transaction that is over, and one that began later and still
  -- runs would be missing.
  return pg_current_xact_id();
end;
$$;
comment on function messages.unattend(text[]) is
  'Take back the promise of attend() for queues that this session attends. Once settled() says '
  'true of the number returned, one more claim finds whatever was published silently.';

create or replace function messages.settled(number xid8)
  returns boolean
  language sql
  volatile
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select pg_snapshot_xmin(pg_current_snapshot()) >= number;
$$;
comment on function messages.settled(xid8) is
  'Whether every transaction that had a smaller number is over, prepared ones included.';

create or replace function messages.watch(queues text[], places integer default 4)
  returns integer[]
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return array(
    select (
      select p.place
      from generate_series(1, watch.places) as p (place)
      where pg_try_advisory_lock(messages._watching_key(u.name, p.place))
      limit 1
    )
    from unnest(watch.queues) with ordinality as u (name, number)
    order by u.number
  );
end;
$$;
comment on function messages.watch(text[], integer) is
  'Take a place among those who answer the bell for a single message, in each of the queues; null '
  'where all are taken. A thousand idle workers need not all get up for one message. Held to '
  'unwatch() or the end of the session; do not take a second place of the same queue.';

create or replace function messages.unwatch(
  queues text[], held integer[], places integer default 4
)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform pg_advisory_unlock(messages._watching_key(u.name, u.place))
  from unnest(unwatch.queues, unwatch.held) as u (name, place);
  -- After the release: of two that leave at once, one at least finds all places empty. Whether or
  -- not a message waits: those who do not answer single bells must hear that somebody has to.
  return messages.summon(
    array(
      select u.name
      from unnest(unwatch.queues) as u (name)
      where (
        select bool_and(pg_try_advisory_xact_lock(messages._watching_key(u.name, p.place)))
        from generate_series(1, unwatch.places) as p (place)
      )
    ),
    always => true
  );
end;
$$;
comment on function messages.unwatch(text[], integer[], integer) is
  'Give up the places held in these queues. Where nobody is left who watches, all workers are '
  'summoned. Returns for how many queues.';

create or replace function messages.summon(queues text[], always boolean default false)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
    where q.name = any (summon.queues)
      and not q.paused
      and q.bell <> 'off'
    order by q.name
  loop
    continue when not always and not exists (
      select from messages.message as m where m.queue = v_name and m.state = 'waiting'
    );
    -- No id: everybody is meant, not those alone who watch.
    perform messages._notify('new_message', v_name, '');
    v_rung := v_rung + 1;
  end loop;
  return v_rung;
end;
$$;
comment on function messages.summon(text[], boolean) is
  'Ring for every worker of those of the queues that have a message waiting, or of all: the bell '
  'names no id. Whoever hears it looks now, and once more when all transactions of that moment are '
  'over, as after unattend(). A worker that attends but has no free slot, or stops, calls the '
  'others with it. Returns for how many queues it rang.';
