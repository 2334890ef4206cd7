-- Unlogged: queues that need not survive a crash, and ring queues.
--
-- raises: NQ005 queue not empty

-- Their messages are in notifyq.message_unlogged, an unlogged table which is a child of
-- messages.message while there is such a queue: claims, settlements and reports find them with all
-- others. A trigger diverts inserts. Messages that succeed are counted and leave no row in the
-- archive; dead messages, and those with awaited, are archived as usual.

create or replace function notifyq.divert_unlogged()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  insert into notifyq.message_unlogged values (new.*)
  on conflict (queue, dedup_key) where dedup_key is not null do nothing;
  return null;
end;
$$;

-- The triggers of messages.message, as a child table does not inherit them.
do $$
declare
  v_trigger text;
begin
  for v_trigger in
    select replace(
      pg_get_triggerdef(g.oid), ' ON messages.message ', ' ON notifyq.message_unlogged '
    )
    from pg_trigger as g
    where g.tgrelid = 'messages.message'::regclass
      and g.tgname in ('admit', 'assign_xid', 'bound', 'published', 'schedule')
  loop
    execute replace(v_trigger, 'CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER');
  end loop;
end;
$$;

-- The second gate to the archive. archive() comes first: messages in both tables are locked in this
-- order, which every statement over messages.message follows.
create or replace function notifyq.archive_unlogged(
  ids bigint[], lock_tokens bigint[], statuses messages.message_status[], details text[],
  results jsonb[], state messages.message_state, dropped boolean default false,
  cancelled_by text default null
)
  returns setof bigint language plpgsql
  set enable_bitmapscan = off set enable_seqscan = off set enable_nestloop = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_ids bigint[];
  v_queues text[];
begin
  with ending as (
    select distinct on (u.id, u.lock_token) u.id, u.lock_token, u.status, u.details, u.result
    from unnest(
      archive_unlogged.ids, archive_unlogged.lock_tokens, archive_unlogged.statuses,
      archive_unlogged.details, archive_unlogged.results
    ) as u (id, lock_token, status, details, result)
  ),
  gone as (
    delete from notifyq.message_unlogged as m
    where m.id = any (archive_unlogged.ids)
      and (
        (m.id, m.lock_token, m.state) in (
          select e.id, e.lock_token, archive_unlogged.state
          from unnest(archive_unlogged.ids, archive_unlogged.lock_tokens) as e (id, lock_token)
        )
      ) is true
    returning m.*
  ),
  archived as (
    insert into messages.message_archive as a (
      id, created_at, available_at, locked_at, lock_token, priority, attempts, status, queue, type,
      handled_by, dedup_key, message, headers, details, result, key, max_attempts, awaited,
      cancelled_by
    )
    select
      g.id, g.created_at, g.available_at, g.locked_at, g.lock_token, g.priority, g.attempts,
      e.status, g.queue, g.type, g.locked_by, coalesce(g.dedup_key, g.given_up_key), g.message,
      g.headers, e.details, e.result, g.key, g.max_attempts, g.awaited,
      archive_unlogged.cancelled_by
    from gone as g
    join ending as e on e.id = g.id and e.lock_token = g.lock_token
    where g.awaited
      or e.status <> 'success' and not archive_unlogged.dropped
  ),
  counted as (
    insert into notifyq.unlogged_count (queue, finished, dropped)
    select g.queue, count(*) filter (where e.status = 'success'),
      count(*) filter (where archive_unlogged.dropped)
    from gone as g
    join ending as e on e.id = g.id and e.lock_token = g.lock_token
    where e.status = 'success'
      or archive_unlogged.dropped
    group by g.queue
  )
  select coalesce(array_agg(g.id), '{}'), array_agg(distinct g.queue) into v_ids, v_queues
  from gone as g;
  -- The trigger of the archive notifies only for archived messages.
  if v_ids <> '{}' and exists (select from notifyq.limit_turn as f where f.is_blocked) then
    perform notifyq.notify_freed(v_queues, v_ids);
  end if;
  return query select u.id from unnest(v_ids) as u (id);
end;
$$;

-- Called after durable or encrypted was changed, while publishers are locked out.
create or replace function notifyq.check_moved(queue text)
  returns void language plpgsql
as $$
begin
  -- The one table may not be a child of the other any more.
  if exists (select from messages.message as m where m.queue = check_moved.queue)
    or exists (select from notifyq.message_unlogged as m where m.queue = check_moved.queue)
  then
    raise exception using
      errcode = 'NQ005',
      message = format('queue %L still has messages', queue),
      hint = 'durable and encrypted can be changed once they are finished, or cancelled';
  end if;
end;
$$;

-- Called, not joined: a standby cannot even plan a query of an unlogged table.
create or replace function notifyq.count_unlogged(
  queue text, out _finished bigint, out _dropped bigint
)
  language sql stable
as $$
  select coalesce(sum(c.finished), 0)::bigint, coalesce(sum(c.dropped), 0)::bigint
  from notifyq.unlogged_count as c
  where c.queue = count_unlogged.queue;
$$;

-- Ring queue: an unlogged queue with a capacity that drops its oldest messages; publishers never
-- wait.
--
-- Publishers make room when their transactions commit, one after the other, and wait up to a tenth
-- of a second for that: if another transaction holds the lock for longer, maintenance removes the
-- excess.

-- Drop messages over capacity, in the order of drop_oldest; return the room that is left. A large
-- queue drops a hundredth at a time, as it counts all of its messages.
create or replace function notifyq.trim_ring_rows(queue messages.queue)
  returns bigint language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_live bigint;
  v_excess bigint;
  v_dropped notifyq.message_unlogged[];
begin
  v_live := (
    select count(*) from notifyq.message_unlogged as m
    where m.queue = trim_ring_rows.queue.name
      and m.state = 'waiting'
  ) + (
    select count(*) from notifyq.message_unlogged as m
    where m.queue = trim_ring_rows.queue.name
      and m.state = 'scheduled'
  );
  if v_live <= queue.capacity then
    return queue.capacity - v_live;
  end if;
  v_excess := v_live - queue.capacity + queue.capacity / 100;
  v_dropped := array(
    select m
    from notifyq.message_unlogged as m
    where m.queue = trim_ring_rows.queue.name
      and m.state <> 'locked'
    order by m.state, m.priority, case when m.state = 'scheduled' then m.available_at end, m.id
    limit v_excess
    for update skip locked
  );
  perform notifyq.archive_unlogged(
    array_agg(d.id), array_agg(d.lock_token), array_agg('rejected'::messages.message_status),
    array_agg(format('dropped: the queue was full, its capacity is %s', queue.capacity)),
    null::jsonb[], d.state, true
  )
  from unnest(v_dropped) as d
  group by d.state;
  return (queue.capacity / 100)::bigint;
end;
$$;

create or replace function notifyq.trim_ring()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set lock_timeout = '100ms'
as $$
declare
  v_setting text := notifyq.secret_setting('notifyq.trim', new.queue);
  v_last bigint := pg_sequence_last_value('messages.message_id_seq');
  v_queue messages.queue;
  v_number bigint;
  v_room bigint;
begin
  -- One call is for all that this transaction has published so far. With an older snapshot it could
  -- not see which messages to remove.
  if new.id <= concat('0', current_setting(v_setting, true))::bigint
    or current_setting('transaction_isolation') <> 'read committed'
  then
    return null;
  end if;
  perform set_config(v_setting, v_last::text, true);
  begin
    perform pg_advisory_xact_lock(hashtextextended(new.queue, 7305427007));
    select q.* into v_queue from messages.queue as q where q.name = new.queue;
    select r.number, r.room into v_number, v_room
    from notifyq.unlogged_room as r
    where r.queue = new.queue
    order by r.number desc
    limit 1;
    -- Other sessions have used some of these ids: messages are counted a bit too early.
    v_room := v_room - (v_last - new.id + 1);
    if v_room is null or v_room < 0 then
      v_room := notifyq.trim_ring_rows(v_queue);
    end if;
    if v_number is null then
      insert into notifyq.unlogged_room (queue, number, room) values (new.queue, 1, v_room);
    else
      update notifyq.unlogged_room as r
      set number = r.number + 1,
        room = v_room
      where r.queue = new.queue
        and r.number = v_number;
    end if;
  exception
    when lock_not_available or deadlock_detected then
      null;
  end;
  return null;
end;
$$;

-- For maintenance: trim ring queues that publishers left too full, and add up counts.
create or replace function notifyq.sweep_unlogged(quantity integer)
  returns void language plpgsql
as $$
declare
  v_queue messages.queue;
begin
  if exists (select from notifyq.unlogged_count offset 1000) then
    with folded as (
      delete from notifyq.unlogged_count as c
      where c.ctid = any (array(
        select o.ctid from notifyq.unlogged_count as o limit sweep_unlogged.quantity
      ))
      returning c.queue, c.finished, c.dropped
    )
    insert into notifyq.unlogged_count (queue, finished, dropped)
    select f.queue, sum(f.finished)::bigint, sum(f.dropped)::bigint
    from folded as f
    group by f.queue;
  end if;
  for v_queue in
    select q.* from messages.queue as q
    where not q.durable and q.capacity is not null and q.overflow = 'drop_oldest'
    order by q.name
  loop
    if pg_try_advisory_xact_lock(hashtextextended(v_queue.name, 7305427007)) then
      perform notifyq.trim_ring_rows(v_queue);
    end if;
  end loop;
end;
$$;
