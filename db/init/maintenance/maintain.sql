-- Maintain: reap expired locks, stage due messages, notify again, put orphans back.
--
-- raises: NQ003 invalid argument

create or replace function messages.reap(quantity integer default 1000)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_tokens bigint[];
  v_details text[];
begin
  perform notifyq.check_quantity(reap.quantity, 100000);
  -- In id order, and without rows that a finisher has locked: the finisher wins, and no two reapers
  -- get the same row.
  with expired as materialized (
    select m.id, m.lock_token, m.locked_by
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at <= v_now
    order by m.id
    limit reap.quantity
    for update skip locked
  )
  select array_agg(e.id), array_agg(e.lock_token), array_agg(notifyq.expiry(e.locked_by))
  into v_ids, v_tokens, v_details
  from expired as e;
  if v_ids is null then
    return 0;
  end if;
  perform notifyq.retry_locked(
    v_ids, v_tokens, null, v_details,
    array_fill('lock_expired'::messages.message_status, array[cardinality(v_ids)])
  );
  return cardinality(v_ids);
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
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_queue messages.queue;
  v_ids bigint[];
  v_staged integer := 0;
begin
  perform notifyq.check_quantity(stage_due.quantity, 1000000);
  for v_queue in
    select q.* from messages.queue as q
    where exists (
      select from messages.message as m
      where m.queue = q.name and m.state = 'scheduled' and m.available_at <= v_now
    )
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
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
begin
  return (
    select count(*)::integer
    -- The offset makes the planner sort before it notifies.
    from (
      select q
      from messages.queue as q
      where exists (
        select from messages.message as m where m.queue = q.name and m.state = 'waiting'
      )
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
-- Days are dropped last, because that locks the archive until the commit.
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
    ('record its position', 'notifyq', 'note_reached', '{}'::bigint[], false),
    ('fire schedules', 'notifyq', 'fire_schedules', '{}', false),
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
    ('drop days', 'notifyq', 'drop_partitions', '{}', false)
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

create or replace function notifyq.maintain_urgently(out reaped integer, out staged integer)
  language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- A row lock of its own: it does not wait for messages.maintain().
  perform from notifyq.origin for update skip locked;
  if not found then
    return;
  end if;
  reaped := coalesce(
    notifyq.run_duty('reap expired locks', 'messages', 'reap', variadic '{}')::integer, 0
  );
  staged := coalesce(
    notifyq.run_duty('stage due messages', 'messages', 'stage_due', variadic '{}')::integer, 0
  );
end;
$$;
comment on function notifyq.maintain_urgently is
  'Do what messages must not wait for while messages.maintain() is in a long retention: reap '
  'expired locks and stage due messages; return how many. Null: another session is doing it.';

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
  'Run the duties of messages.maintain(): all, or without those of notifyq.maintain_urgently() and '
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

-- Orphans: messages whose queue, or the session that owned them, is gone.

-- Publishers that skip NOTIFY do not read the queue: a queue that is dropped while a worker
-- suppresses its notifications can be published into until the worker notices.
create or replace function notifyq.reject_orphans(quantity bigint)
  returns integer language plpgsql
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_queue text := '';
  v_orphans messages.message[];
  v_rejected integer := 0;
begin
  loop
    -- From one queue to the next in the indexes, however many messages each has.
    v_queue := least(
      (
        select m.queue from messages.message as m
        where m.state = 'waiting' and m.queue > v_queue order by m.queue limit 1
      ),
      (
        select m.queue from messages.message as m
        where m.state = 'scheduled' and m.queue > v_queue order by m.queue limit 1
      )
    );
    exit when v_queue is null;
    continue when exists (select from messages.queue as q where q.name = v_queue);
    v_orphans := array(
      select m
      from messages.message as m
      where m.queue = v_queue
        and m.state <> 'locked'
        and m.id = any (
          array(
            select w.id from messages.message as w
            where w.state = 'waiting' and w.queue = v_queue limit reject_orphans.quantity
          ) || array(
            select w.id from messages.message as w
            where w.state = 'scheduled' and w.queue = v_queue limit reject_orphans.quantity
          )
        )
      order by m.id
      for update skip locked
    );
    v_rejected := v_rejected + cardinality(v_orphans);
    perform notifyq.reject_all(
      v_orphans, format('there is no queue %L any more', left(v_queue, 200))
    );
  end loop;
  return v_rejected;
end;
$$;

-- Put back messages of sessions that have ended, see queue/owned.sql; returns how many. Where a
-- queue allows several attempts each such session counts as one: a message that ends its sessions
-- is dead in the end. Where it allows one, the message comes back any number of times, as in Q4M.
-- Rows are read as of before the locks: a session takes its lock first.
create or replace function notifyq.return_owned(quantity integer)
  returns integer language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  v_gone text[];
  v_owned messages.message[];
  v_why text := 'the session that owned it has ended';
begin
  if exists (select from notifyq.owner_session) then
    v_gone := array(
      select format('%s.%s', o.pid, o.number)
      from notifyq.owner_session as o
      where (o.pid, o.number) not in (
        select l.pid, l.objid::bigint
        from pg_locks as l
        join pg_database as d on d.oid = l.database and d.datname = current_database()
        where l.locktype = 'advisory'
          and l.classid = 730542
          and l.objsubid = 2
          and l.granted
      )
      for update of o skip locked
    );
  end if;
  -- About twice a minute in any case: a session may have released its lock by hand.
  if coalesce(v_gone, '{}') = '{}' and random() >= 0.03 then
    return 0;
  end if;
  v_owned := array(
    select m
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at = 'infinity'
      and not exists (
        select from notifyq.owner_session as o
        where format('%s.%s', o.pid, o.number) = substring(m.locked_by from '[0-9]+[.][0-9]+$')
          and format('%s.%s', o.pid, o.number) <> all (coalesce(v_gone, '{}'))
      )
    order by m.id
    limit quantity
    for update skip locked
  );
  perform notifyq.retry_locked(
    array_agg(o.id), array_agg(o.lock_token),
    array_agg(interval '0'), array_agg(v_why),
    array_agg('lock_expired'::messages.message_status)
  )
  from unnest(v_owned) as o
  join messages.queue as q on q.name = o.queue
  where notifyq.attempts_of(o.max_attempts, o.handler_attempts, q.max_attempts) > 1;
  perform notifyq.release_locked(array_agg(o.id), array_agg(o.lock_token), null)
  from unnest(v_owned) as o
  left join messages.queue as q on q.name = o.queue
  where q.name is null
    or notifyq.attempts_of(o.max_attempts, o.handler_attempts, q.max_attempts) = 1;
  -- Not while another transaction has locked such a message: it may put it back.
  delete from notifyq.owner_session as o
  where format('%s.%s', o.pid, o.number) = any (v_gone)
    and not exists (
      select from messages.message as m
      where m.state = 'locked'
        and m.lock_expires_at = 'infinity'
        and substring(m.locked_by from '[0-9]+[.][0-9]+$') = format('%s.%s', o.pid, o.number)
    );
  return cardinality(v_owned);
end;
$$;

-- The same for a claim that found nothing, about once a second; whether anything came back.
create or replace function notifyq.return_orphaned()
  returns boolean language plpgsql
  set enable_seqscan = off
as $$
declare
  v_checked bigint := nullif(current_setting('notifyq.owners_checked', true), '')::bigint;
  v_now bigint := notifyq.epoch_ms(clock_timestamp());
begin
  if v_now between v_checked and v_checked + 999
    or not exists (select from notifyq.owner_session)
  then
    return false;
  end if;
  perform set_config('notifyq.owners_checked', v_now::text, false);
  return notifyq.return_owned(1000) > 0;
end;
$$;
