-- Loop: run, start and stop the broker of a role.
--
-- raises: 0A000, 42501 pg_cron cannot be used; 42501 not a session of the role itself; 53400, 53300
-- no slot is free; 55006 a broker of the role runs

-- Kind 11: held by the broker that runs. 12: held for a moment to stop it.
create or replace function notifyq.broker_key(role text, kind integer)
  returns bigint language sql immutable
as $$
  select hashtextextended(role, 7305427000 + kind);
$$;

-- The process that holds the key, if its role may stop the broker. Every role can take an advisory
-- lock, so other holders do not count.
create or replace function notifyq.key_holder(key bigint, role text)
  returns integer language plpgsql volatile
as $$
begin
  perform pg_stat_clear_snapshot();
  return (
    select l.pid
    from pg_locks as l
    join pg_stat_activity as a on a.pid = l.pid
    where l.locktype = 'advisory'
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
      and l.classid::bigint = (key >> 32 & 4294967295)
      and l.objid::bigint = (key & 4294967295)
      and l.objsubid = 1
      and l.granted
      and (
        pg_has_role(a.usesysid, to_regrole(quote_ident(role))::oid, 'usage')
        or pg_has_role(a.usesysid, to_regrole('notifyq_admin')::oid, 'usage')
      )
    order by l.pid
    limit 1
  );
end;
$$;

create or replace function notifyq.take_broker_slot(role text)
  returns bigint language plpgsql
as $$
declare
  v_key bigint := notifyq.broker_key(role, 11);
  v_holder integer;
begin
  if not pg_try_advisory_xact_lock(v_key) then
    v_holder := notifyq.key_holder(v_key, role);
    if v_holder is not null then
      raise object_in_use using
        message = format('a broker of role %I runs in this database already', role),
        detail = format('It is process %s.', v_holder),
        hint = 'select messages.stop_broker() ends it';
    end if;
  end if;
  -- Only for a new broker: the row lock would last as long as a procedure runs.
  if not exists (
    select from notifyq.broker as b
    where b.role = take_broker_slot.role and b.pid = pg_backend_pid()
  ) then
    insert into notifyq.broker as b (role, pid, started_at)
    values (take_broker_slot.role, pg_backend_pid(), clock_timestamp())
    on conflict on constraint broker_role_pk
    do update set pid = excluded.pid, started_at = excluded.started_at;
  end if;
  return v_key;
end;
$$;

create or replace function notifyq.is_stopped(role text)
  returns boolean language plpgsql
as $$
declare
  v_key bigint := notifyq.broker_key(role, 12);
begin
  -- Unlocked at once: stop_broker() waits for this lock.
  if pg_try_advisory_lock_shared(v_key) then
    perform pg_advisory_unlock_shared(v_key);
    return false;
  end if;
  return notifyq.key_holder(v_key, role) is not null;
end;
$$;

-- Runs as its caller, as the procedures must have no other rights. A procedure with a search path
-- of its own cannot commit: hence the full names. Procedures get the search path of the session.
create or replace procedure messages.run_broker(
  idle interval default null, inout stopped boolean default null
)
  language plpgsql
as $$
declare
  v_path pg_catalog.text := pg_catalog.current_setting('search_path');
  v_run pg_catalog.int8 := pg_catalog.hashtextextended(
    pg_catalog.concat(pg_catalog.pg_backend_pid(), pg_catalog.clock_timestamp()), 0
  );
  v_turn notifyq.broker_turn;
  v_event messages.batch_event;
  v_until pg_catalog.timestamptz;
  v_done pg_catalog.int8;
  v_handled pg_catalog.int4;
  v_failed pg_catalog.int4;
  v_is_finished pg_catalog.bool;
  v_is_kept pg_catalog.bool := false;
  v_waited pg_catalog.float8 := 0::pg_catalog.float8;
  v_pause pg_catalog.float8;
  v_reason pg_catalog.text;
  v_message pg_catalog.text;
  v_state pg_catalog.text;
  v_context pg_catalog.text;
begin
  if current_user operator(pg_catalog.<>) session_user then
    raise insufficient_privilege using message = pg_catalog.format(
      'a broker of role %I must be a session of that role, not of %I', current_user, session_user
    );
  end if;
  perform pg_catalog.set_config('application_name', 'notifyq broker', false);
  stopped := false;
  loop
    v_turn := notifyq.broker_next(v_run, v_turn.subscription);
    if v_is_kept then
      perform pg_catalog.pg_advisory_unlock(v_turn.slot);
    end if;
    if v_turn.act operator(pg_catalog.=) 'stop' then
      stopped := true;
      exit;
    elsif v_turn.act operator(pg_catalog.=) 'idle' then
      exit when v_waited operator(pg_catalog.>=) extract(epoch from idle)::pg_catalog.float8;
      -- Each pause holds a snapshot: at most half a second.
      v_pause := least(0.01 operator(pg_catalog.+) v_waited operator(pg_catalog./) 4, 0.5);
      perform pg_catalog.pg_sleep(v_pause);
      v_waited := v_waited operator(pg_catalog.+) v_pause;
    elsif v_turn.act operator(pg_catalog.=) 'handle' then
      v_waited := 0::pg_catalog.float8;
      v_done := v_turn.done;
      v_handled := 0;
      v_failed := 0;
      v_is_finished := true;
      -- A transaction takes this long, unless one call takes longer.
      v_until := pg_catalog.clock_timestamp() operator(pg_catalog.+) interval '0.2 s';
      for v_event in
        select e.id, e.created_at, e.type, e.key, e.message, e.headers, e.retries, e.reason
        from messages.batch_events(v_turn.batch) as e
        where e.id operator(pg_catalog.>) v_turn.done
          and (v_turn.event is null or e.id operator(pg_catalog.=) v_turn.event)
        order by e.id
      loop
        perform pg_catalog.set_config('notifyq.event', pg_catalog.to_jsonb(row(
          v_turn.stream, v_turn.subscriber, v_event.id, v_event.created_at, v_event.type,
          v_event.key, v_event.message, v_event.headers, v_event.retries
        )::messages.handled_event)::pg_catalog.text, false);
        v_reason := null;
        begin
          execute pg_catalog.format('call %I.%I()', v_turn.procedure[1], v_turn.procedure[2]);
          v_handled := v_handled operator(pg_catalog.+) 1;
        exception
          when others or assert_failure then
            get stacked diagnostics v_message = message_text, v_state = returned_sqlstate,
              v_context = pg_exception_context;
            v_failed := v_failed operator(pg_catalog.+) 1;
            -- fail_event() logs it.
            v_reason := pg_catalog.format('%I.%I: %s (SQLSTATE %s), %s', v_turn.procedure[1],
              v_turn.procedure[2], v_message, v_state,
              pg_catalog.split_part(v_context, pg_catalog.chr(10), 1));
        end;
        -- Settings of a procedure must affect neither the next one nor this loop.
        perform pg_catalog.set_config('notifyq.event', '', false);
        if current_user operator(pg_catalog.<>) session_user then
          perform pg_catalog.set_config('role', 'none', false);
        end if;
        if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) v_path then
          perform pg_catalog.set_config('search_path', v_path, false);
        end if;
        v_done := v_event.id;
        if not notifyq.broker_note(v_turn.subscription, v_turn.batch, v_event.id, v_reason)
          or v_turn.event is not null
          or pg_catalog.clock_timestamp() operator(pg_catalog.>) v_until
        then
          v_is_finished := false;
          exit;
        end if;
      end loop;
      perform notifyq.broker_done(
        v_turn.subscription, v_turn.batch, v_done, v_handled, v_failed, v_is_finished
      );
    end if;
    -- The session keeps the lock across the commit, and the transaction otherwise: it is free
    -- when the call ends with an error, though the session goes on. A call that is cancelled in
    -- the very commit leaves it to the session, which stop_broker() ends.
    v_is_kept := pg_catalog.pg_try_advisory_lock(v_turn.slot);
    commit;
  end loop;
end;
$$;
comment on procedure messages.run_broker(interval, boolean) is
  'Be the broker of the role of this session: call the procedures that it has registered, for '
  'each event of their subscribers, in short transactions. Ends after stop_broker() or, with '
  'idle, when there was nothing to do for so long; stopped: whether stop_broker() ended it. '
  'SQLSTATE 55006 if one runs.';

create or replace function notifyq.want_broker(role text, wanted boolean)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if not (notifyq.has_role(role) or notifyq.has_role('notifyq_admin')) then
    raise insufficient_privilege using message = format(
      'role %I may not start or stop the broker of role %I', notifyq.calling_role(), role
    );
  end if;
  insert into notifyq.broker as b (role, is_wanted)
  values (want_broker.role, wanted)
  on conflict on constraint broker_role_pk do update set is_wanted = excluded.is_wanted;
end;
$$;
comment on function notifyq.want_broker(text, boolean) is
  'Record whether the role wants a broker here: a lost broker is started again only then. Called '
  'by start_broker(), stop_broker() and `notifyq broker`.';

create or replace function messages.status_broker(role text default null)
  returns messages.broker_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_report messages.broker_report;
begin
  v_report.role := coalesce(role, notifyq.calling_role());
  v_report.pid := notifyq.key_holder(notifyq.broker_key(v_report.role, 11), v_report.role);
  v_report.running := v_report.pid is not null;
  select coalesce(bool_or(b.is_wanted), false),
    min(b.started_at) filter (where b.pid = v_report.pid)
  into v_report.wanted, v_report.started_at
  from notifyq.broker as b
  where b.role = v_report.role;
  select count(*), coalesce(sum(p.handled), 0)::bigint, coalesce(sum(p.failed), 0)::bigint,
    array_agg(notifyq.procedure_problem(p)) filter (where notifyq.procedure_problem(p) is not null)
  into v_report.procedures, v_report.handled, v_report.failed, v_report.obstacles
  from messages.subscriber_procedure as p
  where p.registrar = v_report.role;
  return v_report;
end;
$$;
comment on function messages.status_broker(text) is
  'Whether a broker of the role (null: of the caller) runs in this database, in which process and '
  'since when; whether one is wanted, so that a lost one is started again; how many procedures '
  'are registered, how many calls returned and failed, and why procedures are not called, as when '
  'one was dropped.';

-- Runs as its caller: pg_cron runs a job as the role that schedules it.
create or replace function messages.start_broker()
  returns boolean language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_status messages.broker_report := messages.status_broker(current_user::text);
  v_jobs bigint;
  v_sessions bigint;
  v_workers bigint;
  v_is_due boolean;
  v_hint text := 'or run `notifyq broker`, which needs no pg_cron';
begin
  if v_status.running then
    raise object_in_use using
      message = format('a broker of role %I runs in this database already', v_status.role),
      detail = format('It is process %s.', v_status.pid);
  elsif not exists (
    -- to_regclass() raises if the role may not use the schema.
    select from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace and n.nspname = 'cron'
    where c.relname = 'job'
  ) then
    raise feature_not_supported using
      message = 'pg_cron does not serve this database', hint = substr(v_hint, 4);
  elsif not has_schema_privilege('cron', 'usage') then
    raise insufficient_privilege using
      message = format('role %I may not use pg_cron', current_user),
      hint = format('grant usage on schema cron to %I, %s', current_user, v_hint);
  end if;
  select count(*) filter (where a.application_name in ('pg_cron', 'notifyq broker')),
    count(*) filter (where a.usesysid is not null),
    count(*) filter (
      where a.backend_type !~ '^(client|autovacuum|background writer|checkpointer|startup|wal'
        '|archiver|logger|standalone|slotsync|io worker)'
    )
  into v_jobs, v_sessions, v_workers
  from pg_stat_activity as a;
  -- Settings that the role cannot read count as free: only superusers see those of pg_cron. One
  -- slot is left for maintenance.
  if v_jobs + 1 >= (
    select s.setting::bigint from pg_settings as s where s.name = 'cron.max_running_jobs'
  ) then
    raise configuration_limit_exceeded using
      message = 'all slots of pg_cron are taken',
      hint = 'raise cron.max_running_jobs, ' || v_hint;
  elsif exists (
    select from pg_settings as s where s.name = 'cron.use_background_workers' and s.setting = 'on'
  ) and v_workers >= current_setting('max_worker_processes')::bigint then
    raise configuration_limit_exceeded using
      message = 'no background worker is free', hint = 'raise max_worker_processes, ' || v_hint;
  elsif v_sessions >= current_setting('max_connections')::bigint
    - current_setting('superuser_reserved_connections')::bigint
  then
    raise too_many_connections using message = 'no connection is free for a broker';
  end if;
  execute format(
    'select exists (select from cron.job as j where j.jobname = %L and j.username = %L)',
    'notifyq broker', current_user
  ) into v_is_due;
  if v_is_due then
    raise object_in_use using message = 'pg_cron is about to start the broker already';
  end if;
  begin
    execute format(
      'select cron.schedule(%L, %L, %L)', 'notifyq broker', '5 seconds',
      'call messages.run_broker()'
    );
  exception
    -- Before 1.5 (Debian 12 has 1.4) pg_cron knows minutes only, and raises an error without a
    -- class.
    when others then
      execute format(
        'select cron.schedule(%L, %L, %L)', 'notifyq broker', '* * * * *',
        'call messages.run_broker()'
      );
  end;
  perform notifyq.want_broker(current_user::text, true);
  return true;
end;
$$;
comment on function messages.start_broker() is
  'Make pg_cron run the broker of the calling role in this database: within 5 seconds or, before '
  'pg_cron 1.5, at the next minute; and again if it is lost. The broker calls the procedures that '
  'the role has registered. SQLSTATE 55006 if one runs, 53400 or 53300 if no slot is free for it, '
  '0A000 if pg_cron does not serve this database: run `notifyq broker` there.';

-- Runs as its caller: a role may end its own sessions.
create or replace function messages.stop_broker(
  role text default null, patience interval default '1.5 seconds'
)
  returns boolean language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_role text := coalesce(role, current_user::text);
  v_status messages.broker_report := messages.status_broker(v_role);
  v_was_running boolean := v_status.running;
  v_until timestamptz := clock_timestamp()
    + make_interval(
      secs => greatest(least(extract(epoch from patience), 31557600000), 0)::double precision
    );
begin
  -- Not to_regclass(), which raises if the role may not use the schema.
  if exists (select from pg_extension as e where e.extname = 'pg_cron')
    and has_schema_privilege('cron', 'usage')
  then
    execute format(
      'select cron.unschedule(j.jobid) from cron.job as j '
      'where j.jobname = %L and j.username = %L and j.database = %L',
      'notifyq broker', v_role, current_database()
    );
  end if;
  -- The broker checks this lock between two events and while it is idle. Held until the end of
  -- the transaction: no broker starts before want_broker() is committed.
  perform pg_advisory_xact_lock(hashtextextended(v_role, 7305427012));
  while v_status.running and clock_timestamp() < v_until loop
    perform pg_sleep(0.02);
    v_status := messages.status_broker(v_role);
  end loop;
  if v_status.running then
    -- A procedure takes long: it is rolled back, and its event comes again.
    perform pg_terminate_backend(v_status.pid, 1000);
  end if;
  perform notifyq.want_broker(v_role, false);
  return v_was_running;
end;
$$;
comment on function messages.stop_broker(text, interval) is
  'Stop the broker of a role (null: of the caller) in this database, and wait for its end: after '
  'the current event or, if that takes longer than patience, in the middle of it; the event then '
  'comes again after the next start. False: none was running.';
