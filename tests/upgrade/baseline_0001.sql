-- The schema as version 1 installed it: its init files in their order. Frozen, never to be edited:
-- databases that look like this exist, and upgrades start from them.

-- Extensions: pg_cron where this server offers it to this database.
--
-- owns:    extension pg_cron
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing; without pg_cron the workers do the upkeep

do $$
begin
  -- The setting exists only where the library is loaded, and names the one database that may hold
  -- the extension; `create extension` fails anywhere else.
  if current_setting('cron.database_name', true) is distinct from current_database() then
    raise notice 'pg_cron does not serve this database: the workers do the upkeep';
    return;
  end if;
  create extension if not exists pg_cron;
exception
  when insufficient_privilege then
    raise notice 'pg_cron was not created, it needs a superuser: the workers do the upkeep';
end;
$$;

-- Schema: the namespace of everything, and which version of it is installed.
--
-- owns:    schema messages, messages.schema_version
-- writes:  nothing
-- calls:   nothing
-- raises:  NQ901 an older version is installed

create schema if not exists messages;
comment on schema messages is
  'notifyq: a message queue in PostgreSQL. Publish with messages.publish() or a plain insert into '
  'messages.message.';

create table if not exists messages.schema_version (
  version integer not null,
  installed_at timestamptz not null default clock_timestamp(),
  constraint schema_version_version_pk primary key (version)
);
comment on table messages.schema_version is
  'One row for each version of the schema that was installed here; the largest is in force.';

create or replace function messages.version()
  returns integer
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select 1;
$$;
comment on function messages.version() is
  'The version of the schema that these functions need and that 99_check.sql records.';

do $$
declare
  v_installed integer := (select max(s.version) from messages.schema_version as s);
begin
  -- The files 10–19 create what is missing but never alter a table, so run over an older schema
  -- they would leave new functions beside old tables. A migration records its version first.
  if v_installed < messages.version() then
    raise exception using
      errcode = 'NQ901',
      message = format('version %s of the schema is installed here', v_installed),
      hint = format('upgrade it to version %s with `notifyq migrate`', messages.version());
  end if;
end;
$$;

-- Roles: who may do what. Group roles without login; 90_grants.sql gives them their rights.
--
-- owns:    roles notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing; without the right to create roles the owner grants by hand

do $$
declare
  v_role text;
begin
  foreach v_role in array array[
    'notifyq_publisher', 'notifyq_worker', 'notifyq_reader', 'notifyq_admin'
  ] loop
    begin
      if to_regrole(v_role) is null then
        execute format('create role %I nologin', v_role);
      end if;
    exception
      -- Roles belong to the whole cluster: another database may be creating them right now.
      when duplicate_object or unique_violation then null;
      when insufficient_privilege then
        raise notice 'role % was not created: it needs the attribute CREATEROLE', v_role;
    end;
  end loop;
end;
$$;

-- Types: how a message ended, where a live one stands, and the rows that functions report.
--
-- owns:    messages.message_status, messages.message_state, messages.queue_report,
--          messages.summary_report, messages.upkeep_report
-- writes:  nothing
-- raises:  nothing

do $$
begin
  if to_regtype('messages.message_status') is null then
    create type messages.message_status as enum ('success', 'rejected', 'failed', 'lock_expired');
  end if;
  if to_regtype('messages.message_state') is null then
    create type messages.message_state as enum ('waiting', 'scheduled', 'locked');
  end if;
  if to_regtype('messages.queue_report') is null then
    create type messages.queue_report as (
      queue text,
      paused boolean,
      waiting bigint,
      scheduled bigint,
      locked bigint,
      expired bigint,
      oldest_waiting_at timestamptz,
      lock_timeout interval,
      max_attempts integer,
      backoff interval,
      backoff_max interval,
      bell text,
      retention interval
    );
  end if;
  if to_regtype('messages.summary_report') is null then
    create type messages.summary_report as (
      queue text,
      status messages.message_status,
      messages bigint,
      first_created_at timestamptz,
      last_archived_at timestamptz,
      wait_p50 interval,
      wait_p95 interval,
      wait_p99 interval,
      run_p50 interval,
      run_p95 interval,
      run_p99 interval
    );
  end if;
  if to_regtype('messages.upkeep_report') is null then
    create type messages.upkeep_report as (
      reaped integer,
      staged integer,
      rung integer,
      partitions_made integer,
      partitions_dropped integer
    );
  end if;
end;
$$;

comment on type messages.message_status is 'How a message ended; everything but success is dead.';
comment on type messages.message_state is
  'Where a live message stands: waiting to be claimed, scheduled for later, or locked by a worker.';
comment on type messages.queue_report is 'One queue as messages.queue_info() reports it.';
comment on type messages.summary_report is
  'Counts, and percentiles of wait (created to locked) and run (locked to archived) time.';
comment on type messages.upkeep_report is 'What one run of messages.maintain() did.';

-- Queue: the registry of queues and the policy of each.
--
-- owns:    messages.queue
-- writes:  messages.queue (the queue `default`)
-- raises:  nothing

create table if not exists messages.queue (
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  lock_timeout interval not null default interval '1 minute',
  max_attempts integer not null default 1,
  backoff interval not null default interval '2 seconds',
  backoff_max interval not null default interval '5 minutes',
  bell text not null default 'always',
  paused boolean not null default false,
  retention interval not null default interval '30 days',
  constraint queue_name_pk primary key (name),
  -- A bell's payload is `<queue>:<ids>` in less than 8000 bytes; bytes count, not characters.
  constraint queue_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[:[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint queue_lock_timeout_ck check (lock_timeout > interval '0'),
  constraint queue_max_attempts_ck check (max_attempts between 1 and 1000),
  constraint queue_backoff_ck check (backoff >= interval '0' and backoff_max >= backoff),
  constraint queue_bell_ck check (bell in ('always', 'off')),
  constraint queue_retention_ck check (retention > interval '0')
);

comment on table messages.queue is 'Registry of queues; change it through the queue functions.';
comment on column messages.queue.name is
  '1 to 200 bytes, without a colon, control characters or outer blanks.';
comment on column messages.queue.lock_timeout is
  'How long a claim holds a message unless it is extended.';
comment on column messages.queue.max_attempts is
  'Claims that a message may use up: with 1, a failure or an expired lock archives at once.';
comment on column messages.queue.backoff is
  'Delay before the second attempt; it doubles with every attempt, less up to half at random.';
comment on column messages.queue.backoff_max is 'Upper bound of the delay between attempts.';
comment on column messages.queue.bell is
  'always: a statement that publishes rings new_message once; off: workers find messages by polling.';
comment on column messages.queue.paused is
  'A paused queue takes messages but hands none out and rings no bell.';
comment on column messages.queue.retention is
  'How long archived messages are kept. Whole days are dropped, by the longest of all queues.';

insert into messages.queue (name)
values ('default')
on conflict on constraint queue_name_pk do nothing;

-- Message: live messages only. A finished one leaves for message_archive in the same statement.
--
-- owns:    messages.message
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.message (
  id bigint generated always as identity,
  created_at timestamptz not null default clock_timestamp(),
  available_at timestamptz not null default now(),
  locked_at timestamptz,
  lock_expires_at timestamptz,
  lock_token bigint not null default 0,
  priority integer not null default 0,
  attempts integer not null default 0,
  state messages.message_state not null default 'waiting',
  queue text not null default 'default',
  type text,
  locked_by text,
  dedup_key text,
  message jsonb not null,
  headers jsonb not null default '{}',
  details text,
  constraint message_id_pk primary key (id),
  constraint message_locked_ck check (
    (state = 'locked') = (lock_expires_at is not null and locked_at is not null)
  ),
  constraint message_headers_ck check (jsonb_typeof(headers) = 'object')
) with (
  -- Each claim and each heartbeat writes a new row version: room on the page keeps heartbeats HOT.
  fillfactor = 70,
  -- A queue table is small and turns over all the time, so the usual 20 % would come far too late.
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);

-- lock_expires_at is in no index and no index predicate, else heartbeats could not be HOT: "locked"
-- is told by state, and the reaper reads the few locked rows.
create index if not exists message_waiting_idx
  on messages.message (queue, priority desc, id) where state = 'waiting';
create index if not exists message_scheduled_idx
  on messages.message (queue, available_at) where state = 'scheduled';
create index if not exists message_locked_idx
  on messages.message (id) where state = 'locked';
create unique index if not exists message_dedup_key_uq
  on messages.message (queue, dedup_key) where dedup_key is not null;

comment on table messages.message is
  'Live messages. Inserting into column message alone is a full publish.';
comment on column messages.message.available_at is 'Not handed out before this instant.';
comment on column messages.message.locked_at is 'When the present lock was granted.';
comment on column messages.message.lock_expires_at is 'When the present lock ends, unless extended.';
comment on column messages.message.lock_token is
  'Rises with every lock granted or given up; whoever settles must show the present one.';
comment on column messages.message.priority is 'Larger is handed out first.';
comment on column messages.message.attempts is 'Claims used up, the present one included.';
comment on column messages.message.locked_by is 'The worker that holds the lock, by its own name.';
comment on column messages.message.dedup_key is
  'At most one live message of a queue has a given key.';
comment on column messages.message.details is 'Why the last attempt ended without success.';

-- Archive: one row for each finished message, kept by day and dropped by day.
--
-- owns:    messages.message_archive, messages.message_archive_default
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.message_archive (
  id bigint not null,
  created_at timestamptz not null,
  available_at timestamptz not null,
  locked_at timestamptz,
  archived_at timestamptz not null default clock_timestamp(),
  lock_token bigint not null,
  xid xid8 not null default pg_current_xact_id(),
  priority integer not null,
  attempts integer not null,
  status messages.message_status not null,
  queue text not null,
  type text,
  handled_by text,
  dedup_key text,
  message jsonb not null,
  headers jsonb not null,
  details text,
  result jsonb,
  -- A key over partitions must hold the partition column, so it cannot forbid a second row for an
  -- id: the fenced delete in messages._archive() does.
  constraint message_archive_id_archived_at_pk primary key (id, archived_at)
) partition by range (archived_at);

-- Catches rows for which no day was made; messages.maintain() moves them into their day.
create table if not exists messages.message_archive_default
  partition of messages.message_archive default;

-- Readers that follow the archive go by snapshots over xid: by id or time a late commit is lost.
create index if not exists message_archive_xid_idx on messages.message_archive (xid);
create index if not exists message_archive_queue_archived_at_idx
  on messages.message_archive (queue, archived_at);
create index if not exists message_archive_dead_archived_at_idx
  on messages.message_archive (archived_at) where status <> 'success';
create index if not exists message_archive_dead_xid_idx
  on messages.message_archive (xid) where status <> 'success';

comment on table messages.message_archive is
  'One row for each finished message under the same id; rows never change.';
comment on column messages.message_archive.locked_at is
  'When the last lock was granted; null for a message that was never claimed.';
comment on column messages.message_archive.handled_by is 'The worker that held the last lock.';
comment on column messages.message_archive.xid is
  'The transaction that archived it: incremental readers compare it with snapshots.';
comment on column messages.message_archive.details is 'Why it did not succeed.';
comment on column messages.message_archive.result is 'What the handler returned.';

-- Internal: what several functions share. Executable by nobody but the owner.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive (_archive)
-- calls:   nothing
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages._queue(name text)
  returns messages.queue
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue;
begin
  select q.* into v_queue from messages.queue as q where q.name = _queue.name;
  if not found then
    raise exception using
      errcode = 'NQ001',
      message = format('there is no queue %L', _queue.name),
      hint = format(
        'create it with `notifyq queues create %s` or select messages.create_queue(%L)',
        _queue.name, _queue.name
      );
  end if;
  return v_queue;
end;
$$;

create or replace function messages._invalid(message text, hint text default '')
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  raise exception using errcode = 'NQ003', message = _invalid.message, hint = _invalid.hint;
end;
$$;

create or replace function messages._check_quantity(quantity bigint, most bigint)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if quantity is null or quantity not between 1 and most then
    perform messages._invalid(
      format('quantity must be between 1 and %s, not %s', most, coalesce(quantity::text, 'null'))
    );
  end if;
end;
$$;

create or replace function messages._check_positive(name text, value interval)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if value <= interval '0' then
    perform messages._invalid(format('%s must be longer than zero, not %s', name, value));
  end if;
end;
$$;

create or replace function messages._publishing_key(queue text)
  returns bigint
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  -- Advisory keys are shared by the whole database: the seed keeps ours apart from other people's.
  select hashtextextended(queue, 7305427001);
$$;

create or replace function messages._upkeep_key()
  returns bigint
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select 7305427002;
$$;

-- Exponential backoff with equal jitter: half of the delay is fixed, half is random, so that
-- messages that failed together do not come back together.
-- Source: M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
create or replace function messages._backoff(base interval, most interval, attempts integer)
  returns interval
  language sql
  volatile
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select least(base * power(2, least(greatest(attempts, 1), 30) - 1), most) * (0.5 + random() / 2);
$$;

-- The only gate to the archive: one statement deletes the message under its token and archives what
-- it deleted, so whatever else runs, a message is archived once and by the holder of its lock.
create or replace function messages._archive(
  ids bigint[],
  lock_tokens bigint[],
  statuses messages.message_status[],
  details text[] default null,
  results jsonb[] default null,
  state messages.message_state default 'locked'
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  -- The nested loop from the sorted input locks rows in id order, which is what keeps two settlers
  -- of the same messages from a deadlock; any other join would take them as they come.
  set enable_hashjoin = off
  set enable_mergejoin = off
  set enable_seqscan = off
as $$
begin
  return query
  with ending as materialized (
    select e.id, e.lock_token, e.status, e.details, e.result
    from unnest(
      _archive.ids, _archive.lock_tokens, _archive.statuses, _archive.details, _archive.results
    ) as e (id, lock_token, status, details, result)
    order by e.id
  ),
  gone as (
    delete from messages.message as m
    using ending as e
    where m.id = e.id
      and m.lock_token = e.lock_token
      and m.state = _archive.state
    returning m.*, e.status as end_status, e.details as end_details, e.result as end_result
  )
  insert into messages.message_archive as a (
    id, created_at, available_at, locked_at, lock_token, priority, attempts, status, queue, type,
    handled_by, dedup_key, message, headers, details, result
  )
  select
    g.id, g.created_at, g.available_at, g.locked_at, g.lock_token, g.priority, g.attempts,
    g.end_status, g.queue, g.type, g.locked_by, g.dedup_key, g.message, g.headers,
    g.end_details, g.end_result
  from gone as g
  returning a.id;
end;
$$;

-- Bell: how a queue's workers are told that there may be work.
--
-- owns:    nothing
-- writes:  nothing; notifies new_message
-- calls:   nothing
-- raises:  nothing

-- '41-43,50' from {41,42,43,50}. A payload has less than 8000 bytes and the queue's name up to 200
-- of them. Ids that don't fit are left out: a bell is a hint, and workers claim by queue, not by id.
create or replace function messages._compact(ids bigint[])
  returns text
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  with numbered as (
    select i.id, i.id - row_number() over (order by i.id) as island
    from unnest(ids) as i (id)
  ),
  spans as (
    select min(n.id) as first,
      case when count(*) = 1 then min(n.id)::text
        else format('%s-%s', min(n.id), max(n.id)) end as span
    from numbered as n
    group by n.island
  ),
  sized as (
    select s.first, s.span, sum(octet_length(s.span) + 1) over (order by s.first) - 1 as bytes
    from spans as s
  )
  select coalesce(string_agg(z.span, ',' order by z.first), '')
  from sized as z
  where z.bytes <= 7700;
$$;

create or replace function messages._notify(channel text, queue text, spans text)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  -- A full notification queue fails the commit, where nothing can catch it; a bell that is not rung
  -- costs a worker one poll.
  if pg_notification_queue_usage() < 0.5 then
    perform pg_notify(channel, queue || ':' || spans);
  end if;
end;
$$;

create or replace function messages._ring(queue messages.queue, spans text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if queue.paused or queue.bell = 'off' then
    return false;
  end if;
  perform messages._notify('new_message', queue.name, spans);
  return true;
end;
$$;

-- Partitions: the archive has one for each day in UTC, made ahead and dropped when it is old.
--
-- owns:    the tables messages.message_archive_YYYYMMDD
-- writes:  messages.message_archive_default (rows move into their day)
-- calls:   nothing
-- raises:  nothing; a table that is in use is left to the next run

create or replace function messages._partition_name(day date)
  returns text
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select 'message_archive_' || to_char(day, 'YYYYMMDD');
$$;

create or replace function messages._make_partition(day date)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_name text := messages._partition_name(day);
  v_from timestamptz := day::timestamp at time zone 'UTC';
  v_until timestamptz := (day + 1)::timestamp at time zone 'UTC';
begin
  -- Attached, not created in place: `create table … partition of` would lock out every insert for
  -- as long as it waits for a reader of the archive.
  execute format(
    'create table messages.%I (like messages.message_archive including defaults including '
    'constraints including storage including comments)', v_name
  );
  execute format(
    'with moved as ('
    '  delete from messages.message_archive_default'
    '  where archived_at >= %L and archived_at < %L returning *'
    ') insert into messages.%I select * from moved', v_from, v_until, v_name
  );
  execute format(
    'alter table messages.message_archive attach partition messages.%I for values from (%L) to (%L)',
    v_name, v_from, v_until
  );
end;
$$;

create or replace function messages._make_partitions(ahead integer default 3)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '500ms'
  set timezone = 'UTC'
as $$
declare
  v_today date := clock_timestamp()::date;
  v_day date;
  v_made integer := 0;
begin
  for v_day in
    select d.day
    from (
      select (v_today + i) as day from generate_series(0, ahead) as g (i)
      union
      -- Days on which nobody made a partition, and rows went to the default one.
      select a.archived_at::date from messages.message_archive_default as a
    ) as d
    where to_regclass('messages.' || messages._partition_name(d.day)) is null
    order by d.day
  loop
    perform messages._make_partition(v_day);
    v_made := v_made + 1;
  end loop;
  return v_made;
exception
  -- A reader holds the archive, or another session makes the same day: there is time until the
  -- next run, days are made ahead and the default partition takes what comes before.
  when lock_not_available or duplicate_table or deadlock_detected then
    return 0;
end;
$$;

create or replace function messages._drop_partitions()
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set lock_timeout = '500ms'
  set timezone = 'UTC'
as $$
declare
  v_keep timestamptz := clock_timestamp() - (select max(q.retention) from messages.queue as q);
  v_name text;
  v_dropped integer := 0;
begin
  for v_name in
    select c.relname::text
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'messages.message_archive'::regclass
      and c.relname ~ '^message_archive_\d{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 1 <= v_keep::date
    order by c.relname
  loop
    execute format('drop table messages.%I', v_name);
    v_dropped := v_dropped + 1;
  end loop;
  return v_dropped;
exception
  when lock_not_available or deadlock_detected then
    return 0;
end;
$$;

-- Today must be there before the first message is archived.
do $$ begin perform messages._make_partitions(); end; $$;

-- Publish: put messages into a queue, inside the caller's transaction.
--
-- owns:    nothing
-- writes:  messages.message; the insert trigger of 40_triggers.sql checks the queue and rings
-- calls:   messages._invalid
-- raises:  NQ001 queue not found (trigger), NQ003 invalid argument

create or replace function messages.publish(
  queue text,
  message jsonb,
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null,
  dedup_key text default null
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_due timestamptz := coalesce(publish.available_at, clock_timestamp() + publish.delay, now());
  v_id bigint;
begin
  if publish.delay is not null and publish.available_at is not null then
    perform messages._invalid('delay and available_at exclude each other', 'give one of them');
  end if;
  if publish.message is null then
    perform messages._invalid('message must not be null', 'publish the JSON value null instead');
  end if;
  -- A message that was there may be finished, and its key free, before the look below: try again.
  loop
    insert into messages.message
      (queue, message, priority, available_at, type, headers, dedup_key)
    values (
      publish.queue, publish.message, coalesce(publish.priority, 0), v_due, publish.type,
      coalesce(publish.headers, '{}'), publish.dedup_key
    )
    on conflict (queue, dedup_key) where dedup_key is not null do nothing
    returning id into v_id;
    exit when v_id is not null;
    select m.id into v_id
    from messages.message as m
    where m.queue = publish.queue
      and m.dedup_key = publish.dedup_key;
    exit when v_id is not null;
  end loop;
  return v_id;
end;
$$;
comment on function messages.publish(
  text, jsonb, integer, interval, timestamptz, text, jsonb, text
) is
  'Publish one message and return its id. delay counts from now, available_at is an instant; '
  'larger priority goes first. While a live message of the queue has the same dedup_key, nothing '
  'is published and the id of that message is returned. Raises NQ001 for an unknown queue.';

create or replace function messages.publish_many(
  queue text,
  messages jsonb[],
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_due timestamptz := coalesce(
    publish_many.available_at, clock_timestamp() + publish_many.delay, now()
  );
  v_null integer := array_position(publish_many.messages, null);
begin
  if publish_many.delay is not null and publish_many.available_at is not null then
    perform messages._invalid('delay and available_at exclude each other', 'give one of them');
  end if;
  if v_null is not null then
    perform messages._invalid(
      format('message %s is null', v_null), 'publish the JSON value null instead'
    );
  end if;
  return query
  insert into messages.message as m (queue, message, priority, available_at, type, headers)
  select
    publish_many.queue, p.message, coalesce(publish_many.priority, 0), v_due, publish_many.type,
    coalesce(publish_many.headers, '{}')
  from unnest(publish_many.messages) with ordinality as p (message, position)
  order by p.position
  returning m.id;
end;
$$;
comment on function messages.publish_many(
  text, jsonb[], integer, interval, timestamptz, text, jsonb
) is
  'Publish an array of messages with one statement and one bell; return their ids in the order of '
  'the array. Raises NQ001 for an unknown queue; then nothing is published.';

-- Claim: hand waiting messages to a worker for a limited time.
--
-- owns:    nothing
-- writes:  messages.message (state, locked_at, lock_expires_at, lock_token, locked_by, attempts)
-- calls:   messages._queue, messages._check_quantity, messages._check_positive
-- raises:  NQ001 queue not found, NQ003 invalid argument

-- Scheduled messages that are due become waiting ones, up to quantity of them. They wait in an
-- index of their own, so that a million of them cost a claim one look.
create or replace function messages._stage(queue text, due timestamptz, quantity bigint)
  returns bigint[]
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_ids bigint[];
begin
  with picked as materialized (
    select m.id
    from messages.message as m
    where m.queue = _stage.queue
      and m.state = 'scheduled'
      and m.available_at <= _stage.due
    order by m.available_at
    limit _stage.quantity
    for update skip locked
  ),
  staged as (
    update messages.message as m
    set state = 'waiting'
    where m.id = any (array(select p.id from picked as p))
    returning m.id
  )
  select coalesce(array_agg(s.id), '{}') into v_ids from staged as s;
  return v_ids;
end;
$$;

create or replace function messages.claim(
  queues text[] default null,
  quantity integer default 1,
  lock_timeout interval default null,
  worker text default null,
  filter jsonpath default null
)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  -- A plan made while the table was empty or never analysed would read the whole backlog later on.
  set enable_seqscan = off
  set enable_bitmapscan = off
as $$
declare
  v_queue messages.queue;
  v_left integer := claim.quantity;
  v_taken integer;
  v_seen integer := 0;
  -- A variable, not the call itself: a volatile function cannot be an index condition.
  v_now timestamptz := clock_timestamp();
begin
  perform messages._check_quantity(claim.quantity, 10000);
  perform messages._check_positive('lock_timeout', claim.lock_timeout);
  for v_queue in
    select q.*
    from messages.queue as q
    where claim.queues is null
      or q.name = any (claim.queues)
    order by array_position(claim.queues, q.name), q.name
  loop
    v_seen := v_seen + 1;
    continue when v_queue.paused;
    if exists (
      select from messages.message as m
      where m.queue = v_queue.name
        and m.state = 'scheduled'
        and m.available_at <= v_now
    ) then
      perform messages._stage(v_queue.name, v_now, 10 * v_left);
    end if;
    return query
    -- Materialized: as a plain sub-select the planner may run the limit once for each outer row and
    -- lock more messages than were asked for.
    with picked as materialized (
      select m.id
      from messages.message as m
      where m.queue = v_queue.name
        and m.state = 'waiting'
        and (claim.filter is null or m.message @@ claim.filter)
      order by m.priority desc, m.id
      limit v_left
      for update skip locked
    ),
    claimed as (
      update messages.message as m
      set state = 'locked',
        locked_at = v_now,
        lock_expires_at = v_now + coalesce(claim.lock_timeout, v_queue.lock_timeout),
        lock_token = m.lock_token + 1,
        locked_by = claim.worker,
        attempts = m.attempts + 1
      where m.id = any (array(select p.id from picked as p))
      returning m.*
    )
    select c.* from claimed as c order by c.priority desc, c.id;
    get diagnostics v_taken = row_count;
    v_left := v_left - v_taken;
    exit when v_left = 0;
  end loop;
  if v_left > 0 and v_seen < cardinality(claim.queues) then
    perform messages._queue(u.name) from unnest(claim.queues) as u (name);
  end if;
end;
$$;
comment on function messages.claim(text[], integer, interval, text, jsonpath) is
  'Lock up to quantity (at most 10000) waiting messages and return them: the queues in the order '
  'given (null: all), in a queue by priority, larger first, then by id. Each is held for '
  'lock_timeout (null: that of its queue) and must be finished, released, retried or extended with '
  'its lock_token before that. filter is a JSON path predicate over the message, as in $.n < 3. '
  'Returns no row, and does not wait, where nothing is free. Raises NQ001 for an unknown queue.';

create or replace function messages.claim_id(
  id bigint,
  lock_timeout interval default null,
  worker text default null
)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform messages._check_positive('lock_timeout', claim_id.lock_timeout);
  return query
  with picked as materialized (
    select m.id, q.lock_timeout
    from messages.message as m
    join messages.queue as q on q.name = m.queue
    where m.id = claim_id.id
      and m.state <> 'locked'
      and m.available_at <= v_now
      and not q.paused
    for update of m skip locked
  )
  update messages.message as m
  set state = 'locked',
    locked_at = v_now,
    lock_expires_at = v_now + coalesce(claim_id.lock_timeout, p.lock_timeout),
    lock_token = m.lock_token + 1,
    locked_by = claim_id.worker,
    attempts = m.attempts + 1
  from picked as p
  where m.id = p.id
  returning m.*;
end;
$$;
comment on function messages.claim_id(bigint, interval, text) is
  'Lock the message with this id and return it; no row if it is locked, not yet due, finished or '
  'its queue is paused. For tools: workers claim by queue.';

-- Finish: end a lock with an outcome. Every call shows the token of the lock that it means.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive
-- calls:   messages._archive, messages._backoff, messages._ring, messages._queue
-- raises:  NQ003 invalid argument

create or replace function messages.finish_many(
  ids bigint[],
  lock_tokens bigint[],
  statuses messages.message_status[],
  details text[] default null,
  results jsonb[] default null
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if cardinality(ids) <> cardinality(lock_tokens) or cardinality(ids) <> cardinality(statuses) then
    perform messages._invalid('ids, lock_tokens and statuses must have the same length');
  end if;
  return query select a.id from messages._archive(ids, lock_tokens, statuses, details, results)
    as a (id);
end;
$$;
comment on function messages.finish_many(
  bigint[], bigint[], messages.message_status[], text[], jsonb[]
) is
  'Finish several locked messages at once and return the ids that were; an id that is missing lost '
  'its lock, and nothing changed for it.';

create or replace function messages.finish(
  id bigint,
  lock_token bigint,
  status messages.message_status default 'success',
  details text default null,
  result jsonb default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return exists (
    select from messages._archive(
      array[id], array[lock_token], array[status], array[details], array[result]
    )
  );
end;
$$;
comment on function messages.finish(bigint, bigint, messages.message_status, text, jsonb) is
  'Move a locked message to the archive. False: the lock was lost, and nothing changed.';

create or replace function messages._requeue(
  message messages.message,
  queue messages.queue,
  delay interval,
  details text
)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_delay interval := coalesce(
    delay, messages._backoff(queue.backoff, queue.backoff_max, message.attempts)
  );
begin
  update messages.message as m
  set state = 'waiting',
    locked_at = null,
    lock_expires_at = null,
    locked_by = null,
    lock_token = m.lock_token + 1,
    available_at = case
      when v_delay > interval '0' then clock_timestamp() + v_delay else m.available_at end,
    details = _requeue.details
  where m.id = message.id;
  if v_delay <= interval '0' then
    perform messages._ring(queue, message.id::text);
  end if;
end;
$$;

create or replace function messages.retry(
  id bigint,
  lock_token bigint,
  delay interval default null,
  details text default null,
  status messages.message_status default 'failed'
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_message messages.message;
  v_queue messages.queue;
begin
  select m.* into v_message
  from messages.message as m
  where m.id = retry.id
    and m.lock_token = retry.lock_token
    and m.state = 'locked'
  for update;
  if not found then
    return false;
  end if;
  v_queue := messages._queue(v_message.queue);
  if v_message.attempts >= v_queue.max_attempts then
    return messages.finish(id, lock_token, status, details);
  end if;
  perform messages._requeue(v_message, v_queue, delay, details);
  return true;
end;
$$;
comment on function messages.retry(
  bigint, bigint, interval, text, messages.message_status
) is
  'End an attempt that failed: the message waits for delay (null: the backoff of its queue) and is '
  'handed out again, or is archived with status once its attempts are used up. False: the lock was '
  'lost, and nothing changed.';

-- Hold: prolong a lock, or give it up. Every call shows the token of the lock that it means.
--
-- owns:    nothing
-- writes:  messages.message
-- calls:   messages._ring, messages._check_positive
-- raises:  NQ003 invalid argument

create or replace function messages.extend_many(
  ids bigint[],
  lock_tokens bigint[],
  lock_timeout interval default null
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_hashjoin = off  -- as in _archive: a nested loop locks rows in id order
  set enable_mergejoin = off
  set enable_seqscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform messages._check_positive('lock_timeout', extend_many.lock_timeout);
  return query
  with given as materialized (
    select g.id, g.lock_token
    from unnest(extend_many.ids, extend_many.lock_tokens) as g (id, lock_token)
    order by g.id
  )
  update messages.message as m
  set lock_expires_at = v_now + coalesce(
      extend_many.lock_timeout,
      (select q.lock_timeout from messages.queue as q where q.name = m.queue)
    )
  from given as g
  where m.id = g.id
    and m.lock_token = g.lock_token
    and m.state = 'locked'
  returning m.id;
end;
$$;
comment on function messages.extend_many(bigint[], bigint[], interval) is
  'Hold several locks for lock_timeout (null: that of the queue) from now on; return the ids whose '
  'lock was still held.';

create or replace function messages.extend(
  id bigint,
  lock_token bigint,
  lock_timeout interval default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return exists (
    select from messages.extend_many(array[id], array[lock_token], lock_timeout)
  );
end;
$$;
comment on function messages.extend(bigint, bigint, interval) is
  'Hold a lock for lock_timeout (null: that of the queue) from now on. False: the lock was lost, '
  'and nothing changed.';

create or replace function messages.release_many(
  ids bigint[],
  lock_tokens bigint[],
  delay interval default null
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_hashjoin = off  -- as in _archive: a nested loop locks rows in id order
  set enable_mergejoin = off
  set enable_seqscan = off
as $$
declare
  v_freed messages.message[];
begin
  with given as materialized (
    select g.id, g.lock_token
    from unnest(release_many.ids, release_many.lock_tokens) as g (id, lock_token)
    order by g.id
  ),
  freed as (
    update messages.message as m
    set state = 'waiting',
      locked_at = null,
      lock_expires_at = null,
      locked_by = null,
      lock_token = m.lock_token + 1,
      attempts = m.attempts - 1,
      available_at = coalesce(clock_timestamp() + release_many.delay, m.available_at)
    from given as g
    where m.id = g.id
      and m.lock_token = g.lock_token
      and m.state = 'locked'
    returning m as row
  )
  select coalesce(array_agg(f.row), '{}') into v_freed from freed as f;
  perform messages._ring(q, messages._compact(array_agg(f.id)))
  from unnest(v_freed) as f
  join messages.queue as q on q.name = f.queue
  where f.state = 'waiting'
  group by q;
  return query select f.id from unnest(v_freed) as f order by f.id;
end;
$$;
comment on function messages.release_many(bigint[], bigint[], interval) is
  'Give up the locks of several messages as if they had not been claimed; return the ids that were '
  'still locked under their token.';

create or replace function messages.release(
  id bigint,
  lock_token bigint,
  delay interval default null
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return exists (select from messages.release_many(array[id], array[lock_token], delay));
end;
$$;
comment on function messages.release(bigint, bigint, interval) is
  'Give up a lock as if the message had not been claimed: it is back in its old place at once, or '
  'after delay, and the attempt does not count. False: the lock was lost, and nothing changed.';

create or replace function messages.release_orphans(worker text, known bigint[])
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_orphans messages.message[];
begin
  v_orphans := array(
    select m
    from messages.message as m
    where m.state = 'locked'
      and m.locked_by = release_orphans.worker
      and m.id <> all (release_orphans.known)
    order by m.id
    for update skip locked
  );
  return (
    select count(*)
    from messages.release_many(
      array(select o.id from unnest(v_orphans) as o),
      array(select o.lock_token from unnest(v_orphans) as o)
    )
  );
end;
$$;
comment on function messages.release_orphans(text, bigint[]) is
  'Release what is locked in the name of worker and not among the ids known to it: the messages of '
  'a claim whose answer was lost with the connection. Returns how many. The name must be the '
  'worker''s alone.';

-- Take and cancel: end messages that nobody holds.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive
-- calls:   messages._archive, messages._queue, messages._check_quantity
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages.take(queue text, quantity integer default 1)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
as $$
declare
  v_queue messages.queue := messages._queue(take.queue);
  v_now timestamptz := clock_timestamp();
  v_taken messages.message[];
begin
  perform messages._check_quantity(take.quantity, 10000);
  if v_queue.paused then
    return;
  end if;
  perform messages._stage(v_queue.name, v_now, 10 * take.quantity);
  v_taken := array(
    select m
    from messages.message as m
    where m.queue = v_queue.name
      and m.state = 'waiting'
    order by m.priority desc, m.id
    limit take.quantity
    for update skip locked
  );
  perform messages._archive(
    array(select t.id from unnest(v_taken) as t),
    array(select t.lock_token from unnest(v_taken) as t),
    array(select 'success'::messages.message_status from unnest(v_taken)),
    state => 'waiting'
  );
  return query select t.* from unnest(v_taken) as t order by t.priority desc, t.id;
end;
$$;
comment on function messages.take(text, integer) is
  'Take up to quantity (at most 10000) messages out of a queue, archive them as success and return '
  'them, all inside the caller''s transaction: commit makes it so, rollback or a lost connection '
  'puts them back. Does not wait for messages that others hold. Keep the transaction short: it '
  'holds back vacuum. Raises NQ001 for an unknown queue.';

create or replace function messages.cancel(id bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_message messages.message;
begin
  select m.* into v_message
  from messages.message as m
  where m.id = cancel.id
    and m.state <> 'locked'
  for update skip locked;
  return found and exists (
    select from messages._archive(
      array[v_message.id], array[v_message.lock_token],
      array['rejected'::messages.message_status], array['cancelled'],
      state => v_message.state
    )
  );
end;
$$;
comment on function messages.cancel(bigint) is
  'Archive a message that waits or is scheduled as rejected, with details `cancelled`. False: it is '
  'locked by a worker, finished, or unknown; nothing changed.';

-- Dead: what to do about messages that did not succeed.
--
-- owns:    messages.dead_message
-- writes:  messages.message_archive (dead_delete)
-- calls:   messages._check_quantity
-- raises:  NQ003 invalid argument

create or replace view messages.dead_message as
  select a.*
  from messages.message_archive as a
  where a.status <> 'success';
comment on view messages.dead_message is 'Archived messages that did not succeed.';

create or replace function messages.dead_list(
  queue text default null,
  quantity integer default 100,
  skip integer default 0
)
  returns setof messages.dead_message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_quantity(dead_list.quantity, 10000);
  return query
  select d.*
  from messages.dead_message as d
  where (dead_list.queue is null or d.queue = dead_list.queue)
  order by d.archived_at desc, d.id desc
  limit dead_list.quantity
  offset dead_list.skip;
end;
$$;
comment on function messages.dead_list(text, integer, integer) is
  'Dead messages, the latest first.';

create or replace function messages.dead_count(queue text default null)
  returns bigint
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return (
    select count(*)
    from messages.dead_message as d
    where dead_count.queue is null or d.queue = dead_count.queue
  );
end;
$$;
comment on function messages.dead_count(text) is 'How many dead messages there are.';

create or replace function messages.dead_delete(variadic ids bigint[])
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_deleted bigint;
begin
  delete from messages.message_archive as a
  where a.id = any (dead_delete.ids)
    and a.status <> 'success';
  get diagnostics v_deleted = row_count;
  return v_deleted;
end;
$$;
comment on function messages.dead_delete(bigint[]) is
  'Delete dead messages from the archive for good; return how many were.';

-- Triggers: what makes a plain insert a full publish, and a dead message heard.
--
-- owns:    the triggers of messages.message and messages.message_archive
-- writes:  messages.message (state of scheduled rows); notifies new_message and dead_message
-- calls:   messages._queue, messages._ring, messages._compact, messages._notify
-- raises:  NQ001 queue not found

create or replace function messages._schedule()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  new.state := 'scheduled';
  return new;
end;
$$;

-- The condition is evaluated without a call, so rows that are due at once pay next to nothing.
create or replace trigger schedule
  before insert or update of available_at on messages.message
  for each row
  when (new.available_at > now() and new.state = 'waiting')
  execute function messages._schedule();

create or replace function messages._published()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_name text;
  v_queue messages.queue;
  v_first bigint;
  v_last bigint;
  v_waiting bigint;
begin
  for v_name, v_waiting, v_first, v_last in
    select p.queue,
      count(*) filter (where p.state = 'waiting'),
      min(p.id) filter (where p.state = 'waiting'),
      max(p.id) filter (where p.state = 'waiting')
    from published as p
    group by p.queue
    order by p.queue
  loop
    -- Held to the end of the transaction, before the registry is read: drop_queue() waits for it,
    -- else it could miss messages that are not committed yet and leave them without a queue.
    perform pg_advisory_xact_lock_shared(messages._publishing_key(v_name));
    v_queue := messages._queue(v_name);
    if v_last - v_first + 1 = v_waiting then
      perform messages._ring(
        v_queue, case when v_first = v_last then v_first::text else format('%s-%s', v_first, v_last) end
      );
    elsif v_waiting > 0 then
      -- Other sessions published in between. 1000 ids say as much as a million.
      perform messages._ring(v_queue, messages._compact(array(
        select p.id
        from published as p
        where p.queue = v_name
          and p.state = 'waiting'
        order by p.id
        limit 1000
      )));
    end if;
  end loop;
  return null;
end;
$$;

create or replace trigger published
  after insert on messages.message
  referencing new table as published
  for each statement
  execute function messages._published();

create or replace function messages._died()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_dead messages.message_archive;
  v_queue text;
  v_ids bigint[];
  v_named integer := 0;
  v_count integer := 0;
begin
  for v_queue, v_ids in
    select a.queue, array_agg(a.id order by a.id)
    from archived as a
    where a.status <> 'success'
    group by a.queue
  loop
    v_count := v_count + cardinality(v_ids);
    perform messages._notify('dead_message', v_queue, messages._compact(v_ids));
  end loop;
  if v_count = 0 then
    return null;
  end if;
  -- Ten lines wake somebody up as well as ten thousand, which would fill the log.
  for v_dead in
    select a.* from archived as a where a.status <> 'success' order by a.id limit 10
  loop
    v_named := v_named + 1;
    raise warning 'notifyq: dead message % in queue %: %: %',
      v_dead.id, v_dead.queue, v_dead.status, left(coalesce(v_dead.details, '-'), 200);
  end loop;
  if v_count > v_named then
    raise warning 'notifyq: % more dead messages in the same statement', v_count - v_named;
  end if;
  return null;
end;
$$;

create or replace trigger died
  after insert on messages.message_archive
  referencing new table as archived
  for each statement
  execute function messages._died();

-- Upkeep: what must happen with no worker alive. pg_cron and every worker call maintain().
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive
-- calls:   messages._archive, messages._requeue, messages._stage, messages._ring,
--          messages._make_partitions, messages._drop_partitions
-- raises:  NQ003 invalid argument

create or replace function messages.reap(quantity integer default 1000)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_expired messages.message[];
begin
  perform messages._check_quantity(reap.quantity, 100000);
  -- Locked in id order and skipping what a finisher holds: it wins, and no two reapers share a row.
  v_expired := array(
    select m
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at <= v_now
    order by m.id
    limit reap.quantity
    for update skip locked
  );
  if cardinality(v_expired) = 0 then
    return 0;
  end if;
  perform messages._requeue(
    e, q, null, format('lock of %s expired', coalesce(e.locked_by, 'an unnamed worker'))
  )
  from unnest(v_expired) as e
  join messages.queue as q on q.name = e.queue
  where e.attempts < q.max_attempts;
  perform messages._archive(
    array_agg(e.id), array_agg(e.lock_token),
    array_agg('lock_expired'::messages.message_status),
    array_agg(format('lock of %s expired', coalesce(e.locked_by, 'an unnamed worker')))
  )
  from unnest(v_expired) as e
  left join messages.queue as q on q.name = e.queue
  where e.attempts >= coalesce(q.max_attempts, 0);
  return cardinality(v_expired);
end;
$$;
comment on function messages.reap(integer) is
  'End up to quantity locks that have expired: archive as lock_expired, or put back with the '
  'backoff of its queue where attempts are left. Returns how many. Any number may run at once.';

create or replace function messages.stage_due(quantity integer default 10000)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue;
  v_ids bigint[];
  v_staged integer := 0;
begin
  perform messages._check_quantity(stage_due.quantity, 1000000);
  for v_queue in
    select q.* from messages.queue as q order by q.name
  loop
    v_ids := messages._stage(v_queue.name, clock_timestamp(), stage_due.quantity - v_staged);
    if cardinality(v_ids) > 0 then
      v_staged := v_staged + cardinality(v_ids);
      perform messages._ring(v_queue, messages._compact(v_ids[1:1000]));
    end if;
    exit when v_staged >= stage_due.quantity;
  end loop;
  return v_staged;
end;
$$;
comment on function messages.stage_due(integer) is
  'Make up to quantity scheduled messages that are due available and ring for them; return how '
  'many. A claim does the same for the queues that it reads.';

create or replace function messages.renotify()
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_queue messages.queue;
  v_first bigint;
  v_rung integer := 0;
begin
  for v_queue in
    select q.* from messages.queue as q order by q.name
  loop
    select m.id into v_first
    from messages.message as m
    where m.queue = v_queue.name
      and m.state = 'waiting'
    order by m.priority desc, m.id
    limit 1;
    if found and messages._ring(v_queue, v_first::text) then
      v_rung := v_rung + 1;
    end if;
  end loop;
  return v_rung;
end;
$$;
comment on function messages.renotify() is
  'Ring once for each queue that has a message waiting and is not paused; return how many bells.';

create or replace function messages.maintain()
  returns messages.upkeep_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_report messages.upkeep_report;
begin
  if not pg_try_advisory_xact_lock(messages._upkeep_key()) then
    return null;
  end if;
  v_report.reaped := messages.reap();
  v_report.staged := messages.stage_due();
  v_report.rung := messages.renotify();
  v_report.partitions_made := messages._make_partitions();
  v_report.partitions_dropped := messages._drop_partitions();
  return v_report;
end;
$$;
comment on function messages.maintain() is
  'All of the upkeep, bounded: reap expired locks, stage what is due, ring again for what waits, '
  'make the coming days of the archive and drop those past retention. Null: another session is '
  'doing it. Called by pg_cron and about once a second by workers; either alone is enough.';

-- Cron: pg_cron runs the upkeep, so that locks are reaped with no worker alive.
--
-- owns:    the pg_cron jobs `notifyq maintain` and `notifyq purge`
-- writes:  cron.job
-- calls:   messages.maintain (by the job)
-- raises:  nothing

do $$
begin
  if not exists (select from pg_extension as e where e.extname = 'pg_cron') then
    return;
  end if;
  begin
    perform cron.schedule('notifyq maintain', '10 seconds', 'select messages.maintain()');
  exception
    -- Up to 1.4 (Debian 12) pg_cron knows minutes only, and says so in an error of no class.
    when others then
      perform cron.schedule('notifyq maintain', '* * * * *', 'select messages.maintain()');
  end;
  -- Without this pg_cron keeps a row for every run, for ever.
  perform cron.schedule(
    'notifyq purge', '17 * * * *',
    'delete from cron.job_run_details as d using cron.job as j '
    'where j.jobid = d.jobid and j.jobname like ''notifyq %'' '
    'and d.end_time < now() - interval ''1 day'''
  );
end;
$$;

-- Inspect: read what is there. Nothing here locks or changes a row.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity
-- raises:  NQ003 invalid argument

create or replace function messages.queue_info(queue text default null)
  returns setof messages.queue_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select q.name, q.paused, c.waiting, c.scheduled, c.locked, c.expired, c.oldest_waiting_at,
    q.lock_timeout, q.max_attempts, q.backoff, q.backoff_max, q.bell, q.retention
  from messages.queue as q
  cross join lateral (
    select
      count(*) filter (where m.state = 'waiting') as waiting,
      count(*) filter (where m.state = 'scheduled') as scheduled,
      count(*) filter (where m.state = 'locked') as locked,
      count(*) filter (where m.state = 'locked' and m.lock_expires_at <= now()) as expired,
      min(m.available_at) filter (where m.state = 'waiting') as oldest_waiting_at
    from messages.message as m
    where m.queue = q.name
  ) as c
  where queue_info.queue is null or q.name = queue_info.queue
  order by q.name;
end;
$$;
comment on function messages.queue_info(text) is
  'Policy of each queue and how many of its messages wait, are scheduled, are locked, and are '
  'locked past their time.';

create or replace function messages.message_list(
  queue text default null,
  state messages.message_state default null,
  quantity integer default 100
)
  returns setof messages.message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_quantity(message_list.quantity, 10000);
  return query
  select m.*
  from messages.message as m
  where (message_list.queue is null or m.queue = message_list.queue)
    and (message_list.state is null or m.state = message_list.state)
  order by m.id
  limit message_list.quantity;
end;
$$;
comment on function messages.message_list(text, messages.message_state, integer) is
  'Live messages by id, the oldest first.';

create or replace function messages.message_find(id bigint)
  returns setof messages.message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query select m.* from messages.message as m where m.id = message_find.id;
end;
$$;
comment on function messages.message_find(bigint) is 'The live message with this id, or no row.';

create or replace function messages.archive_list(
  queue text default null,
  status messages.message_status default null,
  quantity integer default 100,
  since timestamptz default null
)
  returns setof messages.message_archive
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_quantity(archive_list.quantity, 100000);
  return query
  select a.*
  from messages.message_archive as a
  where (archive_list.queue is null or a.queue = archive_list.queue)
    and (archive_list.status is null or a.status = archive_list.status)
    and (archive_list.since is null or a.archived_at >= archive_list.since)
  order by a.archived_at desc, a.id desc
  limit archive_list.quantity;
end;
$$;
comment on function messages.archive_list(
  text, messages.message_status, integer, timestamptz
) is
  'Finished messages, the latest first, not archived before since.';

create or replace function messages.archive_find(id bigint)
  returns setof messages.message_archive
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query select a.* from messages.message_archive as a where a.id = archive_find.id;
end;
$$;
comment on function messages.archive_find(bigint) is
  'The finished message with this id, or no row.';

create or replace function messages.archive_summary(
  queue text default null,
  since timestamptz default null
)
  returns setof messages.summary_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select a.queue, a.status, count(*), min(a.created_at), max(a.archived_at),
    percentile_cont(0.50) within group (order by a.locked_at - a.created_at),
    percentile_cont(0.95) within group (order by a.locked_at - a.created_at),
    percentile_cont(0.99) within group (order by a.locked_at - a.created_at),
    percentile_cont(0.50) within group (order by a.archived_at - a.locked_at),
    percentile_cont(0.95) within group (order by a.archived_at - a.locked_at),
    percentile_cont(0.99) within group (order by a.archived_at - a.locked_at)
  from messages.message_archive as a
  where (archive_summary.queue is null or a.queue = archive_summary.queue)
    and (archive_summary.since is null or a.archived_at >= archive_summary.since)
  group by grouping sets ((a.queue, a.status), (a.queue))
  order by a.queue, a.status nulls last;
end;
$$;
comment on function messages.archive_summary(text, timestamptz) is
  'For each queue and status, and for each queue as a whole (status null): how many messages were '
  'archived since then, and percentiles of wait and run time.';

create or replace function messages.dead_since(
  seen pg_snapshot,
  queue text default null
)
  returns setof messages.dead_message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select d.*
  from messages.dead_message as d
  where d.xid >= pg_snapshot_xmin(dead_since.seen)
    and not pg_visible_in_snapshot(d.xid, dead_since.seen)
    and (dead_since.queue is null or d.queue = dead_since.queue)
  order by d.archived_at, d.id;
end;
$$;
comment on function messages.dead_since(pg_snapshot, text) is
  'Dead messages whose archiving was not yet visible in the snapshot seen, the oldest first. Take '
  'pg_current_snapshot() in the same statement as the next value of seen: whatever the order of '
  'commits, nothing is missed and nothing comes twice.';

-- Queues: create, change and drop them.
--
-- owns:    nothing
-- writes:  messages.queue, messages.message (drop_queue)
-- calls:   messages._queue, messages._check_positive, messages.renotify
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ005 queue not empty

create or replace function messages._check_policy(queue messages.queue)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if octet_length(queue.name) not between 1 and 200
    or queue.name ~ '[:[:cntrl:]]'
    or queue.name <> btrim(queue.name)
  then
    perform messages._invalid(
      format('%L cannot be the name of a queue', queue.name),
      'a name has 1 to 200 bytes, no colon, no control character and no blank at its ends'
    );
  end if;
  perform messages._check_positive('lock_timeout', queue.lock_timeout);
  perform messages._check_positive('retention', queue.retention);
  if queue.max_attempts not between 1 and 1000 then
    perform messages._invalid(
      format('max_attempts must be between 1 and 1000, not %s', queue.max_attempts)
    );
  end if;
  if queue.backoff < interval '0' or queue.backoff_max < queue.backoff then
    perform messages._invalid('backoff must not be negative, nor longer than backoff_max');
  end if;
  if queue.bell not in ('always', 'off') then
    perform messages._invalid(format('bell must be always or off, not %s', queue.bell));
  end if;
end;
$$;

create or replace function messages.create_queue(
  name text,
  lock_timeout interval default interval '1 minute',
  max_attempts integer default 1,
  backoff interval default interval '2 seconds',
  backoff_max interval default null,
  bell text default 'always',
  retention interval default interval '30 days'
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue;
begin
  if name is null then
    perform messages._invalid('the name of a queue must not be null');
  end if;
  v_queue.name := name;
  v_queue.created_at := clock_timestamp();
  v_queue.lock_timeout := coalesce(lock_timeout, interval '1 minute');
  v_queue.max_attempts := coalesce(max_attempts, 1);
  v_queue.backoff := coalesce(backoff, interval '2 seconds');
  v_queue.backoff_max := coalesce(backoff_max, greatest(v_queue.backoff, interval '5 minutes'));
  v_queue.bell := coalesce(bell, 'always');
  v_queue.paused := false;
  v_queue.retention := coalesce(retention, interval '30 days');
  perform messages._check_policy(v_queue);
  insert into messages.queue (
    name, created_at, lock_timeout, max_attempts, backoff, backoff_max, bell, paused, retention
  )
  values (
    v_queue.name, v_queue.created_at, v_queue.lock_timeout, v_queue.max_attempts, v_queue.backoff,
    v_queue.backoff_max, v_queue.bell, v_queue.paused, v_queue.retention
  )
  on conflict on constraint queue_name_pk do nothing;
  return found;
end;
$$;
comment on function messages.create_queue(
  text, interval, integer, interval, interval, text, interval
) is
  'Create a queue with its policy; null means the default. False: it existed, and nothing changed. '
  'lock_timeout: how long a claim holds a message. max_attempts: claims that a message may use up. '
  'backoff: delay before the second attempt, doubling up to backoff_max. bell: always or off. '
  'retention: how long the archive keeps its messages.';

create or replace function messages.alter_queue(
  name text,
  lock_timeout interval default null,
  max_attempts integer default null,
  backoff interval default null,
  backoff_max interval default null,
  bell text default null,
  retention interval default null
)
  returns messages.queue
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(name);
begin
  v_queue.lock_timeout := coalesce(lock_timeout, v_queue.lock_timeout);
  v_queue.max_attempts := coalesce(max_attempts, v_queue.max_attempts);
  v_queue.backoff := coalesce(backoff, v_queue.backoff);
  v_queue.backoff_max := coalesce(backoff_max, v_queue.backoff_max);
  v_queue.bell := coalesce(bell, v_queue.bell);
  v_queue.retention := coalesce(retention, v_queue.retention);
  perform messages._check_policy(v_queue);
  update messages.queue as q
  set lock_timeout = v_queue.lock_timeout,
    max_attempts = v_queue.max_attempts,
    backoff = v_queue.backoff,
    backoff_max = v_queue.backoff_max,
    bell = v_queue.bell,
    retention = v_queue.retention
  where q.name = v_queue.name;
  return v_queue;
end;
$$;
comment on function messages.alter_queue(
  text, interval, integer, interval, interval, text, interval
) is
  'Change the policy of a queue; null leaves a value as it is. Live messages follow the new policy '
  'from their next claim or settlement on. Returns the queue. Raises NQ001 for an unknown queue.';

create or replace function messages.drop_queue(name text, force boolean default false)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue;
  v_dropped bigint;
begin
  -- Waits for transactions that have published into this queue and are not over, see _published().
  perform pg_advisory_xact_lock(messages._publishing_key(name));
  v_queue := messages._queue(name);
  if not force and exists (select from messages.message as m where m.queue = v_queue.name) then
    raise exception using
      errcode = 'NQ005',
      message = format('queue %L still has messages', v_queue.name),
      hint = 'finish or cancel them, or drop the queue with force => true: that deletes them';
  end if;
  delete from messages.message as m where m.queue = v_queue.name;
  get diagnostics v_dropped = row_count;
  delete from messages.queue as q where q.name = v_queue.name;
  return v_dropped;
end;
$$;
comment on function messages.drop_queue(text, boolean) is
  'Drop a queue and return how many live messages were deleted with it. A queue that has messages '
  'is dropped with force only, else NQ005. Its archived messages stay. Raises NQ001 for an unknown '
  'queue.';

create or replace function messages.pause_queue(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(name);
begin
  update messages.queue as q
  set paused = true
  where q.name = v_queue.name
    and not q.paused;
  return found;
end;
$$;
comment on function messages.pause_queue(text) is
  'Hand out no more messages of a queue; publishing goes on. False: it was paused already.';

create or replace function messages.resume_queue(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(name);
begin
  update messages.queue as q
  set paused = false
  where q.name = v_queue.name
    and q.paused;
  if not found then
    return false;
  end if;
  perform messages.renotify();
  return true;
end;
$$;
comment on function messages.resume_queue(text) is
  'Hand out the messages of a paused queue again. False: it was not paused.';

-- Grants: nothing for everybody, then one list for each role.
--
-- owns:    nothing
-- writes:  privileges
-- calls:   nothing
-- raises:  nothing

revoke all on schema messages from public;
revoke all on all tables in schema messages from public;
revoke execute on all functions in schema messages from public;
alter default privileges in schema messages revoke execute on functions from public;

do $$
begin
  -- Without CREATEROLE 02_roles.sql could not make them; the owner then grants to roles of its own.
  if to_regrole('notifyq_admin') is null then
    return;
  end if;

  grant usage on schema messages
    to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin;
  grant execute on function messages.version()
    to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin;

  grant insert (queue, message, priority, available_at, type, headers, dedup_key)
    on messages.message to notifyq_publisher, notifyq_admin;
  grant execute on function
    messages.publish(text, jsonb, integer, interval, timestamptz, text, jsonb, text),
    messages.publish_many(text, jsonb[], integer, interval, timestamptz, text, jsonb)
    to notifyq_publisher, notifyq_admin;

  grant execute on function
    messages.claim(text[], integer, interval, text, jsonpath),
    messages.claim_id(bigint, interval, text),
    messages.finish(bigint, bigint, messages.message_status, text, jsonb),
    messages.finish_many(bigint[], bigint[], messages.message_status[], text[], jsonb[]),
    messages.retry(bigint, bigint, interval, text, messages.message_status),
    messages.release(bigint, bigint, interval),
    messages.release_many(bigint[], bigint[], interval),
    messages.release_orphans(text, bigint[]),
    messages.extend(bigint, bigint, interval),
    messages.extend_many(bigint[], bigint[], interval),
    messages.take(text, integer),
    messages.reap(integer),
    messages.stage_due(integer),
    messages.renotify(),
    messages.maintain(),
    messages.queue_info(text)
    to notifyq_worker, notifyq_admin;

  grant select on all tables in schema messages to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.queue_info(text),
    messages.message_list(text, messages.message_state, integer),
    messages.message_find(bigint),
    messages.archive_list(text, messages.message_status, integer, timestamptz),
    messages.archive_find(bigint),
    messages.archive_summary(text, timestamptz),
    messages.dead_list(text, integer, integer),
    messages.dead_count(text),
    messages.dead_since(pg_snapshot, text)
    to notifyq_reader, notifyq_admin;

  grant execute on function
    messages.create_queue(text, interval, integer, interval, interval, text, interval),
    messages.alter_queue(text, interval, integer, interval, interval, text, interval),
    messages.drop_queue(text, boolean),
    messages.pause_queue(text),
    messages.resume_queue(text),
    messages.cancel(bigint),
    messages.dead_delete(bigint[])
    to notifyq_admin;
end;
$$;

-- Check: an install that is not whole fails here, not in production; then its version is recorded.
--
-- owns:    nothing
-- writes:  messages.schema_version
-- calls:   messages.version
-- raises:  NQ902 the install is not whole

do $$
declare
  v_missing text;
begin
  select string_agg(w.what, ', ') into v_missing
  from (
    select 'trigger ' || t.name as what
    from (
      values
        ('messages.message', 'published'), ('messages.message', 'schedule'),
        ('messages.message_archive', 'died')
    ) as t (relation, name)
    where not exists (
      select from pg_trigger as g
      where g.tgrelid = t.relation::regclass and g.tgname = t.name and g.tgenabled = 'O'
    )
    union all
    select 'index ' || i.name
    from (
      values ('message_waiting_idx'), ('message_scheduled_idx'), ('message_locked_idx'),
        ('message_dedup_key_uq'), ('message_archive_xid_idx')
    ) as i (name)
    where not exists (
      select from pg_index as x
      where x.indexrelid = to_regclass('messages.' || i.name) and x.indisvalid
    )
    union all
    select 'an archive partition for today'
    where to_regclass(
      'messages.' || messages._partition_name((clock_timestamp() at time zone 'UTC')::date)
    ) is null
  ) as w;
  if v_missing is not null then
    raise exception using
      errcode = 'NQ902',
      message = 'the install is not whole: missing ' || v_missing,
      hint = 'run `notifyq migrate` as the owner of schema messages';
  end if;
end;
$$;

insert into messages.schema_version (version)
values (messages.version())
on conflict on constraint schema_version_version_pk do nothing;
