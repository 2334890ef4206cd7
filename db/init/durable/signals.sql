-- Signals: wait for a name, and wake all that wait for it.
--
-- A wait and a signal may be under way at once, each in a transaction that does not see the other.
-- So both check once more when they commit: a signal for waits, a wait for signals. Where even
-- these two checks overlap, or see an old snapshot, maintenance wakes the wait: it checks each
-- signal and each parking once more after its commit. The later one of the two finds the other.
--
-- raises: NQ002 message not found, NQ003 invalid argument, NQ007 no right to the queue, NQ008 too
-- large, NQ011 lock lost, NQ012 step of another kind

-- The first signal that a wait may receive: one to the message before one to all. null: there is
-- none. Queues with grants receive only those to their messages, as anybody may send the others;
-- encrypted queues too, as a signal to all is plain text.
create or replace function notifyq.find_signal(message_id bigint, queue text, signals text[])
  returns notifyq.signal language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_signal notifyq.signal;
begin
  -- `offset 0`: an index by id, which gives the order, would be read for the signals of all.
  select f.* into v_signal
  from (
    select s.*
    from notifyq.signal as s
    where s.message_id = find_signal.message_id and s.name = any (signals)
    offset 0
  ) as f
  order by f.id
  limit 1;
  if not found
    and not exists (select from messages.queue_grant as g where g.queue = find_signal.queue)
    and not exists (
      select from messages.queue as q where q.name = find_signal.queue and q.encrypted
    )
  then
    select f.* into v_signal
    from (
      select s.*
      from notifyq.signal as s
      where s.message_id is null and s.name = any (signals)
      offset 0
    ) as f
    order by f.id
    limit 1;
  end if;
  return v_signal;
end;
$$;

-- Messages that are parked and wait for a signal of this name: all, or one.
create or replace function notifyq.wake_waits(name text, message_id bigint)
  returns bigint language plpgsql
  set enable_seqscan = off set jit = off set enable_nestloop = on
as $$
begin
  return notifyq.wake_parked(array(
    select w.message_id
    from notifyq.signal_wait as w
    where w.signal = wake_waits.name and w.message_id = wake_waits.message_id
    union
    select w.message_id
    from notifyq.signal_wait as w
    where w.signal = wake_waits.name and wake_waits.message_id is null
      and not exists (
        select
        from messages.message as m
        join messages.queue_grant as g on g.queue = m.queue
        where m.id = w.message_id
        offset 0
      )
      and not exists (
        select
        from messages.message as m
        join messages.queue as q on q.name = m.queue and q.encrypted
        where m.id = w.message_id
        offset 0
      )
  ));
end;
$$;

create or replace function messages.signal(
  name text,
  payload jsonb default 'null',
  id bigint default null
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_queue text;
  v_is_logged boolean;
begin
  perform notifyq.check_length('signal', signal.name);
  perform notifyq.check_given('payload', signal.payload is not null);
  if signal.id is null then
    if octet_length(signal.payload::text) > 1048576 then
      raise exception using
        errcode = 'NQ008',
        message = format(
          'payload has %s bytes, and a signal takes 1048576', octet_length(signal.payload::text)
        ),
        hint = 'send where it is kept';
    end if;
    insert into notifyq.signal (name, payload, forget_at)
    values (
      signal.name, signal.payload,
      clock_timestamp() + coalesce(notifyq.longest_retention(), interval '30 days')
    )
    on conflict (name) where message_id is null do nothing;
    if not found then
      return 0::bigint;
    end if;
  else
    if exists (select from messages.queue_grant) then
      perform notifyq.check_access(m.queue, 'publish into')
      from messages.message as m
      where m.id = signal.id;
    end if;
    -- Before the message is read: this waits for an end that is under way.
    perform notifyq.mark_durable(array[signal.id]);
    select m.queue, m.tableoid = 'messages.message'::regclass into v_queue, v_is_logged
    from messages.message as m
    where m.id = signal.id;
    if not found then
      raise exception using
        errcode = 'NQ002',
        message = format('there is no live message %s', signal.id),
        hint = 'it is finished, its id is wrong, or it is not committed yet';
    end if;
    if not v_is_logged then
      perform notifyq.raise_invalid(
        format('queue %L is unlogged: its messages wait for no signals', v_queue),
        'make the queue durable'
      );
    end if;
    perform notifyq.check_value(v_queue, 'payload', signal.payload, 'signal');
    insert into notifyq.signal (name, message_id, payload, forget_at)
    values (
      signal.name, signal.id, signal.payload, clock_timestamp() + interval '1 day'
    );
  end if;
  return notifyq.wake_waits(signal.name, signal.id);
end;
$$;
comment on function messages.signal(text, jsonb, bigint) is
  'Send a signal in the caller''s transaction; return how many parked messages it wakes. Without '
  'id it is for all that wait for the name, now or later: the first one of a name is kept for as '
  'long as the archive, and a second one changes nothing and returns 0. With id it is for that '
  'message alone: each such signal is received by one wait, in their order, before one for all. A '
  'queue with grants, or with encryption, receives only those, from roles that may publish into '
  'it. Raises NQ002 for a message that is not live, NQ003 for one of an unlogged queue and for '
  'plain text to an encrypted queue, NQ007 without that right, and NQ008 for a payload that is '
  'larger than 1 MiB, or with id than max_bytes of the queue.';

create or replace function notifyq.wait_for_signal(
  id bigint,
  lock_token bigint,
  name text,
  signals text[],
  timeout interval,
  out state text,
  out payload jsonb,
  out signal text
)
  language plpgsql
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_message messages.message := notifyq.hold_lock(wait_for_signal.id, wait_for_signal.lock_token);
  v_step notifyq.step := notifyq.find_step(v_message, wait_for_signal.name, 'signal');
  v_signal notifyq.signal;
begin
  if v_step.state is not null then
    state := v_step.state;
    payload := v_step.value -> 'payload';
    signal := v_step.value ->> 'signal';
    return;
  end if;
  if v_step.number is null then
    if coalesce(cardinality(signals), 0) = 0 then
      perform notifyq.raise_invalid('signals must name at least one signal');
    end if;
    perform notifyq.check_length('signal', s.name) from unnest(signals) as s (name);
    perform notifyq.check_duration('timeout', timeout);
    v_step.due_at := coalesce(clock_timestamp() + timeout, 'infinity');
    perform notifyq.add_steps(array[v_step]);
    insert into notifyq.signal_wait (message_id, step, signal)
    select distinct v_message.id, v_step.name, s.name from unnest(signals) as s (name);
  end if;
  -- The signals of the first call count, also where the code has changed since.
  v_signal := notifyq.find_signal(v_message.id, v_message.queue, array(
    select w.signal
    from notifyq.signal_wait as w
    where w.message_id = v_message.id
      and w.step = v_step.name
  ));
  if v_signal.id is not null then
    state := 'received';
    payload := v_signal.payload;
    signal := v_signal.name;
    delete from notifyq.signal as s where s.id = v_signal.id and s.message_id is not null;
  elsif v_step.due_at <= clock_timestamp() then
    state := 'timed_out';
  else
    state := 'parked';
    perform notifyq.park(v_message, v_step.due_at);
    if v_step.number is not null then
      -- Checked again, now when this transaction commits and later by maintenance.
      update notifyq.signal_wait as w
      set is_new = true
      where w.message_id = v_message.id
        and w.step = v_step.name;
    end if;
    return;
  end if;
  update notifyq.step as s
  set state = wait_for_signal.state,
    attempt = v_message.attempts,
    value = case when v_signal.id is not null then
      jsonb_build_object('payload', v_signal.payload, 'signal', v_signal.name) end
  where s.message_id = v_message.id
    and s.name = v_step.name;
  delete from notifyq.signal_wait as w
  where w.message_id = v_message.id
    and w.step = v_step.name;
end;
$$;

create or replace function messages.await_signal(
  id bigint,
  lock_token bigint,
  name text,
  signal text,
  timeout interval default null,
  out state text,
  out payload jsonb
)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  select w.state, w.payload into await_signal.state, await_signal.payload
  from notifyq.wait_for_signal(id, lock_token, name, array[signal], timeout) as w;
end;
$$;
comment on function messages.await_signal(bigint, bigint, text, text, interval) is
  'Wait for a signal. state is received, with its payload; timed_out; or parked: the message has '
  'given up its lock and is handed out again when the signal comes or the timeout is over: return '
  'at once. The first call of a name fixes the deadline (timeout null: none), and what comes of it '
  'is recorded. A signal that is there counts even after the deadline, and none is missed, '
  'whether it is sent before, during or after the call. Raises NQ011 if the lock was lost.';

create or replace function messages.await_any(
  id bigint,
  lock_token bigint,
  name text,
  signals text[],
  timeout interval default null,
  out state text,
  out payload jsonb,
  out signal text
)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  select w.state, w.payload, w.signal
  into await_any.state, await_any.payload, await_any.signal
  from notifyq.wait_for_signal(id, lock_token, name, signals, timeout) as w;
end;
$$;
comment on function messages.await_any(bigint, bigint, text, text[], interval) is
  'Wait for the first of several signals, as await_signal() does for one; signal is its name.';

-- Run when the transaction of a signal commits, for waits that it did not see when it was sent.
create or replace function notifyq.signal_sent()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.wake_waits(new.name, new.message_id);
  return null;
end;
$$;

-- Run when the transaction of a wait commits, for signals that it did not see when it began.
create or replace function notifyq.wait_parked()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue text := (select m.queue from messages.message as m where m.id = new.message_id);
begin
  if (notifyq.find_signal(new.message_id, v_queue, array[new.signal])).id is not null then
    perform notifyq.wake_parked(array[new.message_id]);
  end if;
  return null;
end;
$$;

do $$
begin
  if not exists (
    select from pg_trigger as t
    where t.tgrelid = 'notifyq.signal'::regclass and t.tgname = 'sent'
  ) then
    create constraint trigger sent
      after insert on notifyq.signal
      deferrable initially deferred
      for each row execute function notifyq.signal_sent();
  end if;
  if not exists (
    select from pg_trigger as t
    where t.tgrelid = 'notifyq.signal_wait'::regclass and t.tgname = 'parked'
  ) then
    create constraint trigger parked
      after insert or update on notifyq.signal_wait
      deferrable initially deferred
      for each row when (new.is_new) execute function notifyq.wait_parked();
  end if;
end;
$$;

-- Wake what has missed a signal, and forget old signals. Locks messages before what belongs to
-- them, as all others do.
create or replace function notifyq.maintain_signals(quantity integer)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[] := array(
    select s.id from notifyq.signal as s where s.is_new order by s.id limit quantity
  );
begin
  perform notifyq.wake_waits(s.name, s.message_id)
  from notifyq.signal as s
  where s.id = any (v_ids);
  update notifyq.signal as s
  set is_new = false
  where s.id = any (array(
    select l.id from notifyq.signal as l where l.id = any (v_ids) for update skip locked
  ));
  -- A message whose lock is taken may be about to park; it is checked the next time.
  v_ids := array(
    select m.id
    from messages.message as m
    where m.id = any (array(
      select w.message_id
      from notifyq.signal_wait as w
      where w.is_new
      order by w.message_id
      limit quantity
    ))
    order by m.id
    for update skip locked
  );
  perform notifyq.wake_parked(array(
    select m.id
    from messages.message as m
    cross join lateral (
      select o.signal from notifyq.signal_wait as o where o.message_id = m.id offset 0
    ) as w
    where m.id = any (v_ids)
      and m.parked_at is not null
      and (notifyq.find_signal(m.id, m.queue, array[w.signal])).id is not null
  ));
  update notifyq.signal_wait as w
  set is_new = false
  where w.message_id = any (v_ids)
    and w.is_new;
  v_ids := array(
    select s.id
    from notifyq.signal as s
    where s.forget_at <= v_now
    order by s.forget_at
    limit quantity
    for update skip locked
  );
  update notifyq.signal as s
  set forget_at = v_now + interval '1 day'
  where s.id = any (v_ids)
    and case when s.message_id is null
      then exists (select from notifyq.signal_wait as w where w.signal = s.name)
      else exists (select from messages.message as m where m.id = s.message_id)
    end;
  delete from notifyq.signal as s
  where s.id = any (v_ids)
    and s.forget_at <= v_now;
end;
$$;
