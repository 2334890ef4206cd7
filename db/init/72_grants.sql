-- Queue grants: keep a queue to some roles.
--
-- owns:    trigger admit of messages.message, trigger guard of messages.queue_grant
-- writes:  messages.queue_grant, messages.stream
-- calls:   messages._queue, messages._invalid, messages._busy; the trigger calls messages._admit
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ009 open transactions

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
      execute function messages._admit();
    alter table messages.message disable trigger admit;
  end if;
end;
$$;

-- Enabled while any queue has a grant; else publishers pay nothing for it.
create or replace function messages._arm()
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
    perform messages._busy('publish or claim');
end;
$$;

-- Whoever publishes into a stream without grants is not to pay for a look at this table.
create or replace function messages._guard()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
  execute function messages._guard();

-- One that was dropped has been made anew, and is off.
do $$
begin
  perform messages._arm();
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
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_is_new boolean;
begin
  if not exists (select from messages.stream as s where s.name = grant_queue.queue) then
    perform messages._queue(grant_queue.queue);
  end if;
  if to_regrole(quote_ident(grant_queue.role)) is null then
    perform messages._invalid(
      format('there is no role %L', grant_queue.role), 'create it with `create role`'
    );
  end if;
  if (publish or consume) is not true then
    perform messages._invalid(
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
  perform messages._arm();
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
  set search_path = pg_catalog, messages, pg_temp
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
  set search_path = pg_catalog, messages, pg_temp
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
do $$ begin perform messages._arm(); end; $$;
