-- Owned: messages that a session owns, and wait().
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ018 nothing
-- waited for

-- An owned message has a lock without an end. Its locked_by is `<worker>:<pid>.<number>`: the
-- session with this pid holds the advisory lock (730542, number) until it ends. A session that has
-- ended leaves its row in owner_session but no lock: maintenance, or the next session that waits,
-- puts back what it owned. The session's own state is in its setting notifyq.owned: empty, `none`
-- or `<id>:<token>`; it is rolled back with its transaction.

-- Identifies this session, also among earlier ones with the same pid.
create or replace function notifyq.own_session()
  returns text language plpgsql
as $$
declare
  -- It may have a lock from a transaction that was rolled back: such a lock stays.
  v_number integer := (
    select l.objid::bigint::integer
    from pg_locks as l
    join pg_database as d on d.oid = l.database and d.datname = current_database()
    where l.locktype = 'advisory'
      and l.classid = 730542
      and l.objsubid = 2
      and l.pid = pg_backend_pid()
    limit 1
  );
begin
  while v_number is null loop
    v_number := floor(random() * 2147483647)::integer;
    if not pg_try_advisory_lock(730542, v_number) then
      v_number := null;
    end if;
  end loop;
  if not exists (
    select from notifyq.owner_session as o where o.pid = pg_backend_pid() and o.number = v_number
  ) then
    insert into notifyq.owner_session (pid, number) values (pg_backend_pid(), v_number);
  end if;
  return format('%s.%s', pg_backend_pid(), v_number);
end;
$$;

-- Return the id and token of the owned message, null for `none`, and end the ownership.
create or replace function notifyq.leave_owned()
  returns bigint[] language plpgsql
as $$
declare
  v_owned text := coalesce(current_setting('notifyq.owned', true), '');
begin
  if v_owned = '' then
    raise exception using
      errcode = 'NQ018',
      message = 'this session has not waited for a message',
      hint = 'call messages.wait(array[''default'']) first, on the same connection';
  end if;
  perform set_config('notifyq.owned', '', false);
  return case when v_owned <> 'none' then string_to_array(v_owned, ':')::bigint[] end;
end;
$$;

create or replace function messages.owned()
  returns setof messages.message language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_before text := current_setting('notifyq.owned', true);
  v_key bigint[] := notifyq.leave_owned();
begin
  perform set_config('notifyq.owned', v_before, false);
  return query
  select m.*
  from messages.message as m
  where m.id = v_key[1]
    and m.lock_token = v_key[2]
    and (m.state = 'locked') is true
    and m.queue <> all (notifyq.barred_queues());
end;
$$;
comment on function messages.owned is
  'The message that this session owns; no row if the wait found none, or the message is finished. '
  'Raises NQ018 if the session has not waited.';

create or replace function messages.finish_owned(
  status messages.message_status default 'success',
  details text default null,
  result jsonb default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_key bigint[] := notifyq.leave_owned();
begin
  return messages.finish(v_key[1], v_key[2], status, details, result);
end;
$$;
comment on function messages.finish_owned is
  'Move the message that this session owns to the archive. False: it owns none, or has finished '
  'it already. The next wait does the same. Raises NQ018 if the session has not waited.';

create or replace function messages.release_owned(delay interval default null)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_key bigint[] := notifyq.leave_owned();
begin
  return messages.release(v_key[1], v_key[2], delay);
end;
$$;
comment on function messages.release_owned is
  'Put the message that this session owns back in its old position, at once or after delay, as if '
  'it had not been claimed, and notify workers. False: it owns none, or has finished it already. '
  'Raises NQ018 if the session has not waited.';

create or replace function notifyq.claim_owned(
  queues text[], filters jsonpath[] default null, worker text default null,
  is_again boolean default false, out index integer, out id bigint, out lock_token bigint,
  out queue text, out message jsonb
)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
begin
  perform notifyq.remember_newest_id();
  if not is_again then
    if current_setting('notifyq.owned', true) like '%:%' then
      perform messages.finish_owned();
    end if;
    perform notifyq.check_filters(queues, filters);
    perform set_config('notifyq.owned', 'none', false);
  end if;
  perform notifyq.return_orphaned();
  for v_index in 1 .. cardinality(queues) loop
    begin
      select c.id, c.lock_token, c.queue, c.message
      into claim_owned.id, claim_owned.lock_token, claim_owned.queue, claim_owned.message
      from messages.claim(array[queues[v_index]], filter => filters[v_index]) as c;
    exception
      when sqlstate 'NQ001' then
        if not is_again then
          raise;
        end if;
        -- The queue was dropped meanwhile, and may be created again.
        continue;
    end;
    continue when claim_owned.id is null;
    update messages.message as m
    set lock_expires_at = 'infinity',
      locked_by = format('%s:%s', coalesce(worker, 'session'), notifyq.own_session())
    where m.id = claim_owned.id;
    perform set_config(
      'notifyq.owned', format('%s:%s', claim_owned.id, claim_owned.lock_token), false
    );
    index := v_index;
    return;
  end loop;
end;
$$;
comment on function notifyq.claim_owned is
  'One poll of messages.wait(), without waiting: finish what this session owns, and give it a '
  'message of the first of queues that has one. filters has a JSON path predicate for each of the '
  'queues, see claim(); a queue may be listed more than once. Returns the index in the list, from '
  '1, and the message; nulls if there is none. is_again is for wait() only: nothing is checked or '
  'finished, and dropped queues are skipped. Raises NQ001 for an unknown queue, NQ003 for invalid '
  'filters, and NQ007 for a queue from which the caller may not consume.';

-- Wait: block until there is a message, and own it.
--
-- A procedure, as it commits: what was owned is finished before it blocks, and while it blocks no
-- transaction is older than one pause. A procedure that commits can have neither the rights of its
-- owner nor a search path, so it names everything with its schema.
--
-- A session that runs a statement receives no notifications, so it polls: after 1 ms, then after
-- growing pauses of up to 50 ms. Clients that can LISTEN do better.

create or replace procedure messages.wait(
  queues text[],
  timeout interval default '1 minute',
  filters jsonpath[] default null,
  worker text default null,
  inout index integer default null,
  inout id bigint default null,
  inout lock_token bigint default null,
  inout queue text default null,
  inout message jsonb default null
)
  language plpgsql
as $$
declare
  v_found record;
  v_pause double precision := 0.001::pg_catalog.float8;
  v_left double precision;
  v_end timestamptz;
begin
  if pg_catalog.current_setting('notifyq.owned', true) operator(pg_catalog.<>) '' then
    perform messages.finish_owned();
    commit;
  end if;
  -- In seconds, and up to a thousand years: other intervals would overflow.
  v_end := pg_catalog.clock_timestamp() operator(pg_catalog.+) pg_catalog.make_interval(
    secs => greatest(
      least(extract(epoch from timeout)::pg_catalog.float8, 31557600000::pg_catalog.float8),
      0::pg_catalog.float8
    )
  );
  v_found := notifyq.claim_owned(queues, filters, worker);
  loop
    commit;
    exit when v_found.index is not null;
    v_left := extract(
      epoch from v_end operator(pg_catalog.-) pg_catalog.clock_timestamp()
    )::pg_catalog.float8;
    exit when v_left operator(pg_catalog.<=) 0;
    perform pg_catalog.pg_sleep(least(v_pause, v_left));
    v_pause := least(
      v_pause operator(pg_catalog.*) 1.5::pg_catalog.float8, 0.05::pg_catalog.float8
    );
    commit;
    v_found := notifyq.claim_owned(queues, filters, worker, true);
  end loop;
  index := coalesce(v_found.index, 0);
  id := v_found.id;
  lock_token := v_found.lock_token;
  queue := v_found.queue;
  message := v_found.message;
end;
$$;
comment on procedure messages.wait is
  'Finish what this session owns, wait up to timeout (null: without limit) until one of queues '
  'has a message, and own that: `call messages.wait(array[''high'', ''low''])`. No other session '
  'gets it while this session lasts. finish_owned(), the next wait, or finish() with its '
  'lock_token ends it; release_owned() puts it back. After the end of the session it is put back '
  'within two seconds while a worker, or another session that waits or claims, is running, else '
  'by the next maintenance. That counts as an attempt only where its queue allows several; after '
  'the last one the message is dead. filters has a JSON path predicate for each of the queues, '
  'see claim(); a queue may be listed more than once. Returns in index which of the queues it is, '
  'from 1; after timeout 0, and no id and no message; owned() has the whole message. It commits, '
  'so it cannot be called inside a transaction; it polls every 50 ms. Not through a pooler that '
  'lends a session for one transaction. Raises NQ001 for an unknown queue, but ignores one that '
  'is dropped later; NQ003 for invalid filters; NQ007 for a queue from which the caller may not '
  'consume.';
