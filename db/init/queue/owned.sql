-- Owned: messages that belong to a session, and wait().
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ018 nothing
-- waited for

-- An owned message is locked without an end. Whose it is says locked_by: `<worker>:<pid>.<number>`,
-- where the session with this pid holds the advisory lock (730542, number) for as long as it lasts.
-- A session that died has left its row in owner_session and no lock, and whoever looks next, the
-- upkeep or somebody who waits, puts back what it owned. What the session itself knows is in its
-- setting notifyq.owned: empty, or `none`, or `<id>:<token>`; it goes back with a transaction.

-- What distinguishes this session from all others, those before it with the same pid included.
create or replace function notifyq.own_session()
  returns text
  language plpgsql
as $$
declare
  -- It may have it from a transaction that was rolled back: such a lock stays.
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

-- `none` or `<id>:<token>`, split; the session waits no more.
create or replace function notifyq.leave_owned()
  returns bigint[]
  language plpgsql
as $$
declare
  v_owned text := coalesce(current_setting('notifyq.owned', true), '');
begin
  if v_owned = '' then
    raise exception using
      errcode = 'NQ018',
      message = 'this session owns no message, and has not waited for one',
      hint = 'call messages.wait(array[''default'']) first, on this very connection';
  end if;
  perform set_config('notifyq.owned', '', false);
  return case when v_owned <> 'none' then string_to_array(v_owned, ':')::bigint[] end;
end;
$$;

create or replace function messages.owned()
  returns setof messages.message
  language plpgsql
  security definer
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
comment on function messages.owned() is
  'The message that this session owns; no row if it has waited in vain, or has ended the message. '
  'Raises NQ018 if it has not waited.';

create or replace function messages.finish_owned(
  status messages.message_status default 'success',
  details text default null,
  result jsonb default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_key bigint[] := notifyq.leave_owned();
begin
  return messages.finish(v_key[1], v_key[2], status, details, result);
end;
$$;
comment on function messages.finish_owned(messages.message_status, text, jsonb) is
  'Move the message that this session owns to the archive. False: it owns none, or has ended it '
  'already. The next wait does the same. Raises NQ018 if it has not waited.';

create or replace function messages.release_owned(delay interval default null)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_key bigint[] := notifyq.leave_owned();
begin
  return messages.release(v_key[1], v_key[2], delay);
end;
$$;
comment on function messages.release_owned(interval) is
  'Put the message that this session owns back in its old place, at once or after delay, as if it '
  'had not been handed out; whoever waits is woken. False: it owns none, or has ended it already. '
  'Raises NQ018 if it has not waited.';

create or replace function notifyq.claim_owned(
  queues text[],
  filters jsonpath[] default null,
  worker text default null,
  is_again boolean default false,
  out place integer,
  out id bigint,
  out lock_token bigint,
  out queue text,
  out message jsonb
)
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
begin
  perform notifyq.note_newest();
  if not is_again then
    if current_setting('notifyq.owned', true) like '%:%' then
      perform messages.finish_owned();
    end if;
    perform notifyq.check_filters(queues, filters);
    perform notifyq.find_queue(u.name) from unnest(queues) as u (name);
    perform set_config('notifyq.owned', 'none', false);
  end if;
  perform notifyq.return_orphaned();
  for v_place in 1 .. cardinality(queues) loop
    begin
      select c.id, c.lock_token, c.queue, c.message
      into claim_owned.id, claim_owned.lock_token, claim_owned.queue, claim_owned.message
      from messages.claim(array[queues[v_place]], filter => filters[v_place]) as c;
    exception
      when sqlstate 'NQ001' then
        if not is_again then
          raise;
        end if;
        -- One that was dropped meanwhile may be made again.
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
    place := v_place;
    return;
  end loop;
end;
$$;
comment on function notifyq.claim_owned(text[], jsonpath[], text, boolean) is
  'What messages.wait() does in one look, without waiting: finish what this session owns, and hand '
  'it a message of the first of queues that has one, which it owns from then on. filters has a '
  'JSON path predicate for each of the queues, see claim(); a queue may be listed more than once. '
  'Returns the place in the list, from 1 on, and the message; nulls if there is none. is_again is '
  'for wait() alone: nothing is checked or finished, and queues that are gone are left out. Raises '
  'NQ001 for an unknown queue, NQ003 for filters that are none, and NQ007 for a queue from which '
  'the caller may not consume.';

-- Wait: block until there is a message, and own it.
--
-- A procedure, since it commits: what was owned before is finished for good before it blocks, and
-- while it blocks no transaction is older than a pause. A procedure that commits can have neither
-- the rights of its owner nor a search path, so it names all with its schema.
--
-- A session that runs a statement cannot hear a bell, so it looks again: after 1 ms, then after
-- longer and longer pauses, up to 50 ms. Clients that can listen do better.

create or replace procedure messages.wait(
  queues text[],
  timeout interval default '1 minute',
  filters jsonpath[] default null,
  worker text default null,
  inout place integer default null,
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
  -- In seconds, and not more than a thousand years: other intervals have instants overflow.
  v_end := pg_catalog.clock_timestamp() operator(pg_catalog.+) pg_catalog.make_interval(
    secs => greatest(
      least(extract(epoch from timeout)::pg_catalog.float8, 31557600000::pg_catalog.float8),
      0::pg_catalog.float8
    )
  );
  v_found := notifyq.claim_owned(queues, filters, worker);
  loop
    commit;
    exit when v_found.place is not null;
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
  place := coalesce(v_found.place, 0);
  id := v_found.id;
  lock_token := v_found.lock_token;
  queue := v_found.queue;
  message := v_found.message;
end;
$$;
comment on procedure messages.wait(
  text[], interval, jsonpath[], text, integer, bigint, bigint, text, jsonb
) is
  'Finish what this session owns, wait up to timeout (null: for ever) until one of queues has a '
  'message, and own that: `call messages.wait(array[''high'', ''low''])`. Nobody else gets it, for '
  'as long as this session lasts: it is ended by finish_owned(), by the next wait, or by finish() '
  'and the like with its lock_token, and is back in its old place with release_owned(), or within '
  'two seconds after the session is gone while a worker or another session that waits or claims is '
  'there, else with the next maintenance: not counted where its queue allows one attempt, and as '
  'an attempt where it allows several, after the last of which the message is dead. filters has a '
  'JSON path predicate for each of the queues, see claim(); a queue may be listed more than once. '
  'Returns in place which of the queues it is, from 1 on, and 0 after timeout, when there is no id '
  'and no '
  'message; owned() has all of it. It '
  'commits, so it must not be called inside a transaction, and it looks every 50 ms. Not through '
  'a pooler that lends a session for one transaction. Raises NQ001 for an unknown queue, and does '
  'not mind one that is dropped later; NQ003 for filters that are none; NQ007 for a queue from '
  'which the caller may not consume.';
