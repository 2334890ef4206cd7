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
-- writes:  nothing
-- calls:   messages._queue, messages._check_access
-- raises:  NQ001 queue not found, NQ007 no right to the queue

create or replace function messages._attended_key(queue text)
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
create or replace function messages._attend(key bigint, eager boolean)
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

create or replace function messages.attend(queue text, eager boolean default true)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(queue);
begin
  perform messages._check_access(v_queue.name, 'consume from');
  if v_queue.bell <> 'auto' or v_queue.paused then
    return false;
  end if;
  return messages._attend(messages._attended_key(queue), eager);
end;
$$;
comment on function messages.attend(text, boolean) is
  'Promise that this session looks at the queue every few milliseconds: publishers stop ringing '
  'for it until unattend() or the end of the session. With eager => false only if several '
  'sessions publish at this moment. False: they do not, or another session attends, or the bell of '
  'the queue is not auto. Null: publishers that ring did not end within half a second; some may '
  'have been silent meanwhile, as if unattend() had been called now. Raises NQ001 for an unknown '
  'queue, and NQ007 for one from which the caller may not consume.';

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
  'Take back the promise of attend() for queues that this session attends, in a transaction of its '
  'own. Once settled() says true of the number returned, one more claim finds whatever was '
  'published silently.';

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
