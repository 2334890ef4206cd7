-- Access: whether whoever calls may use a queue. See 72_grants.sql for how that is told.
--
-- These functions run as the owner, so current_user says nothing: the caller is the role of SET
-- ROLE, else that of the session. A queue without grants is open to all who have the function. Who
-- calls one asks first whether there is any grant, which in most databases ends the matter.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  NQ007 no right to the queue

create or replace function messages._caller()
  returns text
  language sql
  stable
as $$
  select coalesce(nullif(current_setting('role'), 'none'), session_user);
$$;

-- Usage, not membership: what a role may is what its privileges are without another SET ROLE.
create or replace function messages._has_role(role text)
  returns boolean
  language sql
  stable
as $$
  select coalesce(
    pg_has_role(messages._caller()::name, to_regrole(quote_ident(role))::oid, 'usage'), false
  );
$$;

create or replace function messages._may(queue text, act text)
  returns boolean
  language plpgsql
  stable
as $$
begin
  return not exists (select from messages.queue_grant as g where g.queue = _may.queue)
    or exists (
      select from messages.queue_grant as g
      where g.queue = _may.queue
        and case _may.act when 'publish into' then g.may_publish else g.may_consume end
        and messages._has_role(g.role)
    )
    or messages._has_role('notifyq_admin')
    or messages._has_role(
      (select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'messages')
    );
end;
$$;

create or replace function messages._check_access(queue text, act text)
  returns void
  language plpgsql
  stable
as $$
begin
  if not messages._may(queue, act) then
    raise exception using
      errcode = 'NQ007',
      message = format('role %I may not %s queue %L', messages._caller(), act, queue),
      hint = 'an admin can allow it with `notifyq queues grant` or messages.grant_queue()';
  end if;
end;
$$;

-- Whether the caller may consume from a queue; an error where it was asked for by name.
create or replace function messages._consents(queue text, is_named boolean)
  returns boolean
  language plpgsql
  stable
as $$
begin
  if is_named then
    perform messages._check_access(queue, 'consume from');
  end if;
  return is_named or messages._may(queue, 'consume from');
end;
$$;

-- The queues from which the caller may not consume.
create or replace function messages._barred_queues()
  returns text[]
  language sql
  stable
as $$
  select coalesce(array_agg(q.name), '{}')
  from (select distinct g.queue from messages.queue_grant as g) as q (name)
  where not messages._may(q.name, 'consume from');
$$;

-- The ids, with null in place of each message that is in a barred queue: an id and a token are
-- small numbers that anybody can guess, so they prove nothing.
create or replace function messages._screen(ids bigint[])
  returns bigint[]
  language plpgsql
  stable
as $$
declare
  v_barred text[] := messages._barred_queues();
begin
  if v_barred = '{}' then
    return ids;
  end if;
  return array(
    select (
      select m.id from messages.message as m where m.id = u.id and m.queue <> all (v_barred)
    )
    from unnest(_screen.ids) with ordinality as u (id, position)
    order by u.position
  );
end;
$$;

-- Of the trigger that is enabled while any queue has a grant, see 72_grants.sql.
create or replace function messages._admit()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  -- No publisher can set the token: only a schedule, which an admin has defined and any worker may
  -- fire, begins with another one.
  if new.lock_token = 0 then
    perform messages._check_access(new.queue, 'publish into');
  end if;
  return new;
end;
$$;
