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
  'What people did with the dashboard and other tools, each in the transaction that did it.';
comment on column messages.audit.acted_at is 'When it was done.';
comment on column messages.audit.role is 'The role of the database that did it.';
comment on column messages.audit.actor is 'The person who was logged in to the tool.';
comment on column messages.audit.action is 'What was done, such as queue.pause or message.retry.';
comment on column messages.audit.subject is 'The name of a queue, the id of a message.';
comment on column messages.audit.origin is 'The address of a browser, or the tool.';
comment on column messages.audit.details is 'Counts and changed values; never payloads.';

create table if not exists notifyq.duty_failure (
  total bigint not null default 1,
  duty text not null,
  failed_at timestamptz not null default clock_timestamp(),
  next_at timestamptz not null,
  failures integer not null,
  code text not null,
  error text not null,
  constraint duty_failure_duty_pk primary key (duty)
);

comment on table notifyq.duty_failure is
  'The duties of maintenance that have failed, with their last error.';
comment on column notifyq.duty_failure.duty is 'Its name in notifyq.maintain_duties().';
comment on column notifyq.duty_failure.failed_at is 'When a run failed last.';
comment on column notifyq.duty_failure.next_at is 'It is not run again before.';
comment on column notifyq.duty_failure.failures is
  'How many runs have failed one after another; 0 after one that succeeded.';
comment on column notifyq.duty_failure.total is 'How many runs have failed in all.';
comment on column notifyq.duty_failure.code is 'The SQLSTATE of the last error.';
comment on column notifyq.duty_failure.error is 'The text of the last error.';

create table if not exists notifyq.worker (
  started_at timestamptz not null,
  seen_at timestamptz not null default clock_timestamp(),
  blocked_at timestamptz,
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
  -- Workers report these texts themselves: a long one must not fill the table.
  constraint worker_length_ck check (
    octet_length(name) <= 500 and octet_length(host) <= 500 and octet_length(version) <= 100
    and cardinality(queues) <= 1000 and cardinality(streams) <= 1000
  ),
  constraint worker_lists_ck check (
    coalesce(array_ndims(queues), 1) = 1 and coalesce(array_ndims(streams), 1) = 1
    and array_position(queues, null) is null and array_position(streams, null) is null
  )
) with (
  -- Each row is updated every ten seconds; no index has a column that changes: HOT.
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 500
);

comment on table notifyq.worker is
  'One row for each worker, as reported by its heartbeats; read it with messages.workers().';
comment on column notifyq.worker.started_at is 'When its first heartbeat came.';
comment on column notifyq.worker.seen_at is 'When its last heartbeat came.';
comment on column notifyq.worker.blocked_at is
  'Since when a handler has blocked its event loop; null: none does.';
comment on column notifyq.worker.session_pid is 'The server process of that heartbeat''s session.';
comment on column notifyq.worker.concurrency is 'How many messages it handles at once, at most.';
comment on column notifyq.worker.running is 'How many it handled at the last heartbeat.';
comment on column notifyq.worker.name is 'The value of locked_by in its locks.';

do $$
begin
  if to_regtype('notifyq.sealed_column') is null then
    create type notifyq.sealed_column as (
      namespace text,
      relation text,
      name text
    );
  end if;
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
      next_due_at timestamptz,
      is_unserved boolean,
      parked bigint,
      dead_recently bigint
    );
  end if;
  if to_regtype('messages.grant_report') is null then
    create type messages.grant_report as (
      queue text,
      role text,
      granted_at timestamptz,
      may_publish boolean,
      may_consume boolean,
      may_read boolean
    );
  end if;
  if to_regtype('messages.throughput_report') is null then
    create type messages.throughput_report as (
      bucket_at timestamptz,
      queue text,
      status messages.message_status,
      finished bigint,
      dead bigint,
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
      blocked_at timestamptz,
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
      until_at timestamptz,
      any_key text,
      readable text[]
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
      position_at timestamptz,
      position_id bigint,
      is_over boolean,
      ids bigint[],
      refusals text[]
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

comment on type notifyq.sealed_column is 'A column of a table that has envelopes.';
comment on type messages.backlog_report is 'One queue as messages.backlog() reports it.';
comment on type messages.grant_report is
  'What one role may do with one queue or stream, as messages.queue_grants() reports it; '
  'granted_at is the time of the last grant.';
comment on type messages.throughput_report is
  'Messages finished in one step of time, as messages.throughput() reports them.';
comment on type notifyq.held_message is 'A message that a worker has locked.';
comment on type messages.presence_report is 'One worker as messages.workers() reports it.';
comment on type messages.session_report is
  'A session in a transaction, as messages.activity() reports it, or a holder of an old snapshot, '
  'as messages.activity(holding => true) does.';
comment on type messages.cron_report is
  'One entry of pg_cron for notifyq, as messages.cron_entries() reports it.';
comment on type messages.figure is 'One number as messages.health() reports it, with its unit.';
comment on type notifyq.search_conditions is
  'Conditions that search_live(), search_archive() and dead_groups() take as JSON, and the queues '
  'that the caller may read; null: any. Only forget() sets any_key: a key or a dedup_key.';
comment on type notifyq.found_message is
  'A message as search_live() and search_archive() report it: state is that of a live message or '
  'the status of a finished one, message is null where the payload is long.';
comment on type notifyq.dead_group is
  'Dead messages whose errors have the same fingerprint, as notifyq.dead_groups() reports them.';
comment on type messages.step_report is
  'The result of one step of an action over many messages, and where the next one begins; ids are '
  'those of the messages that were published, refusals say why some were not moved.';
comment on type notifyq.relative_report is
  'A related message, as notifyq.message_relatives() reports it.';
