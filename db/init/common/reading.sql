-- Reading: what the caller may see of queues and streams, and the grants of it.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

-- Readers, admins and the owner see all; workers see what they may consume; everybody else sees
-- what was granted to it. A caller without any of our roles comes by a function of its own that
-- another role owns: it must not see more than that role.

create or replace function notifyq.sees_all()
  returns boolean language sql stable
as $$
  select notifyq.has_role('notifyq_reader') or notifyq.is_admin()
    -- A server where the roles could not be created: the owner has granted by hand.
    or to_regrole('notifyq_viewer') is null;
$$;

create or replace function notifyq.may_read(queue text)
  returns boolean language sql stable
as $$
  select notifyq.sees_all()
    or exists (
      select from messages.read_grant as g
      where g.queue = may_read.queue and notifyq.has_role(g.role)
    )
    or notifyq.has_role('notifyq_worker')
    and notifyq.is_allowed(may_read.queue, 'consume from');
$$;

create or replace function notifyq.check_readable(queue text)
  returns void language plpgsql stable
as $$
begin
  if not notifyq.may_read(queue) then
    raise exception using
      errcode = 'NQ007',
      message = format('role %I may not read queue %L', notifyq.calling_role(), queue),
      hint = 'an admin can allow it with `notifyq queues grant --read` or messages.grant_read()';
  end if;
end;
$$;

-- The names that the caller may read; null: all. Raises if it has named a queue that it may not
-- read, whether there is one or not. to_workers: they may see all, as names, policies and counts.
create or replace function notifyq.readable_names(queue text, to_workers boolean default false)
  returns text[] language plpgsql stable
as $$
declare
  v_is_worker boolean := notifyq.has_role('notifyq_worker');
begin
  if notifyq.sees_all() or to_workers and v_is_worker then
    return null;
  elsif queue is not null then
    perform notifyq.check_readable(queue);
  end if;
  return array(
    select n.name
    from (
      select g.queue from messages.read_grant as g
      union
      select q.name from messages.queue as q where v_is_worker
      union
      select s.name from messages.stream as s where v_is_worker
    ) as n (name)
    where notifyq.may_read(n.name)
    order by n.name
  );
end;
$$;

-- The queue of a live or finished message; null: nothing of it is kept.
create or replace function notifyq.queue_of(id bigint)
  returns text language sql stable
  set enable_seqscan = off set jit = off
as $$
  select coalesce(
    (select m.queue from messages.message as m where m.id = queue_of.id),
    (select a.queue from messages.message_archive as a where a.id = queue_of.id limit 1)
  );
$$;

create or replace function messages.grant_read(queue text, role text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_grant(queue, role);
  insert into messages.read_grant (queue, role)
  values (grant_read.queue, grant_read.role)
  on conflict on constraint read_grant_queue_role_pk do nothing;
  return found;
end;
$$;
comment on function messages.grant_read is
  'Let a role, and all that have its privileges, read a queue or stream: its messages, archive and '
  'counts, with the functions of notifyq_viewer, which the role also needs. It closes nothing to '
  'others. False: it was granted already. Raises NQ001 for an unknown queue and NQ003 for an '
  'unknown role.';

create or replace function messages.revoke_read(queue text, role text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  delete from messages.read_grant as g
  where g.queue = revoke_read.queue
    and g.role = revoke_read.role;
  return found;
end;
$$;
comment on function messages.revoke_read is
  'Revoke what grant_read() has granted. False: there was no such grant.';

create or replace function messages.queue_grants(queue text default null)
  returns setof messages.grant_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  return query
  select g.queue, g.role, max(g.granted_at), bool_or(g.publish), bool_or(g.consume),
    bool_or(g.read)
  from (
    select u.queue, u.role, u.granted_at, u.may_publish, u.may_consume, false
    from messages.queue_grant as u
    union all
    select r.queue, r.role, r.granted_at, false, false, true
    from messages.read_grant as r
  ) as g (queue, role, granted_at, publish, consume, read)
  where (queue_grants.queue is null or g.queue = queue_grants.queue)
    and (v_readable is null or g.queue = any (v_readable))
  group by g.queue, g.role
  order by g.queue, g.role;
end;
$$;
comment on function messages.queue_grants is
  'Which roles may use or read a queue or stream (null: all that have grants).';
