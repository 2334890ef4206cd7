-- Park: a message waits without a lock, an attempt or a worker, until it is woken or due.
--
-- raises: NQ003 invalid argument, NQ011 lock lost, NQ012 step of another kind

-- Give up the lock until due; the attempt is not counted, so that the next claim has its number.
create or replace function notifyq.park(message messages.message, due timestamptz)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  update messages.message as m
  set state = 'scheduled',
    locked_at = null,
    lock_expires_at = null,
    locked_by = null,
    lock_token = least(m.lock_token, 9223372036854775806) + 1,
    attempts = greatest(m.attempts, 1) - 1,
    available_at = due,
    parked_at = clock_timestamp()
  where m.id = message.id;
  -- Workers would learn of a sleep that ends soon with their next poll only.
  if due < now() + interval '1 minute' then
    perform notifyq.notify_queue(q, message.id::text)
    from messages.queue as q
    where q.name = message.queue;
  end if;
  if exists (select from notifyq.limit_turn as t where t.is_blocked) then
    perform notifyq.notify_freed(array[message.queue], array[message.id]);
  end if;
end;
$$;

-- Those of the messages that are parked become available now, and their workers are notified. A
-- message that runs meanwhile finds by itself what it is woken for.
create or replace function notifyq.wake_parked(ids bigint[])
  returns bigint language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_woken bigint[];
begin
  perform from messages.message as m
  where m.id = any (ids)
    and m.parked_at is not null
  order by m.id
  for update;
  -- The update below fires triggers, which takes a millisecond even without a row.
  if not found then
    return 0::bigint;
  end if;
  with woken as (
    update messages.message as m
    set state = 'waiting', available_at = now(), parked_at = null
    where m.id = any (ids)
      and m.parked_at is not null
    returning m.id
  )
  select coalesce(array_agg(w.id order by w.id), '{}') into v_woken from woken as w;
  perform notifyq.notify_messages(v_woken);
  return cardinality(v_woken)::bigint;
end;
$$;

create or replace function messages.sleep(
  id bigint,
  lock_token bigint,
  name text,
  until timestamptz default null,
  delay interval default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_message messages.message := notifyq.hold_lock(id, lock_token);
  v_step notifyq.step := notifyq.find_step(v_message, name, 'sleep');
begin
  if (until is null) = (delay is null) then
    perform notifyq.raise_invalid('give either until or delay');
  end if;
  perform notifyq.check_duration('delay', delay);
  perform notifyq.check_instant('until', until);
  if v_step.number is null then
    v_step.due_at := coalesce(until, clock_timestamp() + delay);
    perform notifyq.add_steps(array[v_step]);
  end if;
  if v_step.state is null and v_step.due_at <= clock_timestamp() then
    update notifyq.step as s
    set state = 'done', attempt = v_message.attempts
    where s.message_id = v_message.id
      and s.name = v_step.name;
    return true;
  end if;
  if v_step.state is null then
    perform notifyq.park(v_message, v_step.due_at);
  end if;
  return v_step.state is not null;
end;
$$;
comment on function messages.sleep(bigint, bigint, text, timestamptz, interval) is
  'Sleep until an instant, or for delay. True: it has passed, go on. False: the message is parked '
  'until then, without lock, worker or attempt, and is handed out again at that time: return at '
  'once. The first call of a name fixes the instant. Raises NQ011 if the lock was lost.';

create or replace function messages.parked(
  queue text default null,
  quantity integer default 100,
  id bigint default null
)
  returns setof messages.parked_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  perform notifyq.check_quantity(parked.quantity, 1000000);
  if parked.queue is not null then
    perform notifyq.find_queue(parked.queue);
  end if;
  return query
  select m.id, m.queue, s.name, s.kind,
    case s.kind
      when 'signal' then (
        select string_agg(w.signal, ', ' order by w.signal)
        from notifyq.signal_wait as w
        where w.message_id = s.message_id and w.step = s.name
      )
      when 'end' then (
        select string_agg(w.after_id::text, ', ' order by w.position)
        from notifyq.end_wait as w
        where w.message_id = s.message_id and w.step = s.name and w.status is null
          and (v_readable is null or notifyq.queue_of(w.after_id) = any (v_readable))
      )
    end,
    m.parked_at, nullif(s.due_at, 'infinity')
  from messages.message as m
  cross join lateral (
    select o.* from notifyq.step as o where o.message_id = m.id and o.state is null offset 0
  ) as s
  where m.parked_at is not null
    and (parked.queue is null or m.queue = parked.queue)
    and (parked.id is null or m.id = parked.id)
    and (v_readable is null or m.queue = any (v_readable))
  order by m.parked_at, m.id
  limit parked.quantity;
end;
$$;
comment on function messages.parked(text, integer, bigint) is
  'What parked messages wait for, those that are parked longest first: the name and kind of the '
  'step (sleep, signal or end), the signals or the ids of the messages, since when, and until when '
  'at the latest (null: for good). Of all queues, of one, or of the message id. Raises NQ001 for '
  'an unknown queue.';
