-- Owned: a message belongs to a session until that ends it, or is gone.
--
-- An owned message is locked without an end. Whose it is says locked_by: `<worker>:<pid>.<number>`,
-- where the session with this pid holds the advisory lock (730542, number) for as long as it lasts.
-- A session that died has left its row in owner_session and no lock, and whoever looks next, the
-- upkeep or somebody who waits, puts back what it owned. What the session itself knows is in its
-- setting notifyq.owned: empty, or `none`, or `<id>:<token>`; it goes back with a transaction.
--
-- owns:    nothing
-- writes:  messages.message, messages.owner_session
-- calls:   messages.claim, messages.finish, messages.release, messages._return_gone,
--          messages._check_filters, messages._queue, messages._barred_queues,
--          messages._note_newest
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue,
--          NQ018 nothing waited for

-- What distinguishes this session from all others, those before it with the same pid included.
create or replace function messages._own_session()
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
    select from messages.owner_session as o where o.pid = pg_backend_pid() and o.number = v_number
  ) then
    insert into messages.owner_session (pid, number) values (pg_backend_pid(), v_number);
  end if;
  return format('%s.%s', pg_backend_pid(), v_number);
end;
$$;

-- `none` or `<id>:<token>`, split; the session waits no more.
create or replace function messages._leave_owned()
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
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_before text := current_setting('notifyq.owned', true);
  v_key bigint[] := messages._leave_owned();
begin
  perform set_config('notifyq.owned', v_before, false);
  return query
  select m.*
  from messages.message as m
  where m.id = v_key[1]
    and m.lock_token = v_key[2]
    and (m.state = 'locked') is true
    and m.queue <> all (messages._barred_queues());
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
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_key bigint[] := messages._leave_owned();
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
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_key bigint[] := messages._leave_owned();
begin
  return messages.release(v_key[1], v_key[2], delay);
end;
$$;
comment on function messages.release_owned(interval) is
  'Put the message that this session owns back in its old place, at once or after delay, as if it '
  'had not been handed out; whoever waits is woken. False: it owns none, or has ended it already. '
  'Raises NQ018 if it has not waited.';

create or replace function messages.claim_owned(
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
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
begin
  perform messages._note_newest();
  if not is_again then
    if current_setting('notifyq.owned', true) like '%:%' then
      perform messages.finish_owned();
    end if;
    perform messages._check_filters(queues, filters);
    perform messages._queue(u.name) from unnest(queues) as u (name);
    perform set_config('notifyq.owned', 'none', false);
  end if;
  perform messages._return_gone();
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
      locked_by = format('%s:%s', coalesce(worker, 'session'), messages._own_session())
    where m.id = claim_owned.id;
    perform set_config(
      'notifyq.owned', format('%s:%s', claim_owned.id, claim_owned.lock_token), false
    );
    place := v_place;
    return;
  end loop;
end;
$$;
comment on function messages.claim_owned(text[], jsonpath[], text, boolean) is
  'What messages.wait() does in one look, without waiting: finish what this session owns, and hand '
  'it a message of the first of queues that has one, which it owns from then on. filters has a '
  'JSON path predicate for each of the queues, see claim(); a queue may be listed more than once. '
  'Returns the place in the list, from 1 on, and the message; nulls if there is none. is_again is '
  'for wait() alone: nothing is checked or finished, and queues that are gone are left out. Raises '
  'NQ001 for an unknown queue, NQ003 for filters that are none, and NQ007 for a queue from which '
  'the caller may not consume.';
