-- Insert: triggers that make a plain insert a full publish.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

-- Never called: only the condition of its trigger matters.
create or replace function notifyq.assign_xid()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return null;
end;
$$;

-- The condition gives the transaction its transaction id before the statement draws the first
-- message id: readers that remember a position rely on that, see queue/find.sql. Otherwise a
-- publisher that waits for room could have an old message id and a new transaction id.
create or replace trigger assign_xid
  before insert on messages.message
  for each statement
  when (pg_current_xact_id() is null)
  execute function notifyq.assign_xid();

create or replace function notifyq.set_scheduled()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- Clients could not read it otherwise. Infinity means never.
  if not notifyq.is_instant(nullif(new.available_at, 'infinity')) then
    perform notifyq.raise_invalid(
      format('available_at must be between the years 1 and 9999, not %s', new.available_at),
      'use infinity for never'
    );
  end if;
  if new.available_at > now() then
    new.state := 'scheduled';
  end if;
  return new;
end;
$$;

-- The condition needs no call: rows that are due at once have the default available_at and cost
-- next to nothing. It need not test the state: nothing sets available_at of a locked message.
create or replace trigger schedule
  before insert or update of available_at on messages.message
  for each row
  when (new.available_at <> now())
  execute function notifyq.set_scheduled();

-- For several messages of one statement, from first_id on: one notification for each queue.
-- Messages due within a minute notify as well: sleeping workers must know when to poll, see
-- next_due(). False, and nothing is done, where first_id is the only one.
create or replace function notifyq.notify_inserted(first_id bigint)
  returns boolean language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_insertion xid := (select m.xmin from messages.message as m where m.id = first_id);
  v_name text;
  v_queue messages.queue;
  v_first bigint;
  v_last bigint;
  v_soon timestamptz := now() + interval '1 minute';
  v_soon_count bigint;
  v_soon_ids bigint[];
  v_end bigint;
  v_announced bigint;
begin
  if not exists (
    select from messages.message as m where m.id > first_id and m.xmin = v_insertion
  ) then
    return false;
  end if;
  for v_name, v_soon_count, v_first, v_last, v_end, v_soon_ids in
    select m.queue,
      count(*) filter (where m.available_at < v_soon),
      min(m.id) filter (where m.available_at < v_soon),
      max(m.id) filter (where m.available_at < v_soon),
      max(m.id),
      array_agg(m.id) filter (where m.available_at < v_soon)
    from messages.message as m
    where m.id >= first_id
      and m.xmin = v_insertion
    group by m.queue
    order by m.queue
  loop
    -- Notifications of another queue of the statement may be suppressed.
    continue when not pg_try_advisory_xact_lock_shared(notifyq.suppression_key(v_name));
    if not pg_try_advisory_xact_lock_shared(notifyq.publishing_key(v_name)) then
      perform notifyq.await_drop(v_name);
    end if;
    v_queue := notifyq.find_queue(v_name);
    if v_soon_count > 1 and v_last - v_first + 1 = v_soon_count then
      perform notifyq.notify_queue(v_queue, format('%s-%s', v_first, v_last));
    elsif v_soon_count > 0 then
      -- Other sessions published in between. 1000 ids are as good as a million.
      perform notifyq.notify_queue(v_queue, notifyq.compact_ids(v_soon_ids[1:1000]));
    end if;
    v_announced := greatest(v_announced, v_end);
  end loop;
  if v_announced is not null then
    perform setval('notifyq.announced_first_seq', first_id),
      setval('notifyq.announced_last_seq', v_announced),
      setval('notifyq.announced_queue_seq', (
        select 1 + (hashtextextended(m.queue, 0) & 4611686018427387903)
        from messages.message as m where m.id = first_id
      )),
      set_config('notifyq.announced', 'yes', true);
  end if;
  return true;
end;
$$;

create or replace function notifyq.check_inserted(first_id bigint, queue text, is_due boolean)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue;
  v_last bigint;
  -- A query for other rows would make each publisher conflict with all others.
  v_is_serializable boolean := current_setting('transaction_isolation') = 'serializable';
begin
  begin
    v_last := currval('messages.message_id_seq');
  exception
    when object_not_in_prerequisite_state then
      v_last := 0;  -- the id was given
  end;
  -- A single message is the last of this session: no need to search for others.
  if v_last <> first_id and not v_is_serializable and notifyq.notify_inserted(first_id) then
    return;
  end if;
  -- Held until the end of the transaction, and taken before the queue is read: drop_queue() waits
  -- for it, else it could miss uncommitted messages and leave them without a queue.
  if not pg_try_advisory_xact_lock_shared(notifyq.publishing_key(check_inserted.queue)) then
    perform notifyq.await_drop(check_inserted.queue);
  end if;
  -- What find_queue() and notify_queue() do: each call would cost a single insert 2 %.
  select q.* into v_queue from messages.queue as q where q.name = check_inserted.queue;
  if not found then
    perform notifyq.find_queue(check_inserted.queue);
  end if;
  if check_inserted.is_due and v_queue.notify <> 'off' and not notifyq.is_paused(v_queue) then
    -- Each row notifies by itself; equal notifications of a transaction become one.
    perform notifyq.send_notification(
      'new_message', v_queue.name, case when v_is_serializable then '' else first_id::text end
    );
  end if;
end;
$$;
comment on function notifyq.check_inserted is
  'Check the queues of messages that this transaction has just inserted, from first_id on, and '
  'notify once for each queue; in a serializable transaction, for this message only. For the '
  'insert trigger, which runs with the rights of the inserting role. Raises NQ001 for an unknown '
  'queue.';

-- Called for every row of a statement, though the first call is for all: hence this thin function
-- in front. Switching to the rights of the owner and a search path for each row would double the
-- cost of a bulk insert; it has neither, and names everything with its schema.
--
-- The setting shows only that this transaction has called notify_inserted(). Inserting roles can
-- set it, so sequences, which they cannot change, have the ids that were announced.
create or replace function notifyq.published()
  returns trigger language plpgsql
as $$
begin
  if (case
    when pg_catalog.current_setting('notifyq.announced', true) operator(pg_catalog.<>) ''
      then new.id operator(pg_catalog.>) pg_catalog.currval('notifyq.announced_last_seq')
        or new.id operator(pg_catalog.<) pg_catalog.currval('notifyq.announced_first_seq')
        -- With keys, ids are not in order.
        and pg_catalog.currval('notifyq.announced_queue_seq') operator(pg_catalog.<>) (
          1::pg_catalog.int8 operator(pg_catalog.+) (
            pg_catalog.hashtextextended(new.queue, 0) operator(pg_catalog.&) 4611686018427387903
          )
        )
    else true
  end) then
    perform notifyq.check_inserted(
      new.id, new.queue,
      new.available_at operator(pg_catalog.<)
        (pg_catalog.now() operator(pg_catalog.+) interval '1 minute')
    );
  end if;
  return null;
end;
$$;

-- The condition is the publishers' half of suppression, see common/notify.sql. It takes the key of
-- suppression_key() (a call of that function would cost more than the lock) after the row is
-- written: the transaction has its id by then, and a worker that ends suppression waits for it.
create or replace trigger published
  after insert on messages.message
  for each row
  when (pg_try_advisory_xact_lock_shared(hashtextextended(new.queue, 7305427004)))
  execute function notifyq.published();
