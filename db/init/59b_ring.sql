-- Ring: a volatile queue that forgets its oldest messages, and keeps nobody waiting.
--
-- A publisher makes room when its transaction commits, one after the other, but for no longer than
-- a tenth of a second: whoever holds that lock for longer has its excess removed by the upkeep.
--
-- owns:    trigger trim of messages.message_volatile, which is there while such a queue is
-- writes:  messages.message_volatile, messages.volatile_room, messages.volatile_count
-- calls:   messages._archive_volatile, messages._own_setting
-- raises:  NQ009 open transactions

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
