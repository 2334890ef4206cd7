-- Capacity: limit the messages that wait in a queue.
--
-- Publishers of such a queue take turns, each until the end of its transaction, and reserve room
-- for their messages in advance: messages are then rarely counted. All live messages count against
-- that room, as a locked one may come back; how many of them wait matters only when no room is
-- left.
--
-- raises: NQ010 queue full

-- Messages that wait or are scheduled, each counted up to most, and messages that are locked.
-- Volatile: it must see what the publishing statement has inserted so far.
create or replace function notifyq.count_live(
  queue text, most bigint, out _waiting bigint, out _locked bigint
)
  language sql volatile
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
  select
    (
      select count(*)
      from (
        select from messages.message as m
        where m.queue = count_live.queue and m.state = 'waiting'
        limit count_live.most
      ) as w
    ) + (
      select count(*)
      from (
        select from messages.message as m
        where m.queue = count_live.queue and m.state = 'scheduled' and m.parked_at is null
        limit count_live.most
      ) as s
    ),
    (
      select count(*) from messages.message as m
      where m.state = 'locked' and m.queue = count_live.queue
    );
$$;

-- Archive the oldest waiting message of the lowest priority, else the scheduled one due next. Those
-- that others have locked are passed over.
create or replace function notifyq.drop_oldest(queue messages.queue)
  returns boolean language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_lowest bigint := -2147483649;
  v_message messages.message;
begin
  loop
    v_lowest := (
      select m.priority::bigint
      from messages.message as m
      where m.queue = drop_oldest.queue.name
        and m.state = 'waiting'
        and not notifyq.has_steps(m)
        and m.priority > v_lowest
      order by m.priority, m.id desc
      limit 1
    );
    select m.* into v_message
    from messages.message as m
    where m.queue = drop_oldest.queue.name
      and m.state = 'waiting'
      and not notifyq.has_steps(m)
      and m.priority = v_lowest
    order by m.id
    limit 1
    for update skip locked;
    exit when found or v_lowest is null;
  end loop;
  if v_lowest is null then
    select m.* into v_message
    from messages.message as m
    where m.queue = drop_oldest.queue.name
      and m.state = 'scheduled'
      and not notifyq.has_steps(m)
    order by m.available_at
    limit 1
    for update skip locked;
  end if;
  return exists (
    select from notifyq.archive(
      array[v_message.id], array[v_message.lock_token],
      array['rejected'::messages.message_status],
      array[format('dropped: the queue was full, its capacity is %s', queue.capacity)],
      state => v_message.state
    )
  );
end;
$$;

-- A setting whose name no user of this session can guess, and therefore neither read nor set. State
-- of a transaction is kept in it: only settings are undone with savepoints.
create or replace function notifyq.secret_setting(name text, queue text)
  returns text language plpgsql
as $$
begin
  if current_setting('notifyq.keyed', true) <> '' then
    -- Fails if a user has set notifyq.keyed.
    return concat(name, '_', to_hex(
      hashtextextended(queue, currval('notifyq.session_key_seq'))
    ));
  end if;
  perform setval(
      'notifyq.session_key_seq',
      1 + (hashtextextended(gen_random_uuid()::text, 0) & 4611686018427387903)
    ),
    set_config('notifyq.keyed', 'yes', false);
  return notifyq.secret_setting(name, queue);
end;
$$;

create or replace function notifyq.make_room()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_setting text := notifyq.secret_setting('notifyq.room', new.queue);
  -- The first and the last id for which this transaction has reserved room.
  v_reserved bigint[] := nullif(current_setting(v_setting, true), '')::bigint[];
  v_taken bigint;
  v_queue messages.queue;
  v_number bigint;
  v_room bigint;
  v_live record;
  v_excess bigint;
begin
  if new.id between v_reserved[1] and v_reserved[2] then
    return new;
  end if;
  perform from notifyq.limit_turn as f
  where f.queue = new.queue
    and f.part = 'publish'
  for update;
  select q.* into v_queue from messages.queue as q where q.name = new.queue;
  if v_queue.capacity is null then
    return new;
  end if;
  select r.number, r.room into v_number, v_room
  from notifyq.limit_room as r
  where r.queue = new.queue
  order by r.number desc
  limit 1;
  if v_room <= 0 then
    v_live := notifyq.count_live(new.queue, v_queue.capacity + 100);
    v_room := greatest(0, v_queue.capacity - v_live._waiting - v_live._locked);
    v_excess := v_live._waiting + 1 - v_queue.capacity;
    if v_queue.overflow = 'drop_oldest' then
      -- More than one if the capacity was lowered, or messages have come back.
      while v_excess > 0 and notifyq.drop_oldest(v_queue) loop
        v_excess := v_excess - 1;
      end loop;
    end if;
    if v_excess > 0 then
      raise exception using
        errcode = 'NQ010',
        message = format(
          'queue %L is full: its capacity is %s messages', new.queue, v_queue.capacity
        ),
        hint = 'publish later, start more workers, or raise the limit with '
          '`notifyq queues alter --capacity` or messages.alter_queue()';
    end if;
  end if;
  -- Doubles while ids rise: a bulk insert changes that row a few times only. Messages with dedup
  -- keys come in the order of the keys: a smaller id is not in a reservation for larger ones.
  v_taken := least(
    v_room,
    case when new.id > v_reserved[2] then 2 * (v_reserved[2] - v_reserved[1] + 1) else 1 end
  );
  -- Changed even if nothing was reserved: a publisher with an older snapshot cannot count the
  -- messages and must fail here.
  update notifyq.limit_room as r
  set number = r.number + 1,
    room = v_room - v_taken
  where r.queue = new.queue
    and r.number = v_number;
  -- Each id is given once, and others may take some of these: at most as many messages have them as
  -- there is room for. The next count finds what was not used.
  perform set_config(v_setting, array[new.id, new.id + greatest(v_taken, 1) - 1]::text, true);
  return new;
end;
$$;
