-- Operations: what the people on call look at, and how long what is archived.
-- breaking: no
-- needs: owner
--
-- owns:    the tables, sequences and types that it makes
-- writes:  messages.stream
-- calls:   nothing
-- raises:  nothing

-- The dead of one queue: first, while nothing else waits for it. Nobody writes to days that are
-- past, so that finishes are held up only while the index of today is made.
do $$
declare
  v_day regclass;
begin
  for v_day in
    select i.inhrelid::regclass
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'messages.message_archive'::regclass
      and c.relname < 'message_archive_' || to_char(now() at time zone 'UTC', 'YYYYMMDD')
    order by c.relname
  loop
    execute format(
      'create index on %s (queue, archived_at, id) include (status, subscriber) '
      'where status <> ''success''', v_day
    );
  end loop;
end;
$$;
create index message_archive_dead_queue_archived_at_id_idx
  on messages.message_archive (queue, archived_at, id) include (status, subscriber)
  where status <> 'success';

-- Workers: who works here now, and the rows in which functions report how the installation is.
create table messages.worker (
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

create sequence messages.message_bell_seq;
create sequence messages.event_bell_seq;

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

create type messages.held_message as (
  id bigint,
  queue text,
  type text,
  attempts integer,
  locked_at timestamptz,
  lock_expires_at timestamptz
);

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

create type messages.figure as (
  name text,
  subject text,
  value double precision,
  unit text
);

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

-- Audit: what people have done to queues and messages, and who they were.
create table messages.audit (
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

create index audit_acted_at_idx on messages.audit (acted_at);

comment on table messages.audit is
  'What people have done with the dashboard and other tools, each in the transaction that did it.';
comment on column messages.audit.acted_at is 'When.';
comment on column messages.audit.role is 'The role of the database that did it.';
comment on column messages.audit.actor is 'Who was logged in, as the tool says.';
comment on column messages.audit.action is 'What: queue.pause, message.retry.';
comment on column messages.audit.subject is 'Which: the name of a queue, the id of a message.';
comment on column messages.audit.origin is 'From where: the address of a browser, the tool.';
comment on column messages.audit.details is 'More: counts, what was changed; never payloads.';

-- Search: what is looked for and found, and which dead message one is the repetition of.
create index redrive_message_id_idx on messages.redrive (message_id);

create type messages.search_conditions as (
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

create type messages.found_message as (
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

create type messages.dead_group as (
  fingerprint text,
  dead bigint,
  first_at timestamptz,
  last_at timestamptz,
  last_id bigint,
  queues text[],
  statuses messages.message_status[],
  sample text
);

create type messages.step_report as (
  found bigint,
  done bigint,
  place_at timestamptz,
  place_id bigint,
  is_over boolean
);

create type messages.relative_report as (
  kind text,
  id bigint,
  queue text,
  state text,
  happened_at timestamptz
);

comment on type messages.search_conditions is
  'What search_live(), search_archive() and those beside them take as JSON: each is null or must '
  'hold.';
comment on type messages.found_message is
  'A message as search_live() and search_archive() give it: state is that of a live one or the '
  'status of a finished one, message is null where the payload is long.';
comment on type messages.dead_group is
  'Dead messages whose errors have the same fingerprint, as messages.dead_groups() reports them.';
comment on type messages.step_report is
  'What one step of an action over many dead messages did, and where the next one begins.';
comment on type messages.relative_report is
  'A message that has to do with another one, as messages.relatives() reports it.';

-- Retention by queue and by how messages ended.
alter table messages.segment add column changed_by xid8;
comment on column messages.segment.changed_by is
  'The transaction that has made or closed it: until that is over others know nothing of it.';

alter table messages.stream add column is_guarded boolean not null default false;
alter table messages.stream add column lone_bytes integer generated always as (
  case
    when paused or is_guarded or bell = 'always' or payload_type is not null
      or payload_schema is not null then null
    else max_bytes
  end
) stored;
comment on column messages.stream.is_guarded is 'Whether there are grants for it.';
comment on column messages.stream.lone_bytes is
  'Most bytes of an event that publish() writes without more checks; null: each is checked.';
update messages.stream as s
set is_guarded = true
where exists (select from messages.queue_grant as g where g.queue = s.name);

alter table messages.queue add column retention_dead interval;
alter table messages.queue add constraint queue_retention_dead_ck
  check (retention_dead > interval '0');
comment on column messages.queue.retention is
  'How long the archive keeps its messages; from a day on, whole days are removed.';
comment on column messages.queue.retention_dead is
  'The same for those that did not succeed; null: as retention.';

alter type messages.queue_report add attribute retention_dead interval;

-- Functions that have other arguments now, or were replaced. Coming from version 1, they were never
-- made.
do $$
declare
  v_policy constant text := '(text, interval, integer, interval, interval, text, interval, '
    'integer, integer, integer, integer, interval, integer, integer, interval, integer, boolean, '
    'boolean, integer, text, boolean, regtype, jsonb)';
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('create_queue' || v_policy),
        ('alter_queue' || v_policy),
        ('_waiting_keys(text, text, text, integer)'),
        ('_open_segment(messages.stream)'),
        ('_publish_event(text, jsonb, text, text, jsonb)'),
        ('_has_nothing(bigint, text, interval)'),
        ('_next_events(messages.batch, integer, bigint)'),
        ('_next_batch(text, messages.subscription, integer, bigint, text, interval)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;

create table messages.archive_policy (
  id bigint not null default 1,
  retention interval,
  retention_dead interval,
  days_ahead integer not null default 3,
  constraint archive_policy_id_pk primary key (id),
  constraint archive_policy_id_ck check (id = 1),
  constraint archive_policy_retention_ck check (
    retention > interval '0' and retention_dead > interval '0'
  ),
  constraint archive_policy_days_ahead_ck check (days_ahead between 1 and 366)
);

comment on table messages.archive_policy is
  'What holds for the whole archive; without a row nothing was said.';
comment on column messages.archive_policy.id is 'Always 1.';
comment on column messages.archive_policy.retention is
  'Of queues that are created without one, of dropped queues and of events that died; null: 30 '
  'days for the first, and the longest of all queues for the others.';
comment on column messages.archive_policy.retention_dead is
  'The same for messages that did not succeed; null: as retention.';
comment on column messages.archive_policy.days_ahead is
  'For how many days after today partitions are made ahead.';

create table messages.retention_day (
  relation text not null,
  next_at timestamptz not null,
  policy bigint not null,
  block bigint,
  removed bigint not null default 0,
  constraint retention_day_relation_pk primary key (relation)
);

comment on table messages.retention_day is
  'One row for each day of the archive and of the attempts that was looked through for rows past '
  'the retention of their queue.';
comment on column messages.retention_day.relation is 'The table of the day.';
comment on column messages.retention_day.next_at is 'When it is looked through again.';
comment on column messages.retention_day.policy is
  'A hash of the retentions that it was looked through by: others, and it is done again.';
comment on column messages.retention_day.block is
  'Where the pass through its blocks goes on; null: there is none on the way.';
comment on column messages.retention_day.removed is 'How many rows were removed from it.';

create type messages.queue_keep as (
  queue text,
  success interval,
  dead interval
);
create type messages.day_plan as (
  relation text,
  queues text[],
  success text[],
  dead text[],
  gone text[],
  brief text[],
  next_at timestamptz
);
create type messages.retention_report as (
  queue text,
  is_known boolean,
  retention interval,
  retention_dead interval,
  rows bigint,
  dead bigint,
  bytes bigint,
  first_day date
);
create type messages.day_report as (
  day date,
  rows bigint,
  dead bigint,
  is_exact boolean,
  bytes bigint,
  attempt_bytes bigint,
  removed bigint,
  goes_at timestamptz,
  next_at timestamptz,
  next_step text,
  awaits text
);

comment on type messages.queue_keep is 'For how long messages of a queue stay in the archive.';
comment on type messages.day_plan is
  'Which rows of a day''s table are to stay: all of queues, and by status of success and dead.';
comment on type messages.retention_report is
  'What is kept of one queue, as messages.retention_info() reports it.';
comment on type messages.day_report is 'One day of the archive, as messages.archive_info() has it.';
