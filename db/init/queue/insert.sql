-- Triggers: what makes a plain insert a full publish.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

-- Never called: the condition of its triggers is what matters.
create or replace function notifyq.number_rows()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return null;
end;
$$;

-- The condition gives the transaction its number before the statement gives the first id, which
-- readers that remember a position rely on, see queue/find.sql. Else a publisher that waits for
-- room could have an old id and get a new number.
create or replace trigger number
  before insert on messages.message
  for each statement
  when (pg_current_xact_id() is null)
  execute function notifyq.number_rows();

create or replace function notifyq.set_scheduled()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- No client could read it otherwise. Infinity means never.
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

-- The condition is evaluated without a call, so rows that are due at once pay next to nothing:
-- their available_at is the default. It need not ask for the state: nobody sets available_at of a
-- locked message.
create or replace trigger schedule
  before insert or update of available_at on messages.message
  for each row
  when (new.available_at <> now())
  execute function notifyq.set_scheduled();

-- For several messages of one statement, from first_id on: one bell for each of their queues. What
-- is due within a minute rings, too: whoever sleeps must know when to look, see next_due().
create or replace function notifyq.notify_inserted(first_id bigint, insertion xid)
  returns void
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_name text;
  v_queue messages.queue;
  v_first bigint;
  v_last bigint;
  v_soon timestamptz := now() + interval '1 minute';
  v_ringing bigint;
  v_end bigint;
  v_announced bigint;
begin
  for v_name, v_ringing, v_first, v_last, v_end in
    select m.queue,
      count(*) filter (where m.available_at < v_soon),
      min(m.id) filter (where m.available_at < v_soon),
      max(m.id) filter (where m.available_at < v_soon),
      max(m.id)
    from messages.message as m
    where m.id >= first_id
      and m.xmin = insertion
    group by m.queue
    order by m.queue
  loop
    -- Another queue of the same statement may be attended.
    continue when not pg_try_advisory_xact_lock_shared(notifyq.suppression_key(v_name));
    if not pg_try_advisory_xact_lock_shared(notifyq.publishing_key(v_name)) then
      perform notifyq.await_drop(v_name);
    end if;
    v_queue := notifyq.find_queue(v_name);
    if v_ringing > 1 and v_last - v_first + 1 = v_ringing then
      perform notifyq.notify_queue(v_queue, format('%s-%s', v_first, v_last));
    elsif v_ringing > 0 then
      -- Other sessions published in between. 1000 ids say as much as a million.
      perform notifyq.notify_queue(v_queue, notifyq.compact_ids(array(
        select m.id
        from messages.message as m
        where m.id >= first_id
          and m.xmin = insertion
          and m.queue = v_name
          and m.available_at < v_soon
        order by m.id
        limit 1000
      )));
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
end;
$$;

create or replace function notifyq.check_inserted(first_id bigint, queue text, is_due boolean)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_queue messages.queue;
  v_xmin xid;
  v_last bigint;
  -- A look at what else was inserted would make each publisher conflict with all others.
  v_is_serializable boolean := current_setting('transaction_isolation') = 'serializable';
begin
  begin
    v_last := currval('messages.message_id_seq');
  exception
    when object_not_in_prerequisite_state then
      v_last := 0;  -- the id was given
  end;
  -- A lone message is the last that this session has made: no need to look for others.
  if v_last <> first_id and not v_is_serializable then
    v_xmin := (select m.xmin from messages.message as m where m.id = first_id);
    if exists (
      select from messages.message as m where m.id > first_id and m.xmin = v_xmin
    ) then
      perform notifyq.notify_inserted(first_id, v_xmin);
      return;
    end if;
  end if;
  -- Held to the end of the transaction, before the registry is read: drop_queue() waits for it,
  -- else it could miss messages that are not committed yet and leave them without a queue.
  if not pg_try_advisory_xact_lock_shared(notifyq.publishing_key(check_inserted.queue)) then
    perform notifyq.await_drop(check_inserted.queue);
  end if;
  v_queue := notifyq.find_queue(check_inserted.queue);
  if check_inserted.is_due then
    -- Where each row speaks for itself, equal bells of a transaction become one.
    perform notifyq.notify_queue(
      v_queue, case when v_is_serializable then '' else first_id::text end
    );
  end if;
end;
$$;
comment on function notifyq.check_inserted(bigint, text, boolean) is
  'Check the queues of the messages that this transaction has just inserted, from first_id on, and '
  'ring once for each that is not attended; in a serializable transaction, of this message alone. '
  'Called by the insert trigger with the rights of the role that inserts; of no other use. Raises '
  'NQ001 for an unknown queue.';

-- Called for every row of a statement, though the first call speaks for all: hence this thin
-- function in front. Taking on the owner's rights and a search path for each row would double the
-- price of a bulk insert, so it has neither, and names everything with its schema instead.
--
-- The setting only says that this transaction has called announce(). Whoever inserts may have set
-- it, so sequences tell for which messages that was.
create or replace function notifyq.published()
  returns trigger
  language plpgsql
as $$
begin
  if (case
    when pg_catalog.current_setting('notifyq.announced', true) operator(pg_catalog.<>) ''
      then new.id operator(pg_catalog.>) pg_catalog.currval('notifyq.announced_last_seq')
        or new.id operator(pg_catalog.<) pg_catalog.currval('notifyq.announced_first_seq')
        -- Where there are keys ids don't come in their order.
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

-- The condition is the publisher's half of the bell, see common/notify.sql. It asks for the key
-- that suppression_key() names (a call of that function would cost more than the lock), after the
-- row
-- is written: by then the transaction has its number, and whoever stops attending waits for its
-- end.
create or replace trigger published
  after insert on messages.message
  for each row
  when (pg_try_advisory_xact_lock_shared(hashtextextended(new.queue, 7305427004)))
  execute function notifyq.published();
