-- Dependencies: messages that wait for the end of other messages.
--
-- raises: NQ002 message not found, NQ003 invalid argument, NQ007 no right to the queue

-- A publisher of such a message locks the messages that it waits for, so that they cannot finish
-- before it commits. Whatever finishes one of them then resolves its dependents. A finisher with an
-- older snapshot (repeatable read) misses them; maintenance resolves them instead.

-- Lock the messages that others will wait for, and return those that are finished, as dependencies
-- without a message.
create or replace function notifyq.predecessors(after bigint[], on_failure text)
  returns notifyq.dependency[] language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_live bigint[];
  v_busy bigint;
  v_queues text[];
  v_ended notifyq.dependency[];
  v_ended_queues text[];
  v_rest bigint[];
  v_lost bigint;
  v_queue text;
begin
  perform notifyq.check_given('on_failure', on_failure is not null);
  perform notifyq.check_choice('on_failure', on_failure, '{cancel,run,hold}');
  if cardinality(after) > 100000 then
    perform notifyq.raise_invalid('a message can wait for 100000 others at most');
  end if;
  loop
    begin
      with locked as materialized (
        select m.id, m.queue from messages.message as m
        where m.id = any (predecessors.after)
        order by m.id
        for key share skip locked
      )
      select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(distinct l.queue), '{}')
      into v_live, v_queues
      from locked as l;
      v_rest := array(
        select u.id from unnest(predecessors.after) as u (id)
        except
        select l.id from unnest(v_live) as l (id)
      );
      v_busy := (select min(m.id) from messages.message as m where m.id = any (v_rest));
      exit when v_busy is null;
      raise exception 'let go';
    exception
      when raise_exception then
        null;
    end;
    -- A finisher locks first what it finishes and then its dependents. A publisher that waits for
    -- it must hold no locks, else some publisher would always be in the way of the finisher.
    begin
      perform from messages.message as m where m.id = v_busy for key share;
      raise exception 'let go';
    exception
      when raise_exception then
        null;
    end;
  end loop;
  if exists (select from messages.queue as q where q.name = any (v_queues) and not q.durable) then
    perform notifyq.raise_invalid(
      'nothing can wait for a message of an unlogged queue, which a crash may lose',
      'make the queue durable'
    );
  end if;
  -- After the locks: a message that finished meanwhile is in the archive.
  select
    coalesce(
      array_agg(row(null, a.id, null, a.status, null, null, null)::notifyq.dependency), '{}'
    ),
    coalesce(array_agg(distinct a.queue), '{}')
  into v_ended, v_ended_queues
  from messages.message_archive as a
  where a.id = any (v_rest);
  select r.id into v_lost
  from (
    select u.id from unnest(v_rest) as u (id)
    except
    select e.after_id from unnest(v_ended) as e
  ) as r
  limit 1;
  if found then
    raise exception using
      errcode = 'NQ002',
      message = format('there is no message %s to run after', coalesce(v_lost::text, 'null')),
      hint = 'its id is wrong, it is not committed yet, or the archive does not keep it any more';
  end if;
  -- Only publishers and consumers of its queue, and readers, may learn how a message ended.
  if exists (select from messages.queue_grant) and not notifyq.has_role('notifyq_reader') then
    foreach v_queue in array v_queues || v_ended_queues
    loop
      if not notifyq.is_allowed(v_queue, 'publish into') then
        perform notifyq.check_access(v_queue, 'consume from');
      end if;
    end loop;
  end if;
  return v_ended;
end;
$$;

-- Add dependencies of messages that were just published, and resolve those on finished ones.
create or replace function notifyq.add_dependencies(
  ids bigint[], after bigint[], on_failure text, due timestamptz, delay interval,
  ended notifyq.dependency[]
)
  returns void language plpgsql
as $$
begin
  insert into notifyq.dependency (message_id, after_id, position, on_failure, available_at, delay)
  select u.id, a.id, a.position, add_dependencies.on_failure, add_dependencies.due,
    add_dependencies.delay
  from unnest(add_dependencies.ids) as u (id)
  cross join unnest(add_dependencies.after) with ordinality as a (id, position)
  order by u.id, a.id;
  if ended <> '{}' then
    perform notifyq.resolve_dependencies(
      array(select e.after_id from unnest(ended) as e order by e.after_id),
      array(select e.status from unnest(ended) as e order by e.after_id),
      array(
        select (
          select a.cancelled_by from messages.message_archive as a where a.id = e.after_id limit 1
        )
        from unnest(ended) as e order by e.after_id
      )
    );
  end if;
end;
$$;

create or replace function messages.dependencies(id bigint)
  returns setof messages.message_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_sees_all boolean := notifyq.sees_all();
  v_readable text[] := notifyq.readable_names(null, to_workers => true);
begin
  if not notifyq.may_read(coalesce(notifyq.queue_of(id), '')) then
    return;
  end if;
  return query
  select d.after_id, coalesce(m.queue, a.queue),
    coalesce(a.status::text, m.state::text, d.status::text),
    coalesce(a.attempts, m.attempts), coalesce(a.available_at, m.available_at),
    a.archived_at,
    case when v_sees_all or notifyq.may_read(a.queue) then a.details end,
    case when v_sees_all or notifyq.may_read(a.queue) then a.result end
  from notifyq.dependency as d
  left join lateral (
    select m.* from messages.message as m where m.id = d.after_id offset 0
  ) as m on true
  left join lateral (
    select a.* from messages.message_archive as a where a.id = d.after_id offset 0
  ) as a on true
  where d.message_id = dependencies.id
    and (v_readable is null or coalesce(m.queue, a.queue) = any (v_readable))
  order by d.position;
end;
$$;
comment on function messages.dependencies is
  'Messages that a message waits for or has waited for, in the order given when it was published: '
  'the state of each, or how it ended, with its result. Details and result are left out for '
  'queues that the caller may not read; a viewer does not get these messages at all. None of a '
  'message that the caller may not read, and none once the message itself has succeeded.';

create or replace function messages.unblock(id bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
begin
  update messages.message as m
  set blockers = null,
    state = 'waiting',
    available_at = now()
  where m.id = unblock.id
    and m.blockers is not null;
  if not found then
    return false;
  end if;
  delete from notifyq.dependency as d where d.message_id = unblock.id and d.status is null;
  perform notifyq.notify_messages(array[unblock.id]);
  return true;
end;
$$;
comment on function messages.unblock is
  'Make a message due now that waits for others, finished or not. False: it waits for none. To '
  'give it up instead, cancel() it.';

-- Resolve: what the end of messages means for their dependents.
--
-- A chain of any length is resolved at once, not link by link. Rows of messages are locked in id
-- order before anything changes. A message that is to be cancelled cannot escape meanwhile: waiting
-- for others, it cannot be claimed.

-- Lock the dependents of these messages; return those to be cancelled, and for each the message
-- that causes it.
create or replace function notifyq.lock_dependents(
  ids bigint[], statuses messages.message_status[], out cancelled bigint[], out causes bigint[]
)
  language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
  -- archive() has it off: all dependencies would be read.
  set enable_nestloop = on set lock_timeout = '200ms'
as $$
declare
  v_waiting bigint[];
  v_locked bigint[];
  v_tries integer := 0;
begin
  loop
    begin
      v_locked := '{}';
      loop
        with recursive reached (id, cause, fails) as (
          select u.id, null::bigint, u.status <> 'success'
          from unnest(lock_dependents.ids, lock_dependents.statuses) as u (id, status)
          union
          select d.message_id, coalesce(r.cause, r.id), d.fails
          from reached as r
          -- Each id is looked up: a join could read all dependencies and compare each with each.
          cross join lateral (
            select e.message_id, r.fails and e.on_failure = 'cancel' as fails
            from notifyq.dependency as e
            where e.after_id = r.id and e.status is null
            offset 0
          ) as d
          -- Only what has ended, or is about to be cancelled, ends a wait.
          where r.cause is null or r.fails
        )
        select coalesce(array_agg(o.id order by o.id) filter (where o.fails), '{}'),
          array_agg(o.cause order by o.id) filter (where o.fails),
          coalesce(array_agg(o.id order by o.id), '{}')
        into lock_dependents.cancelled, lock_dependents.causes, v_waiting
        from (
          select r.id, bool_or(r.fails) as fails, min(r.cause) filter (where r.fails) as cause
          from reached as r
          where r.cause is not null
          group by r.id
        ) as o;
        -- Locked messages get no new dependents, but may have got some before.
        exit when v_waiting = v_locked;
        perform from messages.message as m
        where m.id = any (v_waiting)
        order by m.id
        for update;
        v_locked := v_waiting;
      end loop;
      exit;
    exception
      -- New ones may have smaller ids than locked ones: release all locks and begin again, as the
      -- transactions that hold those may wait for these.
      when lock_not_available then
        v_tries := v_tries + 1;
        -- Locks from earlier in the transaction are kept; to detect a deadlock with them the server
        -- needs a wait longer than its deadlock_timeout.
        if v_tries >= 10 then
          perform set_config('lock_timeout', '0', true);
        end if;
    end;
  end loop;
end;
$$;

create or replace function notifyq.resolve_dependencies(
  ids bigint[], statuses messages.message_status[], cancelled_by text[] default null
)
  returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off
  -- All rows are found by id. The planner expects few, and a nested loop would compare each with
  -- each.
  set enable_nestloop = off set jit = off
as $$
declare
  v_cancelled bigint[];
  v_causes bigint[];
  v_due bigint[];
begin
  select l.cancelled, l.causes into v_cancelled, v_causes
  from notifyq.lock_dependents(ids, statuses) as l;
  with ended as (
    select u.id, u.status from unnest(ids, statuses) as u (id, status)
    union all
    select u.id, 'rejected' from unnest(v_cancelled) as u (id)
  ),
  marked as (
    update notifyq.dependency as d
    set status = e.status
    from ended as e
    where d.after_id = e.id
      and d.after_id = any (ids || v_cancelled)
      and d.status is null
    returning d.message_id, d.available_at, d.delay,
      case when e.status <> 'success' then d.on_failure end as failing
  ),
  counted as (
    select k.message_id, min(k.available_at) as due, min(k.delay) as delay,
      count(*) filter (where k.failing is distinct from 'hold') as ended
    from marked as k
    group by k.message_id
    having bool_and(k.failing is distinct from 'cancel')
  ),
  freed as (
    update messages.message as m
    set blockers = nullif(m.blockers - c.ended, 0),
      -- The trigger `schedule` makes it scheduled if it is not due.
      state = 'waiting',
      available_at = case
        when m.blockers > c.ended then m.available_at
        when c.delay > interval '0' then clock_timestamp() + c.delay
        else greatest(c.due, now()) end
    from counted as c
    where m.id = c.message_id
      and m.id = any (array(select k.message_id from counted as k))
      and m.blockers is not null
    returning m.id, m.state
  )
  select array_agg(f.id order by f.id) into v_due from freed as f where f.state = 'waiting';
  if v_cancelled <> '{}' then
    -- What waited for a cancelled message is cancelled by the same, what waited for a dead one is
    -- dead like that.
    perform notifyq.archive(
      array_agg(m.id), array_agg(m.lock_token),
      array_agg('rejected'::messages.message_status),
      array_agg(format('cancelled: it waited for message %s, which did not succeed', u.cause)),
      state => 'scheduled', cancelled_by => b.cancelled_by
    )
    from unnest(v_cancelled, v_causes) as u (id, cause)
    join messages.message as m on m.id = u.id
    join unnest(ids, resolve_dependencies.cancelled_by) as b (id, cancelled_by) on b.id = u.cause
    where m.id = any (v_cancelled)
    group by b.cancelled_by;
  end if;
  perform notifyq.notify_messages(v_due[1:1000]);
end;
$$;

-- For the trigger of the archive, while there are dependencies.
create or replace function notifyq.settle_dependencies(
  ids bigint[], statuses messages.message_status[], cancelled_by text[]
)
  returns void language plpgsql
  set enable_seqscan = off
  -- Callers of archive() may have it off, and settings hold for triggers as well: all dependencies
  -- would be read in order.
  set enable_sort = on set jit = off
as $$
begin
  if exists (
    select from notifyq.dependency as d where d.after_id = any (ids) and d.status is null
  ) then
    perform notifyq.resolve_dependencies(ids, statuses, cancelled_by);
  end if;
  -- Dependencies of a dead message stay: it may be published again, and then reads their results.
  delete from notifyq.dependency as d
  where d.message_id = any (
    array(select u.id from unnest(ids, statuses) as u (id, status) where u.status = 'success')
  );
end;
$$;

-- Redirect: dependencies on messages that are redriven or gone.

-- Messages held for a dead message wait for its redriven one. A redriven message that itself waited
-- does so again, for the redriven ones of its predecessors: a redriven chain keeps its order. A
-- dead predecessor that is not redriven holds nothing up.
create or replace function notifyq.redirect_dependents(dead bigint[], again bigint[])
  returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off
  -- As in resolve_dependencies().
  set enable_nestloop = off set jit = off
as $$
begin
  perform from messages.message as m
  where m.id = any (
    array(
      select d.message_id from notifyq.dependency as d
      where d.after_id = any (dead) and d.on_failure = 'hold' and d.status <> 'success'
    )
  )
  order by m.id
  for no key update;
  update notifyq.dependency as d
  set after_id = u.again,
    status = null
  from unnest(dead, again) as u (dead, again)
  where d.after_id = u.dead
    and d.after_id = any (redirect_dependents.dead)
    and d.on_failure = 'hold'
    and d.status <> 'success';
  insert into notifyq.dependency (message_id, after_id, position, status, delay, on_failure)
  select
    u.again, l.id, d.position,
    case when m.id is null then coalesce(
      (select a.status from messages.message_archive as a where a.id = l.id), d.status, 'rejected'
    ) end,
    d.delay, d.on_failure
  from unnest(dead, again) as u (dead, again)
  -- Each is looked up, here and below: joins could compare all with all.
  cross join lateral (
    select e.* from notifyq.dependency as e where e.message_id = u.dead offset 0
  ) as d
  -- The last redriven message of it.
  cross join lateral (
    with recursive hop (id) as (
      select d.after_id
      union all
      select r.message_id
      from hop as h
      cross join lateral (
        select n.message_id from notifyq.redrive as n where n.archive_id = h.id offset 0
      ) as r
    )
    select max(h.id) as id from hop as h
  ) as l
  left join lateral (
    select n.id from messages.message as n where n.id = l.id offset 0
  ) as m on true
  order by u.again, l.id
  on conflict on constraint dependency_message_id_after_id_pk do nothing;
  update messages.message as m
  set blockers = w.blockers,
    available_at = 'infinity'
  from (
    select d.message_id, count(*) as blockers
    from notifyq.dependency as d
    where d.message_id = any (again)
      and d.status is null
    group by d.message_id
  ) as w
  where m.id = w.message_id
    and m.id = any (again);
end;
$$;

-- Check more dependencies, from where this session stopped last: resolve those on messages that are
-- gone, and delete those of messages that are gone.
create or replace function notifyq.sweep_dependencies(quantity bigint)
  returns integer language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_position bigint[] := nullif(current_setting('notifyq.swept', true), '')::bigint[];
  v_swept notifyq.dependency[];
  v_gone bigint[];
begin
  if not exists (select from notifyq.dependency) then
    return 0;
  end if;
  v_swept := array(
    select d from notifyq.dependency as d
    where (d.message_id, d.after_id) > (coalesce(v_position[1], 0), coalesce(v_position[2], 0))
    order by d.message_id, d.after_id
    limit sweep_dependencies.quantity
  );
  perform set_config(
    'notifyq.swept',
    case when cardinality(v_swept) < quantity then '' else
      array[v_swept[quantity].message_id, v_swept[quantity].after_id]::text end,
    false
  );
  v_gone := array(
    select distinct s.after_id from unnest(v_swept) as s
    where s.status is null
      and not exists (select from messages.message as m where m.id = s.after_id offset 0)
  );
  if v_gone <> '{}' then
    perform notifyq.resolve_dependencies(
      array_agg(g.id), array_agg(coalesce(a.status, 'rejected')), array_agg(a.cancelled_by)
    )
    from unnest(v_gone) as g (id)
    left join lateral (
      select o.status, o.cancelled_by
      from messages.message_archive as o
      where o.id = g.id
      offset 0
    ) as a on true;
  end if;
  delete from notifyq.dependency as d
  where d.message_id = any (array(
    select distinct s.message_id from unnest(v_swept) as s
    where not exists (select from messages.message as m where m.id = s.message_id offset 0)
      and not exists (
        select from messages.message_archive as a where a.id = s.message_id offset 0
      )
  ));
  return cardinality(v_swept);
end;
$$;
