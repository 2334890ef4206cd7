-- Matching: actions on all live messages that match, in steps, and run_now() for one.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

-- The newest first, by id: each row is read once, and what is published meanwhile is not reached.
create or replace function notifyq.find_live(
  conditions jsonb, states text[], quantity integer, position_id bigint, budget interval
)
  returns messages.step_report language plpgsql stable
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(conditions, states);
  v_step messages.step_report;
begin
  perform notifyq.check_quantity(find_live.quantity, 100000);
  if c.until_at is null then
    perform notifyq.raise_invalid(
      'the condition until is missing', 'without it, messages that are published from now on match'
    );
  end if;
  if c.subscriber is not null then
    perform notifyq.raise_invalid('live messages have no subscriber');
  end if;
  select count(*) filter (where f.state = any (states)), 0::bigint, null::timestamptz,
    max(f.id) filter (where f.state = 'more'), count(*) filter (where f.state = 'more') = 0,
    coalesce(array_agg(f.id) filter (where f.state = any (states)), '{}'), '{}'::text[]
  into v_step
  from notifyq.search_live_step(c, quantity, position_id, budget) as f;
  return v_step;
end;
$$;

-- Those of the messages that are not locked and still in such a state and queue, with the row locks
-- of this transaction. One that another transaction changes at this moment is left out.
create or replace function notifyq.lock_live(ids bigint[], conditions jsonb, states text[])
  returns bigint[] language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
  return array(
    select m.id
    from messages.message as m
    where m.id = any (ids)
      and case when m.blockers is null then m.state::text else 'blocked' end = any (
        case when conditions ->> 'state' is null then states else array[conditions ->> 'state'] end
      )
      and m.queue = coalesce(conditions ->> 'queue', m.queue)
    order by m.id
    for update skip locked
  );
end;
$$;

create or replace function notifyq.count_live_matching(
  conditions jsonb,
  quantity integer default 10000,
  position_id bigint default null,
  budget interval default '1 second',
  states text[] default '{waiting,scheduled,blocked}'
)
  returns messages.step_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_step messages.step_report;
begin
  perform notifyq.check_given('states', states is not null);
  v_step := notifyq.find_live(conditions, states, quantity, position_id, budget);
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function notifyq.count_live_matching is
  'How many live messages in one of these states match the conditions: up to quantity, within '
  'about budget. cancel_matching(), move_matching() and amend_matching() change those in the '
  'default states, run_now_matching() the scheduled ones. is_over: these are all; else continue '
  'from position_id. Raises NQ003.';

create or replace function messages.cancel_matching(
  conditions jsonb,
  quantity integer default 1000,
  position_id bigint default null,
  budget interval default '1 second',
  running boolean default false,
  children boolean default false,
  reason text default null,
  cancelled_by text default null
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_states text[] := array['waiting', 'scheduled', 'blocked'];
  v_step messages.step_report;
begin
  if running then
    v_states := v_states || 'locked'::text;
  end if;
  v_step := notifyq.find_live(conditions, v_states, quantity, position_id, budget);
  if not running then
    v_step.ids := notifyq.lock_live(v_step.ids, conditions, v_states);
  end if;
  v_step.done := notifyq.cancel_all(v_step.ids, running, children, reason, cancelled_by);
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function messages.cancel_matching is
  'One step of cancelling live messages, each as cancel() does with these arguments: the newest '
  'first, up to quantity that match the conditions, see search_live(). The condition until is '
  'required. Returns how many were found, how many of them were cancelled (done; workers have '
  'claimed the others meanwhile), and where the next step continues, unless is_over. Raises NQ003.';

-- Make scheduled messages due, and return how many.
create or replace function notifyq.make_due(ids bigint[])
  returns bigint language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_count bigint;
begin
  update messages.message as m
  set state = 'waiting', available_at = now(), parked_at = null
  where m.id = any (ids)
    -- `is true`: not by the index of all that is scheduled.
    and (m.state = 'scheduled') is true
    and m.blockers is null;
  get diagnostics v_count = row_count;
  if v_count > 0 then
    perform notifyq.notify_messages(ids);
  end if;
  return v_count;
end;
$$;

create or replace function messages.run_now(id bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return notifyq.make_due(array[id]) > 0;
end;
$$;
comment on function messages.run_now is
  'Make a scheduled message due now. False: it is not scheduled, or waits for other messages; '
  'unblock() ends that.';

create or replace function messages.run_now_matching(
  conditions jsonb,
  quantity integer default 1000,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_step messages.step_report := notifyq.find_live(
    conditions, array['scheduled'], quantity, position_id, budget
  );
begin
  v_step.done := notifyq.make_due(
    notifyq.lock_live(v_step.ids, conditions, array['scheduled'])
  );
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function messages.run_now_matching is
  'One step of making scheduled messages due, as run_now() does: arguments and result as in '
  'cancel_matching(). Raises NQ003.';

create or replace function messages.amend_matching(
  conditions jsonb,
  priority integer,
  quantity integer default 1000,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_states text[] := array['waiting', 'scheduled', 'blocked'];
  v_step messages.step_report;
begin
  perform notifyq.check_given('priority', priority is not null);
  v_step := notifyq.find_live(conditions, v_states, quantity, position_id, budget);
  v_step.ids := notifyq.lock_live(v_step.ids, conditions, v_states);
  update messages.message as m
  set priority = amend_matching.priority
  where m.id = any (v_step.ids);
  v_step.done := cardinality(v_step.ids)::bigint;
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function messages.amend_matching is
  'One step of setting the priority of live messages, as amend() does: other arguments and the '
  'result as in cancel_matching(). Raises NQ003.';

-- Why a queue does not take a message of another one; null: it does, if a publisher's would pass.
create or replace function notifyq.why_not_moved(message messages.message, target messages.queue)
  returns text language plpgsql
as $$
begin
  return case
    when notifyq.has_steps(message) then 'it has recorded steps'
    when exists (
      select from notifyq.dedup as d
      where d.queue = target.name
        and d.dedup_key = message.dedup_key
        and d.id <> message.id
        and d.expires_at > clock_timestamp()
    ) then 'its dedup_key was published there, and the dedup_window is not over'
    -- It would run after a message with its key that waits for it, see check_awaited().
    when target.ordered and message.key is not null and exists (
      select from notifyq.end_wait as w where w.after_id = message.id and w.status is null
    ) then 'a message waits for its end, perhaps with the same key in that ordered queue'
  end;
end;
$$;

-- Rows stay and change their queue: what waits for a message, or is about to wake it, finds it by
-- its id. No insert trigger runs, so all that it checks of a publisher is checked here.
create or replace function messages.move_matching(
  conditions jsonb,
  queue text,
  quantity integer default 1000,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_states text[] := array['waiting', 'scheduled', 'blocked'];
  v_step messages.step_report;
  v_source messages.queue;
  v_target messages.queue;
  v_room bigint;
  v_message messages.message;
  v_why text;
  v_due bigint[] := array[]::bigint[];
begin
  v_step := notifyq.find_live(conditions, v_states, quantity, position_id, budget);
  perform notifyq.check_given('the condition queue', conditions ->> 'queue' is not null);
  perform notifyq.check_access(queue, 'publish into');
  -- As a publisher does: drop_queue() waits for this transaction, or this one for it.
  if not pg_try_advisory_xact_lock_shared(notifyq.publishing_key(queue)) then
    perform notifyq.await_drop(queue);
  end if;
  v_source := notifyq.find_queue(conditions ->> 'queue');
  v_target := notifyq.find_queue(queue);
  if v_source.name = v_target.name then
    perform notifyq.raise_invalid('the messages are in this queue already');
  end if;
  if not (v_source.durable and v_target.durable) then
    perform notifyq.raise_invalid('messages of an unlogged queue cannot be moved, nor into one');
  end if;
  if v_source.encrypted or v_target.encrypted then
    perform notifyq.raise_invalid('messages of an encrypted queue cannot be moved, nor into one');
  end if;
  if v_target.capacity is not null then
    -- The turn of publishers, before any message is locked: they may wait for those in their turn.
    perform from notifyq.limit_turn as f
    where f.queue = v_target.name
      and f.part = 'publish'
    for update;
    v_room := (
      select v_target.capacity - l._waiting
      from notifyq.count_live(v_target.name, v_target.capacity) as l
    );
  end if;
  v_step.ids := notifyq.lock_live(v_step.ids, conditions, v_states);
  for v_message in
    select m.*
    from messages.message as m
    where m.id = any (v_step.ids)
    -- Publishers insert keys in this order, see publish_all().
    order by m.dedup_key, m.id
  loop
    v_why := case when v_room <= 0 then format('queue %L is full', v_target.name)
      else notifyq.why_not_moved(v_message, v_target) end;
    if v_why is null then
      begin
        perform notifyq.check_payload(
          v_target.name, v_target.payload_type, v_target.payload_schema::jsonb, v_target.encrypted,
          v_message.message
        );
        -- An update of the payload calls the trigger that checks its size.
        update messages.message as m
        set queue = v_target.name, message = m.message
        where m.id = v_message.id;
        v_step.done := v_step.done + 1;
        v_room := v_room - 1;
        if v_message.available_at < now() + interval '1 minute' then
          v_due := v_due || v_message.id;
        end if;
      exception
        when unique_violation then
          v_why := 'a message there has its dedup_key';
        when others then
          if not notifyq.is_refusal(sqlstate) then
            raise;
          end if;
          v_why := sqlerrm;
      end;
    end if;
    if v_why is not null then
      v_step.refusals := v_step.refusals || format('message %s: %s', v_message.id, v_why);
    end if;
  end loop;
  if v_target.capacity is not null and v_step.done > 0 then
    -- The next publisher counts the messages, and so does this transaction, see make_room().
    update notifyq.limit_room as r
    set number = r.number + 1, room = 0
    where r.queue = v_target.name;
    perform set_config(notifyq.secret_setting('notifyq.room', v_target.name), '', true);
  end if;
  if v_due <> '{}' then
    perform notifyq.notify_queue(v_target, notifyq.compact_ids(v_due[1:1000]));
  end if;
  -- Messages with the same key may have waited for one of these.
  perform notifyq.notify_freed(array[v_source.name], v_step.ids);
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function messages.move_matching is
  'One step of moving live messages into another queue: arguments and result as in '
  'cancel_matching(), and the condition queue is required. A message keeps its id and all else: '
  'what waits for it still does. One that the queue would refuse from a publisher (schema, type, '
  'size, capacity, dedup_key), and one with recorded steps, stays where it is; see refusals. '
  'Raises NQ001, NQ003, also for an unlogged queue, and NQ007 without the right to publish.';
