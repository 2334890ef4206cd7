-- Access: grants on queues and streams, and their checks.
--
-- raises: NQ007 no right to the queue, NQ001 queue not found, NQ003 invalid argument, NQ009 open
-- transactions

-- These functions run as the owner, and current_user is the owner: the caller is the role of SET
-- ROLE, else that of the session. A queue without grants is open to all callers of the functions.
-- Callers first test whether there are any grants at all: most databases have none.

create or replace function notifyq.calling_role()
  returns text language sql stable
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user);
$$;

-- Usage, not membership: the privileges that a role has without another SET ROLE.
create or replace function notifyq.has_role(role text)
  returns boolean language sql stable
as $$
  select coalesce(
    pg_has_role(notifyq.calling_role()::name, to_regrole(quote_ident(role))::oid, 'usage'), false
  );
$$;

create or replace function notifyq.is_admin()
  returns boolean language sql stable
as $$
  select notifyq.has_role('notifyq_admin')
    or notifyq.has_role(
      (select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'messages')
    );
$$;

create or replace function notifyq.is_allowed(queue text, act text)
  returns boolean language plpgsql stable
as $$
begin
  return not exists (select from messages.queue_grant as g where g.queue = is_allowed.queue)
    or exists (
      select from messages.queue_grant as g
      where g.queue = is_allowed.queue
        and case is_allowed.act when 'publish into' then g.may_publish else g.may_consume end
        and notifyq.has_role(g.role)
    )
    or notifyq.is_admin();
end;
$$;

create or replace function notifyq.check_access(queue text, act text)
  returns void language plpgsql stable
as $$
begin
  if not notifyq.is_allowed(queue, act) then
    raise exception using
      errcode = 'NQ007',
      message = format('role %I may not %s queue %L', notifyq.calling_role(), act, queue),
      hint = 'an admin can allow it with `notifyq queues grant` or messages.grant_queue()';
  end if;
end;
$$;

-- Queues from which the caller may not consume.
create or replace function notifyq.barred_queues()
  returns text[] language sql stable
as $$
  select coalesce(array_agg(q.name), '{}')
  from (select distinct g.queue from messages.queue_grant as g) as q (name)
  where not notifyq.is_allowed(q.name, 'consume from');
$$;

-- The ids, with null for each message in a barred queue: anybody can guess an id and a token.
create or replace function notifyq.hide_barred(ids bigint[])
  returns bigint[] language plpgsql stable
as $$
declare
  v_barred text[] := notifyq.barred_queues();
begin
  if v_barred = '{}' then
    return ids;
  end if;
  return array(
    select (
      select m.id from messages.message as m where m.id = u.id and m.queue <> all (v_barred)
    )
    from unnest(hide_barred.ids) with ordinality as u (id, position)
    order by u.position
  );
end;
$$;

-- The function of a trigger that is enabled while any queue has a grant.
create or replace function notifyq.admit()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- Publishers cannot set the token. Only a schedule starts with another one: an admin has defined
  -- it, and any worker may fire it.
  if new.lock_token = 0 then
    perform notifyq.check_access(new.queue, 'publish into');
  end if;
  return new;
end;
$$;

do $$
begin
  if not exists (
    select from pg_trigger as g
    where g.tgrelid = 'messages.message'::regclass and g.tgname = 'admit'
  ) then
    -- The name sorts first: access is checked before other triggers report duplicates or limits.
    -- Not `create or replace`: that would enable it.
    create trigger admit
      before insert on messages.message
      for each row
      execute function notifyq.admit();
    alter table messages.message disable trigger admit;
  end if;
end;
$$;

-- Enabled while any queue has a grant; publishers pay nothing otherwise.
create or replace function notifyq.rebuild_access_trigger()
  returns void language plpgsql
  -- It locks out publishers and claims, so it must not wait long for open transactions.
  set lock_timeout = '2s'
as $$
declare
  v_is_guarded boolean := exists (select from messages.queue_grant);
begin
  if v_is_guarded = (
    select g.tgenabled = 'O'
    from pg_trigger as g
    where g.tgrelid = 'messages.message'::regclass and g.tgname = 'admit'
  ) then
    return;
  end if;
  if v_is_guarded then
    alter table messages.message enable trigger admit;
  else
    alter table messages.message disable trigger admit;
  end if;
exception
  when lock_not_available then
    perform notifyq.raise_busy('publish or claim');
end;
$$;

-- Publishers into streams without grants need not read this table.
create or replace function notifyq.mark_guarded_streams()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- Locked before they are compared: two changes at once would not see each other's grants.
  perform
  from messages.stream as s
  where s.is_guarded
    or exists (select from messages.queue_grant as g where g.queue = s.name)
  order by s.id
  for no key update;
  update messages.stream as s
  set is_guarded = not s.is_guarded
  where s.is_guarded
    <> exists (select from messages.queue_grant as g where g.queue = s.name);
  return null;
end;
$$;

create or replace trigger guard
  after insert or update or delete or truncate on messages.queue_grant
  for each statement
  execute function notifyq.mark_guarded_streams();

create or replace function notifyq.check_grant(queue text, role text)
  returns void language plpgsql stable
as $$
begin
  if not exists (select from messages.stream as s where s.name = check_grant.queue) then
    perform notifyq.find_queue(check_grant.queue);
  end if;
  if to_regrole(quote_ident(check_grant.role)) is null then
    perform notifyq.raise_invalid(
      format('there is no role %L', check_grant.role), 'create it with CREATE ROLE'
    );
  end if;
end;
$$;

create or replace function messages.grant_queue(
  queue text, role text, publish boolean default true, consume boolean default true
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_is_new boolean;
begin
  perform notifyq.check_grant(queue, role);
  if (publish or consume) is not true then
    perform notifyq.raise_invalid(
      'a grant must allow to publish, to consume, or both', 'take one back with revoke_queue()'
    );
  end if;
  insert into messages.queue_grant as g (queue, role, may_publish, may_consume)
  values (
    grant_queue.queue, grant_queue.role,
    coalesce(grant_queue.publish, false), coalesce(grant_queue.consume, false)
  )
  on conflict on constraint queue_grant_queue_role_pk do update
  set may_publish = excluded.may_publish,
    may_consume = excluded.may_consume,
    granted_at = excluded.granted_at
  where (g.may_publish, g.may_consume) <> (excluded.may_publish, excluded.may_consume);
  v_is_new := found;
  perform notifyq.rebuild_access_trigger();
  return v_is_new;
end;
$$;
comment on function messages.grant_queue is
  'Let a role, and all that have its privileges, publish into a queue, consume from it, or both. '
  'From the first grant on the queue is closed to all others but admins and the owner. The role '
  'also needs notifyq_publisher or notifyq_worker. A second grant replaces the first. False: '
  'nothing changed. Raises NQ001 for an unknown queue, NQ003 for an unknown role, and NQ009 if '
  'transactions that publish or claim stay open.';

create or replace function messages.revoke_queue(queue text, role text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  delete from messages.queue_grant as g
  where g.queue = revoke_queue.queue
    and g.role = revoke_queue.role;
  return found;
end;
$$;
comment on function messages.revoke_queue is
  'Revoke what a role may do with a queue. With the last grant the queue is open again to all '
  'publishers and workers: to keep it closed, first grant it to notifyq_admin. False: there was '
  'no such grant.';

-- A new or restored trigger is disabled, but restored grants must hold.
do $$ begin perform notifyq.rebuild_access_trigger(); end; $$;
