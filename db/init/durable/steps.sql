-- Steps: what a handler has done is recorded, and not done again.
--
-- raises: NQ003 invalid argument, NQ007 no right to the queue, NQ008 too large, NQ011 lock lost,
-- NQ012 step of another kind

-- The message, locked until the end of the transaction: it cannot be claimed by another worker, end
-- or be released before that. Heartbeats of its holder wait meanwhile, so this comes last in what
-- takes long.
create or replace function notifyq.hold_lock(id bigint, lock_token bigint)
  returns messages.message language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_message messages.message;
begin
  select m.* into v_message
  from only messages.message as m
  where m.id = hold_lock.id
    and m.lock_token = hold_lock.lock_token
    and m.state = 'locked'
  for update;
  if not found then
    select m.* into v_message from notifyq.message_unlogged as m where m.id = hold_lock.id;
    if found then
      perform notifyq.raise_invalid(
        format('queue %L is unlogged: its messages have no steps', v_message.queue),
        'make the queue durable'
      );
    end if;
    raise exception using
      errcode = 'NQ011',
      message = format('the lock of message %s was lost', coalesce(id::text, 'null')),
      hint = 'another worker may have the message by now: stop handling it';
  end if;
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(v_message.queue, 'consume from');
  end if;
  return v_message;
end;
$$;

create or replace function notifyq.check_value(queue text, what text, value jsonb, use text)
  returns void language plpgsql
as $$
declare
  v_queue messages.queue := notifyq.find_queue(queue);
begin
  perform notifyq.check_given(what, value is not null);
  if v_queue.encrypted then
    perform notifyq.check_envelope(v_queue.name, use, value);
  end if;
  if octet_length(value::text) > v_queue.max_bytes then
    raise exception using
      errcode = 'NQ008',
      message = format(
        '%s has %s bytes, and queue %L takes %s', what, octet_length(value::text), queue,
        v_queue.max_bytes
      ),
      hint = 'record where it is kept, or raise max_bytes of the queue';
  end if;
end;
$$;

-- The step of this name if it is recorded; else a new row for it, which is returned with null as
-- its number and is not stored yet.
create or replace function notifyq.find_step(message messages.message, name text, kind text)
  returns notifyq.step language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_step notifyq.step;
begin
  perform notifyq.check_length('step', name);
  select s.* into v_step
  from notifyq.step as s
  where s.message_id = find_step.message.id
    and s.name = find_step.name;
  if not found then
    v_step.message_id := message.id;
    v_step.name := name;
    v_step.kind := kind;
    v_step.queue := message.queue;
    v_step.attempt := message.attempts;
  elsif v_step.kind <> kind then
    raise exception using
      errcode = 'NQ012',
      message = format(
        '%L is recorded as a %s of message %s and cannot be a %s', name, v_step.kind, message.id,
        kind
      ),
      hint = 'give each step, sleep and wait of a handler a name of its own';
  end if;
  return v_step;
end;
$$;

-- What is recorded for a message leaves with it: process_archived() finds it by this mark.
create or replace function notifyq.mark_durable(ids bigint[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  update messages.message as m
  set root_id = m.id
  where m.id = any (mark_durable.ids)
    and m.root_id is null;
end;
$$;

-- A message that was dead and published again has a root_id even if it has recorded nothing.
create or replace function notifyq.has_steps(message messages.message)
  returns boolean language sql stable
as $$
  select message.root_id is not null
    and exists (select from notifyq.step as s where s.message_id = message.id);
$$;

-- New steps are numbered behind those of their message. This transaction has locked it, so no other
-- takes the same numbers.
create or replace function notifyq.add_steps(steps notifyq.step[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_full bigint;
  v_first bigint[];
begin
  with added as (
    insert into notifyq.step as s
      (message_id, number, name, kind, state, queue, attempt, due_at, child_id, value)
    select n.message_id,
      row_number() over (partition by n.message_id order by n.ordinality) + coalesce(
        (select max(o.number) from notifyq.step as o where o.message_id = n.message_id), 0
      ),
      n.name, n.kind, n.state, n.queue, n.attempt, n.due_at, n.child_id, n.value
    from unnest(steps) with ordinality as n
    returning s.message_id, s.number
  )
  select min(a.message_id) filter (where a.number > 10000),
    array_agg(a.message_id) filter (where a.number = 1)
  into v_full, v_first
  from added as a;
  if v_full is not null then
    raise exception using
      errcode = 'NQ008',
      message = format('message %s has 10000 steps already', v_full),
      hint = 'continue in a message of its own';
  end if;
  if v_first is not null then
    perform notifyq.mark_durable(v_first);
  end if;
end;
$$;

-- A step as it is recorded; else as it is to be, with null as its number.
create or replace function notifyq.ended_step(
  message messages.message, name text, value jsonb, failed boolean, child_id bigint
)
  returns notifyq.step language plpgsql
as $$
declare
  v_step notifyq.step := notifyq.find_step(message, name, 'step');
begin
  perform notifyq.check_given('failed', failed is not null);
  if v_step.number is null then
    perform notifyq.check_value(message.queue, 'value', value, 'step');
    v_step.state := case when failed then 'failed' else 'done' end;
    v_step.value := value;
    v_step.child_id := child_id;
  end if;
  return v_step;
end;
$$;

-- is_new is false where the step was there already: then what this transaction has done for it is
-- to be rolled back.
create or replace function notifyq.record_step(
  id bigint,
  lock_token bigint,
  name text,
  value jsonb,
  failed boolean default false,
  child_id bigint default null,
  out stored jsonb,
  out state text,
  out is_new boolean
)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_message messages.message := notifyq.hold_lock(record_step.id, record_step.lock_token);
  v_step notifyq.step := notifyq.ended_step(v_message, name, value, failed, child_id);
begin
  is_new := v_step.number is null;
  if is_new then
    perform notifyq.add_steps(array[v_step]);
  end if;
  stored := v_step.value;
  state := v_step.state;
end;
$$;
comment on function notifyq.record_step(bigint, bigint, text, jsonb, boolean, bigint) is
  'As messages.step(), for a worker: child_id is the message that the step has published.';

create or replace function notifyq.record_steps(
  ids bigint[],
  lock_tokens bigint[],
  names text[],
  contents jsonb[],
  failed boolean[],
  out number bigint,
  out stored jsonb,
  out state text
)
  returns setof record language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_messages messages.message[];
  v_item record;
  v_step notifyq.step;
  v_new notifyq.step[];
begin
  v_messages := array(
    select m
    from only messages.message as m
    where m.id = any (ids)
      and m.state = 'locked'
    for update skip locked
  );
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(q.queue, 'consume from')
    from (select distinct m.queue from unnest(v_messages) as m) as q;
  end if;
  for v_item in
    select u.number, m as message, u.name, u.value, u.failed
    from unnest(ids, lock_tokens, names, contents, record_steps.failed) with ordinality
      as u (id, lock_token, name, value, failed, number)
    join unnest(v_messages) as m on m.id = u.id and m.lock_token = u.lock_token
  loop
    v_step := notifyq.ended_step(v_item.message, v_item.name, v_item.value, v_item.failed, null);
    if v_step.number is null then
      v_new := v_new || v_step;
    end if;
    number := v_item.number;
    stored := v_step.value;
    state := v_step.state;
    return next;
  end loop;
  if v_new is not null then
    perform notifyq.add_steps(v_new);
  end if;
end;
$$;
comment on function notifyq.record_steps(bigint[], bigint[], text[], jsonb[], boolean[]) is
  'As messages.step(), for many messages: the place of each in the arrays, from 1 on, and what is '
  'recorded. None for a message whose lock was lost, or whose row another transaction has locked.';

create or replace function messages.step(
  id bigint,
  lock_token bigint,
  name text,
  value jsonb default 'null',
  failed boolean default false
)
  returns jsonb language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return (notifyq.record_step(id, lock_token, name, value, failed)).stored;
end;
$$;
comment on function messages.step(bigint, bigint, text, jsonb, boolean) is
  'Record a step of a message that is locked under lock_token, in the caller''s transaction. The '
  'first value of a name wins: it is returned, and a later call changes nothing. failed marks an '
  'outcome that the handler treats as an error. name has 1 to 200 bytes; a message has at most '
  '10000 steps. Raises NQ011 if the lock was lost, NQ012 if the name is that of a sleep or a wait, '
  'NQ008 if value is larger than max_bytes of the queue, NQ003 for an unlogged queue.';

create or replace function messages.steps(id bigint)
  returns setof messages.recorded_step language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_sees_all boolean := notifyq.sees_all();
begin
  return query
  select s.name,
    case
      when s.kind = 'signal' then s.value -> 'payload'
      when s.kind = 'end' and not v_sees_all then (
        select jsonb_agg(e.value order by e.position)
        from jsonb_array_elements(s.value) with ordinality as e (value, position)
        where notifyq.may_read(e.value ->> 'queue')
      )
      else s.value
    end,
    s.attempt, s.created_at, s.kind, s.state
  from (
    select l.number, l.name, l.value, l.attempt, l.created_at, l.kind, l.state, l.queue
    from notifyq.step as l
    where l.message_id = steps.id
    union all
    select a.number, a.name, a.value, a.attempt, a.created_at, a.kind, a.state, a.queue
    from notifyq.step_archive as a
    where a.message_id = steps.id
  ) as s
  where s.state is not null
    and (v_sees_all or notifyq.may_read(s.queue))
  order by s.number;
end;
$$;
comment on function messages.steps(bigint) is
  'The recorded steps of a live or archived message in their order. kind: step, sleep, signal '
  '(a wait for one) or end (a wait for messages); state: done, failed, received or timed_out. What '
  'it still waits for is in parked(). None of a queue that the caller may not read; the value of a '
  'wait for messages leaves out those of such queues.';

create or replace function notifyq.step_origin()
  returns text language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select concat_ws(':', (notifyq.current_origin()).system_identifier, notifyq.database_oid());
$$;
comment on function notifyq.step_origin() is
  'What idempotency keys of this database are made of, besides the id of a message.';

-- For a worker that begins to handle a message.
create or replace function notifyq.recorded_steps(
  id bigint,
  lock_token bigint,
  out name text,
  out kind text,
  out state text,
  out value jsonb
)
  returns setof record language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_message messages.message := notifyq.hold_lock(recorded_steps.id, recorded_steps.lock_token);
begin
  return query
  select s.name, s.kind, s.state, s.value
  from notifyq.step as s
  where s.message_id = v_message.id
  order by s.number;
end;
$$;
comment on function notifyq.recorded_steps(bigint, bigint) is
  'The steps of a message that is locked under lock_token, and what it waits for. Raises NQ011 if '
  'the lock was lost.';

-- Messages that are finished take their steps with them; what they wait for ends.
create or replace function notifyq.archive_steps(ids bigint[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off set enable_nestloop = on set enable_sort = on
as $$
begin
  delete from notifyq.signal_wait as w where w.message_id = any (ids);
  delete from notifyq.end_wait as w where w.message_id = any (ids);
  delete from notifyq.signal as s where s.message_id = any (ids);
  update notifyq.message_output as o
  set forget_at = clock_timestamp() + interval '1 day'
  where o.message_id = any (ids);
  with gone as (
    delete from notifyq.step as s where s.message_id = any (ids) returning s.*
  )
  insert into notifyq.step_archive select g.*, clock_timestamp() from gone as g;
end;
$$;

-- A dead message that is published again continues behind its recorded steps.
create or replace function notifyq.restore_steps(dead bigint[], again bigint[])
  returns void language plpgsql
  -- Without nestloop: the planner may expect few steps, and compare all with all.
  set enable_seqscan = off set enable_nestloop = off set jit = off
as $$
begin
  insert into notifyq.step (
    message_id, number, name, kind, state, queue, attempt, created_at, due_at, child_id, value
  )
  select u.new_id, s.number, s.name, s.kind, s.state, s.queue, s.attempt, s.created_at, s.due_at,
    s.child_id, s.value
  from unnest(restore_steps.dead, restore_steps.again) as u (old_id, new_id)
  join notifyq.step_archive as s on s.message_id = u.old_id
  where s.message_id = any (restore_steps.dead)
    and s.state is not null;
end;
$$;
