-- Ends: wait until other messages have ended, children above all.
--
-- A wait locks the messages that it waits for until its transaction commits. So each end either
-- comes first and is in the archive, or finds the wait.
--
-- raises: NQ002 message not found, NQ003 invalid argument, NQ007 no right to the queue, NQ011 lock
-- lost, NQ012 step of another kind

create or replace function notifyq.check_awaited(message messages.message, ids bigint[])
  returns void language plpgsql
as $$
declare
  v_later bigint;
begin
  if coalesce(cardinality(ids), 0) = 0 or array_position(ids, null) is not null then
    perform notifyq.raise_invalid('of must have at least one id, and no null');
  end if;
  if message.id = any (ids) then
    perform notifyq.raise_invalid(format('message %s cannot wait for its own end', message.id));
  end if;
  select min(m.id) into v_later
  from messages.message as m
  join messages.queue as q on q.name = m.queue and q.ordered
  where m.id = any (ids)
    and m.queue = message.queue
    and m.key = message.key
    and m.id > message.id;
  if v_later is not null then
    perform notifyq.raise_invalid(
      format(
        'message %s waits for message %s, which waits for it: both have key %L in ordered queue %L',
        message.id, v_later, message.key, message.queue
      ),
      'publish it into another queue, or with another key'
    );
  end if;
end;
$$;

create or replace function notifyq.add_end_waits(message messages.message, step text, ids bigint[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  -- Locks those that are live; raises for those that are unknown or not the caller's to see.
  perform notifyq.predecessors(ids, 'run');
  insert into notifyq.end_wait (
    message_id, step, position, after_id, queue, attempts, status, details, result
  )
  select message.id, add_end_waits.step, min(u.position), u.id, a.queue, a.attempts, a.status,
    a.details, a.result
  from unnest(ids) with ordinality as u (id, position)
  left join lateral (
    select o.* from messages.message_archive as o where o.id = u.id offset 0
  ) as a on true
  group by u.id, a.queue, a.attempts, a.status, a.details, a.result;
  update notifyq.step as s
  set pending = (
    -- Not a condition: a partial index has the waits of all messages.
    select count(*) filter (where w.status is null)
    from notifyq.end_wait as w
    where w.message_id = message.id
      and w.step = add_end_waits.step
  )
  where s.message_id = message.id
    and s.name = add_end_waits.step;
  update messages.message as m
  set awaited = true
  where m.id = any (ids)
    and not m.awaited;
  -- A claim at this moment has skipped the locked rows.
  perform notifyq.notify_messages(ids);
end;
$$;

create or replace function notifyq.wait_for_ends(
  id bigint,
  lock_token bigint,
  name text,
  ids bigint[],
  timeout interval,
  out state text,
  out ends jsonb
)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_message messages.message := notifyq.hold_lock(wait_for_ends.id, wait_for_ends.lock_token);
  v_step notifyq.step := notifyq.find_step(v_message, wait_for_ends.name, 'end');
  v_is_over boolean;
begin
  if v_step.number is null then
    perform notifyq.check_awaited(v_message, wait_for_ends.ids);
    perform notifyq.check_duration('timeout', wait_for_ends.timeout);
    v_step.due_at := coalesce(clock_timestamp() + wait_for_ends.timeout, 'infinity');
    perform notifyq.add_steps(array[v_step]);
    perform notifyq.add_end_waits(v_message, v_step.name, wait_for_ends.ids);
  end if;
  if v_step.state is null then
    -- Another end may be under way: its update of pending comes before or after this.
    select s.pending = 0 into v_is_over
    from notifyq.step as s
    where s.message_id = v_message.id
      and s.name = v_step.name
    for update;
    if not v_is_over and v_step.due_at > clock_timestamp() then
      perform notifyq.park(v_message, v_step.due_at);
      state := 'parked';
      return;
    end if;
    update notifyq.step as s
    set state = case when v_is_over then 'done' else 'timed_out' end,
      attempt = v_message.attempts,
      value = (
        select jsonb_agg(
          jsonb_build_object(
            'message_id', w.after_id, 'queue', w.queue, 'attempts', w.attempts,
            'status', w.status, 'details', w.details, 'result', w.result
          )
          order by w.position
        )
        from notifyq.end_wait as w
        where w.message_id = v_message.id
          and w.step = v_step.name
      )
    where s.message_id = v_message.id
      and s.name = v_step.name
    returning s.* into v_step;
    delete from notifyq.end_wait as w
    where w.message_id = v_message.id
      and w.step = v_step.name;
  end if;
  state := v_step.state;
  ends := v_step.value;
end;
$$;
comment on function notifyq.wait_for_ends(bigint, bigint, text, bigint[], interval) is
  'As messages.await_end(), for a worker: one row, with an object for each message.';

create or replace function messages.await_end(
  id bigint,
  lock_token bigint,
  name text,
  "of" bigint[],
  timeout interval default null
)
  returns setof messages.end_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select w.state, (e.value ->> 'message_id')::bigint,
    (e.value ->> 'status')::messages.message_status, e.value ->> 'details',
    nullif(e.value -> 'result', 'null')
  from notifyq.wait_for_ends(
    await_end.id, await_end.lock_token, await_end.name, await_end.of, await_end.timeout
  ) as w
  left join lateral jsonb_array_elements(w.ends) with ordinality as e (value, position) on true
  order by e.position;
end;
$$;
comment on function messages.await_end(bigint, bigint, text, bigint[], interval) is
  'Wait until all of these messages have ended. One row for each in their order, with how it ended '
  'first, and state done; timed_out where the deadline came before, with a null status for those '
  'that have not ended; or one row with state parked: the message has given up its lock and is '
  'handed out again when they have ended or the timeout is over: return at once. The first call of '
  'a name fixes the messages and the deadline (timeout null: none). Raises NQ002 for an unknown '
  'message, NQ003 for one that cannot end before this one does, NQ011 if the lock was lost.';

-- Called for all awaited messages that are archived.
create or replace function notifyq.note_ends(ids bigint[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off set enable_nestloop = on set enable_sort = on
as $$
declare
  v_wait record;
  v_pending integer;
  v_woken bigint[] := array[]::bigint[];
begin
  -- Messages before what belongs to them, as all others do.
  perform
  from messages.message as m
  where m.id = any (array(
    select w.message_id
    from unnest(note_ends.ids) as u (id)
    cross join lateral (
      select e.message_id from notifyq.end_wait as e
      where e.after_id = u.id and e.status is null
      offset 0
    ) as w
  ))
    and m.parked_at is not null
  order by m.id
  for update;
  for v_wait in
    select w.message_id, w.step, array_agg(w.after_id) as ids
    from unnest(note_ends.ids) as u (id)
    -- Each id is looked up: a join could read all that waits, and compare each with each.
    cross join lateral (
      select e.message_id, e.step, e.after_id
      from notifyq.end_wait as e
      where e.after_id = u.id and e.status is null
      offset 0
    ) as w
    where exists (select from messages.message_archive as a where a.id = u.id offset 0)
    group by w.message_id, w.step
    -- In one order everywhere: finishers of several children meet here.
    order by w.message_id, w.step
  loop
    perform
    from notifyq.step as s
    where s.message_id = v_wait.message_id and s.name = v_wait.step
    for update;
    update notifyq.end_wait as w
    set (status, details, result, queue, attempts) = (
      select a.status, a.details, a.result, a.queue, a.attempts
      from messages.message_archive as a
      where a.id = w.after_id
      limit 1
    )
    where w.message_id = v_wait.message_id
      and w.step = v_wait.step
      and w.after_id = any (v_wait.ids)
      -- A plain condition would let the planner read the whole partial index.
      and (w.status is null) is true;
    get diagnostics v_pending = row_count;
    update notifyq.step as s
    set pending = s.pending - v_pending
    where s.message_id = v_wait.message_id and s.name = v_wait.step
    returning s.pending into v_pending;
    if v_pending = 0 then
      v_woken := v_woken || v_wait.message_id;
    end if;
  end loop;
  if v_woken <> '{}' then
    perform notifyq.wake_parked(v_woken);
  end if;
end;
$$;
