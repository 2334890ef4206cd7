-- Maintain: reap expired locks, stage due messages, notify again, and run all other duties.
--
-- raises: NQ003 invalid argument

-- End expired locks; return how many, also by queue, and the first ones: {"reaped": 1, "by_queue":
-- {"q": 1}, "locks": [{"queue": "q", "id": 7, "attempt": 2, "worker": "w", "is_last": false}]}.
create or replace function notifyq.reap_locks(quantity bigint)
  returns jsonb language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_tokens bigint[];
  v_details text[];
  v_expired jsonb;
  v_locks jsonb;
  v_lock record;
begin
  -- In id order, and without rows that a finisher has locked: the finisher wins, and no two reapers
  -- get the same row.
  with expired as materialized (
    select m.id, m.lock_token, m.locked_by, m.queue, m.attempts
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at <= v_now
    order by m.id
    limit reap_locks.quantity
    for update skip locked
  )
  select array_agg(e.id), array_agg(e.lock_token), array_agg(notifyq.expiry(e.locked_by)),
    jsonb_agg(
      jsonb_build_object(
        'queue', e.queue, 'id', e.id, 'attempt', e.attempts, 'worker', left(e.locked_by, 200)
      )
    )
  into v_ids, v_tokens, v_details, v_expired
  from expired as e;
  if v_ids is null then
    return '{"reaped": 0, "by_queue": {}, "locks": []}'::jsonb;
  end if;
  perform notifyq.retry_locked(
    v_ids, v_tokens, null, v_details,
    array_fill('lock_expired'::messages.message_status, array[cardinality(v_ids)])
  );
  v_locks := (
    select jsonb_agg(
      e.lock || jsonb_build_object(
        'is_last', not exists (select from messages.message as m where m.id = v_ids[e.position])
      )
      order by e.position
    )
    from jsonb_array_elements(v_expired) with ordinality as e (lock, position)
    where e.position <= 20
  );
  -- What is dead has a warning of its own.
  for v_lock in
    select l.*
    from jsonb_to_recordset(v_locks)
      as l (queue text, id bigint, attempt integer, worker text, is_last boolean)
    where not l.is_last
  loop
    raise warning 'notifyq: lock of message % in queue % expired in attempt %, held by %',
      v_lock.id, v_lock.queue, v_lock.attempt, coalesce(v_lock.worker, '-');
  end loop;
  if cardinality(v_ids) > 20 then
    raise warning 'notifyq: % more locks expired', cardinality(v_ids) - 20;
  end if;
  return jsonb_build_object(
    'reaped', cardinality(v_ids), 'locks', v_locks, 'by_queue', (
      select jsonb_object_agg(q.name, q.locks)
      from (
        select e.lock ->> 'queue' as name, count(*) as locks
        from jsonb_array_elements(v_expired) as e (lock)
        group by 1
      ) as q
    )
  );
end;
$$;

create or replace function messages.reap(quantity integer default 1000)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_quantity(reap.quantity, 100000);
  return (notifyq.reap_locks(reap.quantity) ->> 'reaped')::integer;
end;
$$;
comment on function messages.reap is
  'End up to quantity expired locks: archive the messages as lock_expired or, where attempts are '
  'left, put them back with the backoff of their queue. Returns how many. Concurrent calls are '
  'safe.';

-- Queues without such a message cost a look into an index, not a call.
create or replace function messages.stage_due(quantity integer default 10000)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_queue messages.queue;
  v_ids bigint[];
  v_staged integer := 0;
begin
  perform notifyq.check_quantity(stage_due.quantity, 1000000);
  for v_queue in
    select q.*
    from messages.queue as q
    -- The limit keeps the planner from reading the messages of all queues for one join.
    cross join lateral (
      select from messages.message as m
      where m.queue = q.name and m.state = 'scheduled' and m.available_at <= v_now
      order by m.available_at
      limit 1
    ) as due
    order by q.name
  loop
    v_ids := notifyq.stage_queue(v_queue.name, clock_timestamp(), stage_due.quantity - v_staged);
    if cardinality(v_ids) > 0 then
      v_staged := v_staged + cardinality(v_ids);
      perform notifyq.notify_queue(v_queue, notifyq.compact_ids(v_ids[1:1000]));
    end if;
    exit when v_staged >= stage_due.quantity;
  end loop;
  return v_staged;
end;
$$;
comment on function messages.stage_due is
  'Make up to quantity due scheduled messages available and notify workers; return how many. A '
  'claim does the same for the queues that it reads.';

create or replace function notifyq.notify_waiting(queue messages.queue)
  returns boolean language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_first bigint;
begin
  select m.id into v_first
  from messages.message as m
  where m.queue = notify_waiting.queue.name
    and m.state = 'waiting'
  order by m.priority desc, m.id
  limit 1;
  return found and notifyq.notify_queue(queue, v_first::text);
end;
$$;

create or replace function notifyq.renotify()
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
begin
  return (
    select count(*)::integer
    -- The offset makes the planner sort before it notifies.
    from (
      select q
      from messages.queue as q
      cross join lateral (
        select from messages.message as m
        where m.queue = q.name and m.state = 'waiting'
        order by m.priority desc, m.id
        limit 1
      ) as waiting
      order by q.name
      offset 0
    ) as each (queue)
    where notifyq.notify_waiting(each.queue)
  );
end;
$$;
comment on function notifyq.renotify is
  'Notify once for each queue that has a message waiting and is not paused; return how many.';

-- Run one duty of maintenance in a block of its own, and return what it returns. An error is kept
-- in notifyq.duty_failure, and the duty pauses: 1 second, doubled by each failure, at most a
-- minute. A run that is cancelled or meets its statement_timeout ends the whole statement.
create or replace function notifyq.run_duty(
  duty text, schema text, function text, variadic arguments bigint[]
)
  returns text language plpgsql
as $$
declare
  v_result text;
  v_code text;
  v_error text;
  v_pause interval;
begin
  if exists (
    select from notifyq.duty_failure as f
    where f.duty = run_duty.duty and f.next_at > clock_timestamp()
  ) then
    return null;
  end if;
  begin
    if cardinality(arguments) = 0 then
      execute format('select %I.%I()', schema, function) into v_result;
    elsif cardinality(arguments) = 1 then
      execute format('select %I.%I(%L)', schema, function, arguments[1]) into v_result;
    else
      execute format('select %I.%I(%L, %L)', schema, function, arguments[1], arguments[2])
      into v_result;
    end if;
  exception
    when others or assert_failure then
      get stacked diagnostics v_code = returned_sqlstate, v_error = message_text;
      insert into notifyq.duty_failure as f (duty, next_at, failures, code, error)
      values (
        run_duty.duty, clock_timestamp() + interval '1 second', 1, v_code, left(v_error, 1000)
      )
      on conflict on constraint duty_failure_duty_pk do update
      set failed_at = clock_timestamp(),
        next_at = clock_timestamp() + least(2 ^ least(f.failures, 6), 60) * interval '1 second',
        failures = least(f.failures, 2147483646) + 1,
        total = f.total + 1,
        code = excluded.code,
        error = excluded.error
      returning f.next_at - clock_timestamp() into v_pause;
      raise warning using
        message = format('notifyq: maintenance cannot %s: %s', duty, v_error),
        detail = format('SQLSTATE %s, next try in %s s', v_code, ceil(extract(epoch from v_pause)));
      return null;
  end;
  update notifyq.duty_failure as f set failures = 0
  where f.duty = run_duty.duty and f.failures > 0;
  return v_result;
end;
$$;

-- The duties, in their order: what each does, as words behind "cannot", its function and arguments.
-- `is_rare`: about twice a minute, as it reads many rows. Schedules and locks come first, because
-- others take longer. Signals are checked late, because workers that park wait for their locks.
-- Days are dropped late, because that locks the archive until the commit. The position is recorded
-- last: reap_and_stage() needs that row, and must not wait for the others.
create or replace function notifyq.maintain_duties(
  fresh bigint,
  out duty text,
  out schema text,
  out function text,
  out arguments bigint[],
  out is_rare boolean
)
  returns setof record language sql immutable
as $$
  values
    ('fire schedules', 'notifyq', 'fire_schedules', '{}'::bigint[], false),
    ('reap expired locks', 'messages', 'reap', '{}', false),
    ('stage due messages', 'messages', 'stage_due', '{}', false),
    ('reject messages of dropped queues', 'notifyq', 'reject_orphans', '{1000}', false),
    ('return messages of ended sessions', 'notifyq', 'return_owned', '{1000}', false),
    ('expire messages', 'notifyq', 'expire', '{10000}', false),
    ('delete expired dedup keys', 'notifyq', 'forget_keys', '{10000}', false),
    ('release messages that wait for others', 'notifyq', 'sweep_dependencies', '{1000}', false),
    ('delete old output', 'notifyq', 'maintain_output', '{10000}', false),
    ('delete unused keys of limits', 'notifyq', 'sweep_limit_keys', '{10000}', true),
    ('sweep unlogged queues', 'notifyq', 'sweep_unlogged', '{10000}', true),
    ('delete old loads', 'notifyq', 'forget_loads', '{100000}', true),
    ('forget workers', 'notifyq', 'forget_workers', '{1000}', true),
    ('delete old rows of the audit', 'notifyq', 'forget_audit', '{10000}', true),
    ('skip lagging subscribers', 'notifyq', 'skip_behind', array[100000, fresh], false),
    ('forward events', 'notifyq', 'forward_pending', '{10000}', false),
    ('maintain streams', 'notifyq', 'maintain_streams', array[fresh], false),
    ('delete staged rows', 'notifyq', 'sweep_loads', '{50000}', false),
    ('end pauses', 'notifyq', 'end_pauses', '{}', false),
    ('check signals', 'notifyq', 'maintain_signals', '{10000}', false),
    ('notify again', 'notifyq', 'renotify', '{}', false),
    ('delete receipts', 'notifyq', 'forget_receipts', '{20000}', false),
    ('create days', 'notifyq', 'make_partitions', '{}', false),
    ('delete by retention', 'notifyq', 'retain', '{}', false),
    ('drop days', 'notifyq', 'drop_partitions', '{}', false),
    ('record its position', 'notifyq', 'note_reached', '{}', false)
$$;

create or replace function notifyq.failing_duties(
  out duty text,
  out error text,
  out failures integer,
  out total bigint
)
  returns setof record language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select f.duty,
    format('cannot %s: %s (SQLSTATE %s, %s times)', f.duty, f.error, f.code, f.failures),
    f.failures, f.total
  from notifyq.duty_failure as f
  order by f.duty
$$;
comment on function notifyq.failing_duties is
  'The duties of maintenance that have failed: the last error in words, how many runs have failed '
  'since one succeeded (0: the last one did), and how many in all.';

create or replace function notifyq.reap_and_stage(
  out reaped integer, out staged integer, out expired jsonb
)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- A row lock of its own: it does not wait for messages.maintain().
  perform from notifyq.origin for update skip locked;
  if not found then
    return;
  end if;
  expired := notifyq.run_duty(
    'reap expired locks', 'notifyq', 'reap_locks', variadic '{1000}'
  )::jsonb;
  reaped := coalesce((expired ->> 'reaped')::integer, 0);
  staged := coalesce(
    notifyq.run_duty('stage due messages', 'messages', 'stage_due', variadic '{}')::integer, 0
  );
end;
$$;
comment on function notifyq.reap_and_stage is
  'Do what messages must not wait for while messages.maintain() is in a long retention: reap '
  'expired locks and stage due messages; return how many. expired: the locks by_queue, and the '
  'first 20 as objects with queue, id, attempt, worker and is_last. Null: another session is doing '
  'it.';

create or replace function notifyq.maintain(urgently boolean)
  returns messages.maintenance_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_report messages.maintenance_report := (0, 0, 0, 0, 0);
  v_runs_rare boolean := random() < 0.03;
  v_duty record;
  v_done text;
begin
  perform notifyq.check_given('urgently', urgently is not null);
  -- A row lock: any role of the database could hold an advisory lock permanently.
  perform from notifyq.schema_version as s
  where s.version = (select min(v.version) from notifyq.schema_version as v)
  for update skip locked;
  if not found then
    return null;
  end if;
  for v_duty in
    select d.* from notifyq.maintain_duties(notifyq.fresh_low()) as d
    where (v_runs_rare or not d.is_rare)
      and (urgently or d.function not in ('fire_schedules', 'reap', 'stage_due'))
  loop
    v_done := coalesce(
      notifyq.run_duty(
        v_duty.duty, v_duty.schema, v_duty.function, variadic v_duty.arguments
      ),
      '0'
    );
    case v_duty.duty
      when 'reap expired locks', 'reject messages of dropped queues' then
        v_report.reaped := v_report.reaped + v_done::integer;
      when 'stage due messages' then v_report.staged := v_done::integer;
      when 'notify again' then v_report.notified := v_done::integer;
      when 'create days' then v_report.partitions_made := v_done::integer;
      when 'drop days' then v_report.partitions_dropped := v_done::integer;
      else null;
    end case;
  end loop;
  return v_report;
end;
$$;
comment on function notifyq.maintain is
  'Run the duties of messages.maintain(): all, or without those of notifyq.reap_and_stage() and '
  'the schedules, for a worker that calls these in statements of their own. Raises NQ003 for null.';

create or replace function messages.maintain()
  returns messages.maintenance_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return notifyq.maintain(true);
end;
$$;
comment on function messages.maintain is
  'Run all maintenance, in bounded steps: fire due schedules, reap expired locks, put back '
  'messages of ended sessions, reject messages of dropped queues, delete expired dedup keys, '
  'stage due messages, skip subscribers that are too far behind, move forwarded events, tick '
  'streams and delete events that all subscribers have read, remove staged rows of finished loads '
  'and old rows of the audit, end pauses that are over, notify again for waiting messages, create '
  'the coming days of the archive and of the attempts, and drop those past their retention. A step '
  'that fails stops no other; `notifyq doctor` shows its error. Null: '
  'another session is running it. pg_cron calls it, and workers about once a second.';
