-- Volatile: queues that need not outlive a crash, and rings.
--
-- raises: NQ005 queue not empty, NQ009 open transactions

-- They are in messages.message_volatile, which is unlogged and, while there is such a queue, a
-- child of messages.message: claims, settlements and reports find them with all others. An insert
-- is diverted by a trigger. What succeeds leaves no row in the archive but is counted; what dies,
-- and what somebody waits for, is archived as from any queue.

create or replace function messages._divert()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  insert into messages.message_volatile values (new.*)
  on conflict (queue, dedup_key) where dedup_key is not null do nothing;
  return null;
end;
$$;

create or replace trigger number
  before insert on messages.message_volatile
  for each statement
  when (pg_current_xact_id() is null)
  execute function messages._number();

create or replace trigger admit
  before insert on messages.message_volatile
  for each row execute function messages._admit();

-- The conditions are those of messages.message.
create or replace trigger bound
  before insert on messages.message_volatile
  for each row
  when (
    octet_length(concat(new.message, new.headers, new.type, new.dedup_key, new.key)) > 200
    or new.max_attempts is not null
  )
  execute function messages._bound();

create or replace trigger schedule
  before insert or update of available_at on messages.message_volatile
  for each row
  when (new.available_at <> now())
  execute function messages._schedule();

create or replace trigger published
  after insert on messages.message_volatile
  for each row
  when (pg_try_advisory_xact_lock_shared(hashtextextended(new.queue, 7305427004)))
  execute function messages._published();

-- The second gate to the archive, see _archive(), which comes first: whoever settles messages of
-- both kinds locks the durable ones before these, as every statement over messages.message does.
create or replace function messages._archive_volatile(
  ids bigint[],
  lock_tokens bigint[],
  statuses messages.message_status[],
  details text[],
  results jsonb[],
  state messages.message_state,
  dropped boolean default false
)
  returns setof bigint
  language plpgsql
  set enable_bitmapscan = off
  set enable_seqscan = off
  set enable_nestloop = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_ids bigint[];
  v_queues text[];
begin
  with ending as (
    select distinct on (u.id, u.lock_token) u.id, u.lock_token, u.status, u.details, u.result
    from unnest(
      _archive_volatile.ids, _archive_volatile.lock_tokens, _archive_volatile.statuses,
      _archive_volatile.details, _archive_volatile.results
    ) as u (id, lock_token, status, details, result)
  ),
  gone as (
    delete from messages.message_volatile as m
    where m.id = any (_archive_volatile.ids)
      and (
        (m.id, m.lock_token, m.state) in (
          select e.id, e.lock_token, _archive_volatile.state
          from unnest(_archive_volatile.ids, _archive_volatile.lock_tokens) as e (id, lock_token)
        )
      ) is true
    returning m.*
  ),
  archived as (
    insert into messages.message_archive as a (
      id, created_at, available_at, locked_at, lock_token, priority, attempts, status, queue, type,
      handled_by, dedup_key, message, headers, details, result, key, max_attempts, awaited
    )
    select
      g.id, g.created_at, g.available_at, g.locked_at, g.lock_token, g.priority, g.attempts,
      e.status, g.queue, g.type, g.locked_by, coalesce(g.dedup_key, g.given_up_key), g.message,
      g.headers, e.details, e.result, g.key, g.max_attempts, g.awaited
    from gone as g
    join ending as e on e.id = g.id and e.lock_token = g.lock_token
    where g.awaited
      or e.status <> 'success' and not _archive_volatile.dropped
  ),
  counted as (
    insert into messages.volatile_count (queue, finished, dropped)
    select g.queue, count(*) filter (where e.status = 'success'),
      count(*) filter (where _archive_volatile.dropped)
    from gone as g
    join ending as e on e.id = g.id and e.lock_token = g.lock_token
    where e.status = 'success'
      or _archive_volatile.dropped
    group by g.queue
  )
  select coalesce(array_agg(g.id), '{}'), array_agg(distinct g.queue) into v_ids, v_queues
  from gone as g;
  -- The trigger of the archive rings for what is archived.
  if v_ids <> '{}' and exists (select from messages.flow as f where f.is_held) then
    perform messages._ring_freed(v_queues, v_ids);
  end if;
  return query select u.id from unnest(v_ids) as u (id);
end;
$$;

-- All that depends on which queues are volatile.
create or replace function messages._arm_volatile()
  returns void
  language plpgsql
  set lock_timeout = '2s'
as $$
declare
  v_names text[] := array(
    select q.name from messages.queue as q where not q.durable order by q.name
  );
begin
  perform messages._arm_names('message', 'across', '_divert', v_names);
  perform messages._arm_names(
    'message_volatile', 'capacity', '_make_room',
    array(
      select q.name from messages.queue as q
      where not q.durable and q.capacity is not null and q.overflow = 'reject'
      order by q.name
    )
  );
  perform messages._arm_trim();
  if (v_names <> '{}') = exists (
    select from pg_inherits as i where i.inhparent = 'messages.message'::regclass
  ) then
    return;
  end if;
  if v_names <> '{}' then
    alter table messages.message_volatile inherit messages.message;
  else
    alter table messages.message_volatile no inherit messages.message;
  end if;
exception
  when lock_not_available then
    perform messages._busy('publish or claim');
end;
$$;

-- Called when the queue is the other kind already, and its publishers are locked out.
create or replace function messages._check_moved(queue text)
  returns void
  language plpgsql
as $$
begin
  -- By now the one table may be no child of the other any more.
  if exists (select from messages.message as m where m.queue = _check_moved.queue)
    or exists (select from messages.message_volatile as m where m.queue = _check_moved.queue)
  then
    raise exception using
      errcode = 'NQ005',
      message = format('queue %L still has messages', queue),
      hint = 'durable can be changed once they are finished, or cancelled';
  end if;
end;
$$;

-- A call, and no join: a standby cannot even plan a query of an unlogged table.
create or replace function messages._volatile_count(
  queue text, out _finished bigint, out _dropped bigint
)
  language sql
  stable
as $$
  select coalesce(sum(c.finished), 0)::bigint, coalesce(sum(c.dropped), 0)::bigint
  from messages.volatile_count as c
  where c.queue = _volatile_count.queue;
$$;

-- Ring: a volatile queue that forgets its oldest messages, and keeps nobody waiting.
--
-- A publisher makes room when its transaction commits, one after the other, but for no longer than
-- a tenth of a second: whoever holds that lock for longer has its excess removed by the upkeep.

-- Drop what is over capacity, in the order of drop_oldest; return the room that is left. A large
-- queue drops a hundredth at a time, as it counts all that it has.
create or replace function messages._trim(queue messages.queue)
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_live bigint;
  v_excess bigint;
  v_dropped messages.message_volatile[];
begin
  v_live := (
    select count(*) from messages.message_volatile as m
    where m.queue = _trim.queue.name
      and m.state = 'waiting'
  ) + (
    select count(*) from messages.message_volatile as m
    where m.queue = _trim.queue.name
      and m.state = 'scheduled'
  );
  if v_live <= queue.capacity then
    return queue.capacity - v_live;
  end if;
  v_excess := v_live - queue.capacity + queue.capacity / 100;
  v_dropped := array(
    select m
    from messages.message_volatile as m
    where m.queue = _trim.queue.name
      and m.state <> 'locked'
    order by m.state, m.priority, case when m.state = 'scheduled' then m.available_at end, m.id
    limit v_excess
    for update skip locked
  );
  perform messages._archive_volatile(
    array(select d.id from unnest(v_dropped) as d where d.state = s.state),
    array(select d.lock_token from unnest(v_dropped) as d where d.state = s.state),
    array(
      select 'rejected'::messages.message_status from unnest(v_dropped) as d
      where d.state = s.state
    ),
    array(
      select format('dropped: the queue was full, its capacity is %s', queue.capacity)
      from unnest(v_dropped) as d
      where d.state = s.state
    ),
    null::jsonb[], s.state, true
  )
  from (select distinct d.state from unnest(v_dropped) as d) as s;
  return (queue.capacity / 100)::bigint;
end;
$$;

create or replace function messages._trim_ring()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set lock_timeout = '100ms'
as $$
declare
  v_setting text := messages._own_setting('notifyq.trim', new.queue);
  v_last bigint := pg_sequence_last_value('messages.message_id_seq');
  v_queue messages.queue;
  v_number bigint;
  v_room bigint;
begin
  -- One call speaks for all that this transaction has published so far. With a snapshot from before
  -- it could not see what to remove.
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
    from messages.volatile_room as r
    where r.queue = new.queue
    order by r.number desc
    limit 1;
    -- Others have drawn some of these numbers, for other queues: so it is counted a bit too early.
    v_room := v_room - (v_last - new.id + 1);
    if v_room is null or v_room < 0 then
      v_room := messages._trim(v_queue);
    end if;
    if v_number is null then
      insert into messages.volatile_room (queue, number, room) values (new.queue, 1, v_room);
    else
      update messages.volatile_room as r
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

create or replace function messages._arm_trim()
  returns void
  language plpgsql
  set lock_timeout = '2s'
as $$
declare
  v_names text[] := array(
    select q.name from messages.queue as q
    where not q.durable and q.capacity is not null and q.overflow = 'drop_oldest'
    order by q.name
  );
  v_present text := (
    select pg_get_triggerdef(g.oid)
    from pg_trigger as g
    where g.tgrelid = 'messages.message_volatile'::regclass and g.tgname = 'trim'
  );
begin
  -- Capacities may have changed: all is counted again.
  delete from messages.volatile_room as r where not r.queue = any (v_names);
  update messages.volatile_room as r set number = r.number + 1, room = 0;
  if position(quote_literal(v_names::text) in v_present) > 0
    or v_names = '{}' and v_present is null
  then
    return;
  end if;
  if v_present is not null then
    drop trigger trim on messages.message_volatile;
  end if;
  if v_names <> '{}' then
    execute format(
      'create constraint trigger trim after insert on messages.message_volatile '
      'deferrable initially deferred for each row '
      'when (new.queue = any (%L::text[])) execute function messages._trim_ring()',
      v_names
    );
  end if;
end;
$$;

-- For the upkeep: what publishers have left undone, and the counts of many statements as one.
create or replace function messages._sweep_volatile(quantity integer)
  returns void
  language plpgsql
as $$
declare
  v_queue messages.queue;
begin
  if exists (select from messages.volatile_count offset 1000) then
    with folded as (
      delete from messages.volatile_count as c
      where c.ctid = any (array(
        select o.ctid from messages.volatile_count as o limit _sweep_volatile.quantity
      ))
      returning c.queue, c.finished, c.dropped
    )
    insert into messages.volatile_count (queue, finished, dropped)
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
      perform messages._trim(v_queue);
    end if;
  end loop;
end;
$$;
