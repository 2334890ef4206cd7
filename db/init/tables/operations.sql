-- Operations: the audit, running workers, and the results of searches.

create table if not exists messages.audit (
  id bigint generated always as identity,
  acted_at timestamptz not null default clock_timestamp(),
  role text not null,
  actor text not null,
  action text not null,
  subject text not null,
  origin text,
  details jsonb,
  constraint audit_id_pk primary key (id)
);

create index if not exists audit_acted_at_idx on messages.audit (acted_at);

comment on table messages.audit is
  'What people have done with the dashboard and other tools, each in the transaction that did it.';
comment on column messages.audit.acted_at is 'When.';
comment on column messages.audit.role is 'The role of the database that did it.';
comment on column messages.audit.actor is 'Who was logged in, as the tool says.';
comment on column messages.audit.action is 'What: queue.pause, message.retry.';
comment on column messages.audit.subject is 'Which: the name of a queue, the id of a message.';
comment on column messages.audit.origin is 'From where: the address of a browser, the tool.';
comment on column messages.audit.details is 'More: counts, what was changed; never payloads.';

-- Worker: who works here now, and the rows in which functions report how the installation is.

create table if not exists notifyq.worker (
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

comment on table notifyq.worker is
  'One row for each worker that works, as it says itself; read it with messages.workers().';
comment on column notifyq.worker.started_at is 'When it came first.';
comment on column notifyq.worker.seen_at is 'When it came last.';
comment on column notifyq.worker.session_pid is 'The server process of the session that it used.';
comment on column notifyq.worker.pid is 'Its process on its own machine.';
comment on column notifyq.worker.concurrency is 'How many messages it handles at a time, at most.';
comment on column notifyq.worker.running is 'How many it handled when it came last.';
comment on column notifyq.worker.is_stopping is 'Whether it claims no more.';
comment on column notifyq.worker.name is 'The name that its locks have in locked_by.';
comment on column notifyq.worker.host is 'The name of its machine.';
comment on column notifyq.worker.version is 'The version of its package.';
comment on column notifyq.worker.queues is 'The queues that it serves.';
comment on column notifyq.worker.streams is 'The streams whose subscribers it serves.';

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
  if to_regtype('notifyq.held_message') is null then
    create type notifyq.held_message as (
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
      messages notifyq.held_message[]
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
comment on type notifyq.held_message is 'A message that a worker has locked.';
comment on type messages.presence_report is 'One worker as messages.workers() reports it.';
comment on type messages.session_report is
  'What holds an old snapshot, as messages.holders() reports it, or a session in a transaction, as '
  'messages.activity() does.';
comment on type messages.cron_report is
  'One entry of pg_cron that is ours, as messages.cron_entries() reports it.';
comment on type messages.figure is 'One number as messages.health() reports it, with its unit.';

-- Search: what is looked for, and what is found, as the pages for people on call show it.

do $$
begin
  if to_regtype('notifyq.search_conditions') is null then
    create type notifyq.search_conditions as (
      state text,
      queue text,
      subscriber text,
      type text,
      key text,
      dedup_key text,
      worker text,
      error text,
      fingerprint text,
      payload jsonpath,
      since_at timestamptz,
      until_at timestamptz
    );
  end if;
  if to_regtype('notifyq.found_message') is null then
    create type notifyq.found_message as (
      id bigint,
      queue text,
      state text,
      created_at timestamptz,
      available_at timestamptz,
      locked_at timestamptz,
      lock_expires_at timestamptz,
      archived_at timestamptz,
      priority integer,
      attempts integer,
      type text,
      key text,
      dedup_key text,
      worker text,
      subscriber text,
      event_id bigint,
      retried_as bigint,
      details text,
      message jsonb
    );
  end if;
  if to_regtype('notifyq.dead_group') is null then
    create type notifyq.dead_group as (
      fingerprint text,
      dead bigint,
      first_at timestamptz,
      last_at timestamptz,
      last_id bigint,
      queues text[],
      statuses messages.message_status[],
      sample text
    );
  end if;
  if to_regtype('messages.step_report') is null then
    create type messages.step_report as (
      found bigint,
      done bigint,
      place_at timestamptz,
      place_id bigint,
      is_over boolean
    );
  end if;
  if to_regtype('notifyq.relative_report') is null then
    create type notifyq.relative_report as (
      kind text,
      id bigint,
      queue text,
      state text,
      happened_at timestamptz
    );
  end if;
end;
$$;

comment on type notifyq.search_conditions is
  'What search_live(), search_archive() and those beside them take as JSON: each is null or must '
  'hold.';
comment on type notifyq.found_message is
  'A message as search_live() and search_archive() give it: state is that of a live one or the '
  'status of a finished one, message is null where the payload is long.';
comment on type notifyq.dead_group is
  'Dead messages whose errors have the same fingerprint, as notifyq.dead_groups() reports them.';
comment on type messages.step_report is
  'What one step of an action over many dead messages did, and where the next one begins.';
comment on type notifyq.relative_report is
  'A message that has to do with another one, as notifyq.message_relatives() reports it.';
