-- Access: who may use a queue or a stream, and grants on it.
--
-- raises: NQ007 no right to the queue, NQ001 queue not found, NQ003 invalid argument, NQ009 open
-- transactions

-- These functions run as the owner, so current_user says nothing: the caller is the role of SET
-- ROLE, else that of the session. A queue without grants is open to all who have the function. Who
-- calls one asks first whether there is any grant, which in most databases ends the matter.

create or replace function notifyq.calling_role()
  returns text
  language sql
  stable
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user);
$$;

-- Usage, not membership: what a role may is what its privileges are without another SET ROLE.
create or replace function notifyq.has_role(role text)
  returns boolean
  language sql
  stable
as $$
  select coalesce(
    pg_has_role(notifyq.calling_role()::name, to_regrole(quote_ident(role))::oid, 'usage'), false
  );
$$;

create or replace function notifyq.is_allowed(queue text, act text)
  returns boolean
  language plpgsql
  stable
as $$
begin
  return not exists (select from messages.queue_grant as g where g.queue = is_allowed.queue)
    or exists (
      select from messages.queue_grant as g
      where g.queue = is_allowed.queue
        and case is_allowed.act when 'publish into' then g.may_publish else g.may_consume end
        and notifyq.has_role(g.role)
    )
    or notifyq.has_role('notifyq_admin')
    or notifyq.has_role(
      (select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'messages')
    );
end;
$$;

create or replace function notifyq.check_access(queue text, act text)
  returns void
  language plpgsql
  stable
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

-- Whether the caller may consume from a queue; an error where it was asked for by name.
create or replace function notifyq.may_consume(queue text, is_named boolean)
  returns boolean
  language plpgsql
  stable
as $$
begin
  if is_named then
    perform notifyq.check_access(queue, 'consume from');
  end if;
  return is_named or notifyq.is_allowed(queue, 'consume from');
end;
$$;

-- The queues from which the caller may not consume.
create or replace function notifyq.barred_queues()
  returns text[]
  language sql
  stable
as $$
  select coalesce(array_agg(q.name), '{}')
  from (select distinct g.queue from messages.queue_grant as g) as q (name)
  where not notifyq.is_allowed(q.name, 'consume from');
$$;

-- The ids, with null in place of each message that is in a barred queue: an id and a token are
-- small numbers that anybody can guess, so they prove nothing.
create or replace function notifyq.hide_barred(ids bigint[])
  returns bigint[]
  language plpgsql
  stable
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

-- Of the trigger that is enabled while any queue has a grant, see common/access.sql.
create or replace function notifyq.admit()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- No publisher can set the token: only a schedule, which an admin has defined and any worker may
  -- fire, begins with another one.
  if new.lock_token = 0 then
    perform notifyq.check_access(new.queue, 'publish into');
  end if;
  return new;
end;
$$;

-- Queue grants: keep a queue to some roles.

do $$
begin
  if not exists (
    select from pg_trigger as g
    where g.tgrelid = 'messages.message'::regclass and g.tgname = 'admit'
  ) then
    -- The first of all triggers, which fire by name: before a conflict of keys or the limit of a
    -- queue tells anything. Not `create or replace`: that would enable it.
    create trigger admit
      before insert on messages.message
      for each row
      execute function notifyq.admit();
    alter table messages.message disable trigger admit;
  end if;
end;
$$;

-- Enabled while any queue has a grant; else publishers pay nothing for it.
create or replace function notifyq.rebuild_access_trigger()
  returns void
  language plpgsql
  -- It locks out whoever publishes or claims, so it must not wait long for those who do.
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

-- Whoever publishes into a stream without grants is not to pay for a look at this table.
create or replace function notifyq.guard()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
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
  execute function notifyq.guard();

-- One that was dropped has been made anew, and is off.
do $$
begin
  perform notifyq.rebuild_access_trigger();
end;
$$;

create or replace function messages.grant_queue(
  queue text,
  role text,
  publish boolean default true,
  consume boolean default true
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_is_new boolean;
begin
  if not exists (select from messages.stream as s where s.name = grant_queue.queue) then
    perform notifyq.find_queue(grant_queue.queue);
  end if;
  if to_regrole(quote_ident(grant_queue.role)) is null then
    perform notifyq.raise_invalid(
      format('there is no role %L', grant_queue.role), 'create it with `create role`'
    );
  end if;
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
comment on function messages.grant_queue(text, text, boolean, boolean) is
  'Let a role, and all who have its privileges, publish into a queue, consume from it, or both. '
  'From the first grant on the queue is closed to everybody else but admins and the owner. The '
  'role needs notifyq_publisher or notifyq_worker as well. A second grant replaces the first. '
  'False: it was so already. Raises NQ001 for an unknown queue, NQ003 for an unknown role, and '
  'NQ009 where transactions that publish or claim stay open.';

create or replace function messages.revoke_queue(queue text, role text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  delete from messages.queue_grant as g
  where g.queue = revoke_queue.queue
    and g.role = revoke_queue.role;
  return found;
end;
$$;
comment on function messages.revoke_queue(text, text) is
  'Take back what a role may do with a queue. With the last grant the queue is open again to all '
  'who may publish or work: to keep it closed, grant it to notifyq_admin first. False: there was '
  'no such grant.';

create or replace function messages.queue_grants(queue text default null)
  returns setof messages.queue_grant
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select g.*
  from messages.queue_grant as g
  where queue_grants.queue is null or g.queue = queue_grants.queue
  order by g.queue, g.role;
end;
$$;
comment on function messages.queue_grants(text) is
  'Which roles may use a queue (null: all queues that have grants).';

-- After the last grant was revoked publishers need not go on paying, and a restored one must hold.
do $$ begin perform notifyq.rebuild_access_trigger(); end; $$;
