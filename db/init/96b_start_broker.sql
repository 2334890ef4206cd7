-- Start: brokers that pg_cron runs, how one is stopped, and what is known of it.
--
-- owns:    the pg_cron job `notifyq broker` of each role that has started one
-- writes:  cron.job, messages.broker
-- calls:   messages._caller, messages._has_role, messages._holder, messages._broker_key,
--          messages._obstacle
-- raises:  55006 a broker of the role runs; 53400, 53300 no slot is free for it; 0A000, 42501
--          pg_cron cannot be used

create or replace function messages.want_broker(role text, wanted boolean)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if not (messages._has_role(role) or messages._has_role('notifyq_admin')) then
    raise insufficient_privilege using message = format(
      'role %I may not start or stop the broker of role %I', messages._caller(), role
    );
  end if;
  insert into messages.broker as b (role, is_wanted)
  values (want_broker.role, wanted)
  on conflict on constraint broker_role_pk do update set is_wanted = excluded.is_wanted;
end;
$$;
comment on function messages.want_broker(text, boolean) is
  'Note whether the role shall have a broker here: one that is lost is started again only then. '
  'Called by start_broker(), stop_broker() and `notifyq broker`.';

create or replace function messages.status_broker(role text default null)
  returns messages.broker_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_report messages.broker_report;
begin
  v_report.role := coalesce(role, messages._caller());
  v_report.pid := messages._holder(messages._broker_key(v_report.role, 11), v_report.role);
  v_report.running := v_report.pid is not null;
  select coalesce(bool_or(b.is_wanted), false),
    min(b.started_at) filter (where b.pid = v_report.pid)
  into v_report.wanted, v_report.started_at
  from messages.broker as b
  where b.role = v_report.role;
  select count(*), coalesce(sum(p.handled), 0)::bigint, coalesce(sum(p.failed), 0)::bigint,
    array_agg(messages._obstacle(p)) filter (where messages._obstacle(p) is not null)
  into v_report.procedures, v_report.handled, v_report.failed, v_report.obstacles
  from messages.subscriber_procedure as p
  where p.registrar = v_report.role;
  return v_report;
end;
$$;
comment on function messages.status_broker(text) is
  'Whether a broker of the role (null: of the caller) runs in this database, in which process and '
  'since when; whether one is wanted, so that a loss is made good; how many procedures are '
  'registered, how often they were called well and with an error, and what keeps any of them from '
  'being called, as where it was dropped.';

-- With the rights of who calls it, as the job of pg_cron is that of who schedules it.
create or replace function messages.start_broker()
  returns boolean
  language plpgsql
  set search_path = pg_catalog, messages, pg_temp
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
  elsif not exists (select from pg_extension as e where e.extname = 'pg_cron') then
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
  -- What is not known to the role counts as free: pg_cron tells its settings to superusers only.
  -- One slot is left for the upkeep.
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
    -- Up to 1.4 (Debian 12) pg_cron knows minutes only, and says so in an error of no class.
    when others then
      execute format(
        'select cron.schedule(%L, %L, %L)', 'notifyq broker', '* * * * *',
        'call messages.run_broker()'
      );
  end;
  perform messages.want_broker(current_user::text, true);
  return true;
end;
$$;
comment on function messages.start_broker() is
  'Have pg_cron run the broker of the calling role in this database: within 5 seconds or, before '
  'pg_cron 1.5, with the next minute; and again where it is lost. It calls the procedures that the '
  'role has registered. SQLSTATE 55006 if one runs, 53400 or 53300 if no slot is free for it, '
  '0A000 if pg_cron does not serve this database: run `notifyq broker` there.';

-- With the rights of who calls it: a role may end its own sessions.
create or replace function messages.stop_broker(
  role text default null, patience interval default '1.5 seconds'
)
  returns boolean
  language plpgsql
  set search_path = pg_catalog, messages, pg_temp
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
  -- Not to_regclass(): whoever may not use the schema may not look up a table in it either.
  if exists (select from pg_extension as e where e.extname = 'pg_cron')
    and has_schema_privilege('cron', 'usage')
  then
    execute format(
      'select cron.unschedule(j.jobid) from cron.job as j '
      'where j.jobname = %L and j.username = %L and j.database = %L',
      'notifyq broker', v_role, current_database()
    );
  end if;
  -- The broker asks whether somebody holds this key: between two events, and while there are none.
  -- Held to the end of the transaction, so that none starts before want_broker() is committed.
  perform pg_advisory_xact_lock(hashtextextended(v_role, 7305427012));
  while v_status.running and clock_timestamp() < v_until loop
    perform pg_sleep(0.02);
    v_status := messages.status_broker(v_role);
  end loop;
  if v_status.running then
    -- A procedure takes its time: it is rolled back, and its event will be seen again.
    perform pg_terminate_backend(v_status.pid, 1000);
  end if;
  perform messages.want_broker(v_role, false);
  return v_was_running;
end;
$$;
comment on function messages.stop_broker(text, interval) is
  'Stop the broker of a role (null: of the caller) in this database, and wait for that: it ends '
  'after the event that it has at hand or, if that takes longer than patience, in the middle of '
  'it; then the event is seen again after the next start. False: none was running.';
