-- Pause and drop: stop a queue for a while, or for good.
--
-- owns:    nothing
-- writes:  messages.queue, messages.message, messages.queue_grant, messages.dedup,
--          messages.volatile_room, messages.volatile_count and messages.schedule (drop_queue)
-- calls:   messages._queue, messages._publishing_key, messages._ring_again, messages._check_access,
--          messages._resolve, messages._arm_capacity, messages._arm_volatile,
--          messages._arm_payload, messages._check_given
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ005 queue not empty, NQ007 no right to
--          the queue, NQ009 open transactions

-- What a publisher does where the key is taken: by drop_queue(), or by any role of the database for
-- no reason. The row, which a real drop deletes, can be locked by nobody but the owner.
create or replace function messages._await_drop(queue text)
  returns void
  language plpgsql
as $$
begin
  perform messages._check_access(queue, 'publish into');
  perform from messages.queue as q where q.name = _await_drop.queue for key share;
end;
$$;

create or replace function messages.drop_queue(name text, force boolean default false)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '5s'
as $$
declare
  v_queue messages.queue;
  v_dropped bigint;
  v_awaited bigint[];
begin
  perform messages._check_given('force', drop_queue.force is not null);
  -- First, since who fires a schedule holds its row while it publishes.
  perform from messages.schedule as s where s.queue = drop_queue.name order by s.name for update;
  delete from messages.schedule as s where s.queue = drop_queue.name;
  -- Waits for transactions that have published into this queue and are not over, see announce().
  perform pg_advisory_xact_lock(messages._publishing_key(name));
  -- And for those that found the key taken, before anything is looked at.
  perform from messages.queue as q where q.name = drop_queue.name for update;
  v_queue := messages._queue(name);
  if not force and exists (select from messages.message as m where m.queue = v_queue.name) then
    raise exception using
      errcode = 'NQ005',
      message = format('queue %L still has messages', v_queue.name),
      hint = 'finish or cancel them, or drop the queue with force => true: that deletes them';
  end if;
  -- In id order, as all who lock rows do.
  perform from messages.message as m where m.queue = v_queue.name order by m.id for update;
  if exists (select from messages.dependency) then
    v_awaited := array(
      select m.id from messages.message as m
      where m.queue = v_queue.name
        and exists (
          select from messages.dependency as d where d.after_id = m.id and d.status is null
        )
      order by m.id
    );
  end if;
  delete from messages.message as m where m.queue = v_queue.name;
  get diagnostics v_dropped = row_count;
  if v_awaited <> '{}' then
    -- For those that wait in other queues.
    perform messages._resolve(
      v_awaited, array_fill('rejected'::messages.message_status, array[cardinality(v_awaited)])
    );
  end if;
  delete from messages.dedup as d where d.queue = v_queue.name;
  delete from messages.queue_grant as g where g.queue = v_queue.name;
  delete from messages.flow as f where f.queue = v_queue.name;
  delete from messages.flow_state as s where s.queue = v_queue.name;
  delete from messages.flow_key as k where k.queue = v_queue.name;
  delete from messages.flow_charge as c where c.queue = v_queue.name;
  delete from messages.flow_room as r where r.queue = v_queue.name;
  delete from messages.share as s where s.queue = v_queue.name;
  delete from messages.queue as q where q.name = v_queue.name;
  if v_queue.capacity is not null then
    perform messages._arm_capacity();
  end if;
  if not v_queue.durable then
    delete from messages.volatile_room as r where r.queue = v_queue.name;
    delete from messages.volatile_count as c where c.queue = v_queue.name;
    perform messages._arm_volatile();
  end if;
  perform messages._arm_payload();
  return v_dropped;
exception
  when lock_not_available then
    raise exception using
      errcode = 'NQ009',
      message = format('transactions that use queue %L stay open', drop_queue.name),
      hint = 'nothing was changed: try again, or end them, see pg_locks and pg_stat_activity';
end;
$$;
comment on function messages.drop_queue(text, boolean) is
  'Drop a queue and return how many live messages were deleted with it. A queue that has messages '
  'is dropped with force only, else NQ005. Archived messages stay, its grants and schedules go '
  'too. Raises NQ001 for an unknown queue, and NQ009 where transactions that publish into it, or '
  'have claimed from it, stay open for 5 seconds.';

create or replace function messages.pause_queue(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(name);
begin
  update messages.queue as q
  set paused = true
  where q.name = v_queue.name
    and not q.paused;
  return found;
end;
$$;
comment on function messages.pause_queue(text) is
  'Hand out no more messages of a queue; publishing goes on. False: it was paused already.';

create or replace function messages.resume_queue(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(name);
begin
  update messages.queue as q
  set paused = false
  where q.name = v_queue.name
    and q.paused;
  if not found then
    return false;
  end if;
  perform messages._ring_again(messages._queue(v_queue.name));
  return true;
end;
$$;
comment on function messages.resume_queue(text) is
  'Hand out the messages of a paused queue again. False: it was not paused.';
