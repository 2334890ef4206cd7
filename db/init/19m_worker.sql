-- Worker: who works here now, and the rows in which functions report how the installation is.
--
-- owns:    messages.worker, types backlog_report, throughput_report, held_message, presence_report,
--          session_report, cron_report and figure of messages
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.worker (
  started_at timestamptz not null,
  seen_at timestamptz not null default clock_timestamp(),
  session_pid integer not null,
  pid integer,
  concurrency integer,
  running integer not null default 0,
  is_stopping boolean not null default false,
  name text not null,
  host text,
  version text,
  queues text[] not null default '{}',
  streams text[] not null default '{}',
  constraint worker_name_pk primary key (name),
  -- A worker writes what it likes about itself, but not at any length.
  constraint worker_length_ck check (
    octet_length(name) <= 500 and octet_length(host) <= 500 and octet_length(version) <= 100
    and cardinality(queues) <= 1000 and cardinality(streams) <= 1000
  ),
  constraint worker_lists_ck check (
    coalesce(array_ndims(queues), 1) = 1 and coalesce(array_ndims(streams), 1) = 1
    and array_position(queues, null) is null and array_position(streams, null) is null
  )
) with (
  -- Each row is written again every ten seconds, and no index has what changes: HOT.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 500
);

comment on table messages.worker is
  'One row for each worker that works, as it says itself; read it with messages.workers().';
comment on column messages.worker.started_at is 'When it came first.';
comment on column messages.worker.seen_at is 'When it came last.';
comment on column messages.worker.session_pid is 'The server process of the session that it used.';
comment on column messages.worker.pid is 'Its process on its own machine.';
comment on column messages.worker.concurrency is 'How many messages it handles at a time, at most.';
comment on column messages.worker.running is 'How many it handled when it came last.';
comment on column messages.worker.is_stopping is 'Whether it claims no more.';
comment on column messages.worker.name is 'The name that its locks have in locked_by.';
comment on column messages.worker.host is 'The name of its machine.';
comment on column messages.worker.version is 'The version of its package.';
comment on column messages.worker.queues is 'The queues that it serves.';
comment on column messages.worker.streams is 'The streams whose subscribers it serves.';

do $$
begin
  if to_regtype('messages.backlog_report') is null then
    create type messages.backlog_report as (
      queue text,
      paused boolean,
      waiting bigint,
      scheduled bigint,
      locked bigint,
      expired bigint,
      dead bigint,
      is_exact boolean,
      oldest_waiting_at timestamptz,
      oldest_expired_at timestamptz,
      next_due_at timestamptz
    );
  end if;
  if to_regtype('messages.throughput_report') is null then
    create type messages.throughput_report as (
      bucket_at timestamptz,
      queue text,
      status messages.message_status,
      finished bigint,
      wait_p50 interval,
      wait_p95 interval,
      wait_p99 interval,
      run_p50 interval,
      run_p95 interval,
      run_p99 interval,
      source text,
      is_complete boolean
    );
  end if;
  if to_regtype('messages.held_message') is null then
    create type messages.held_message as (
      id bigint,
      queue text,
      type text,
      attempts integer,
      locked_at timestamptz,
      lock_expires_at timestamptz
    );
  end if;
  if to_regtype('messages.presence_report') is null then
    create type messages.presence_report as (
      name text,
      state text,
      host text,
      pid integer,
      version text,
      concurrency integer,
      running integer,
      queues text[],
      streams text[],
      started_at timestamptz,
      seen_at timestamptz,
      session_pid integer,
      is_connected boolean,
      held bigint,
      expired bigint,
      messages messages.held_message[]
    );
  end if;
  if to_regtype('messages.session_report') is null then
    create type messages.session_report as (
      cause text,
      name text,
      pid integer,
      user_name text,
      application text,
      state text,
      since_at timestamptz,
      xmin_age bigint,
      waits_for text,
      blocked_by integer[],
      query text,
      advice text
    );
  end if;
  if to_regtype('messages.cron_report') is null then
    create type messages.cron_report as (
      entry text,
      schedule text,
      is_active boolean,
      user_name text,
      last_status text,
      last_started_at timestamptz,
      last_message text,
      failed bigint
    );
  end if;
  if to_regtype('messages.figure') is null then
    create type messages.figure as (
      name text,
      subject text,
      value double precision,
      unit text
    );
  end if;
end;
$$;

comment on type messages.backlog_report is 'One queue as messages.backlog() reports it.';
comment on type messages.throughput_report is
  'What was finished in one step of time, as messages.throughput() reports it.';
comment on type messages.held_message is 'A message that a worker has locked.';
comment on type messages.presence_report is 'One worker as messages.workers() reports it.';
comment on type messages.session_report is
  'What holds an old snapshot, as messages.holders() reports it, or a session in a transaction, as '
  'messages.activity() does.';
comment on type messages.cron_report is
  'One entry of pg_cron that is ours, as messages.cron_entries() reports it.';
comment on type messages.figure is 'One number as messages.health() reports it, with its unit.';
