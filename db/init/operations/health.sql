-- Health: figures to watch an installation by.

-- cron_entries() and health() run with the rights of their caller: the server decides what they may
-- see of other sessions and of pg_cron.

create or replace function messages.cron_entries()
  returns setof messages.cron_report language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- By oid: a role without usage of the schema cannot resolve the name of a table in it.
  if not exists (
    select
    from pg_class as c
    join pg_namespace as n on n.oid = c.relnamespace
    where n.nspname = 'cron' and c.relname = 'job_run_details'
      and has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select')
  ) then
    return;
  end if;
  return query execute format(
    'select j.jobname::text, j.schedule, j.active, j.username, d.status, d.start_time, '
    'd.return_message, coalesce(f.failed, 0) '
    'from cron.job as j '
    'left join lateral ('
    '  select r.status, r.start_time, r.return_message from cron.job_run_details as r'
    '  where r.jobid = j.jobid and r.end_time is not null order by r.runid desc limit 1'
    ') as d on true '
    'left join lateral ('
    '  select count(*) filter (where r.status = %L) as failed from cron.job_run_details as r'
    '  where r.jobid = j.jobid and r.start_time > now() - interval %L'
    ') as f on true '
    'where starts_with(j.jobname, %L) and j.database = current_database() '
    'order by j.jobname, j.active desc', 'failed', '1 hour', 'notifyq '
  );
end;
$$;
comment on function messages.cron_entries is
  'The entries of pg_cron for notifyq that the caller may see, with the status and message of the '
  'last run that ended, and how many failed within an hour. No row without pg_cron, or without the '
  'right to read its tables.';

create or replace function notifyq.notification_counters()
  returns setof messages.figure language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select f.name, f.channel, coalesce(pg_sequence_last_value(f.sequence::regclass), 0), f.unit
  from (
    values
      ('notifications_sent', 'new_message', 'notifyq.message_notification_seq', 'notifications'),
      ('notifications_sent', 'new_event', 'notifyq.event_notification_seq', 'notifications'),
      ('published', 'new_message', 'messages.message_id_seq', 'messages'),
      ('published', 'new_event', 'messages.event_id_seq', 'events')
  ) as f (name, channel, sequence, unit);
$$;
comment on function notifyq.notification_counters is
  'By channel, new_message for queues and new_event for streams: how many notifications were sent '
  'since the schema was installed (notifications_sent), also by maintenance and by workers that '
  'wake others, and how many messages or events got an id (published). The difference was '
  'published without a notification of its own: many in one statement, or while a worker '
  'suppressed notifications. Both include what was rolled back, and may be up to 32 too high after '
  'each crash of the server.';

create or replace function messages.health()
  returns setof messages.figure language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  -- A viewer: all other figures are of the whole database.
  if not has_function_privilege('notifyq.diagnose()', 'execute') then
    return query
    select f.name, '', greatest(extract(epoch from v_now - f.since_at), 0)::double precision,
      'seconds'
    from (
      select min(b.oldest_expired_at) as expired_at,
        min(b.next_due_at) filter (where not b.paused) as due_at,
        min(b.oldest_waiting_at) filter (where not b.paused) as waiting_at
      from messages.backlog(most => 1) as b
      having count(*) > 0
    ) as o
    cross join lateral (
      values ('expired_for', o.expired_at), ('overdue_for', o.due_at), ('waiting_for', o.waiting_at)
    ) as f (name, since_at)
    order by 1;
    return;
  end if;
  return query
  select f.name, f.subject, f.value, f.unit from notifyq.table_sizes() as f
  union all
  select f.name, f.subject, f.value, f.unit from notifyq.notification_counters() as f
  union all
  select 'xmin_age', h.cause, max(h.xmin_age)::double precision, 'transactions'
  from messages.activity(1000, holding => true) as h
  group by h.cause
  union all
  select f.name, '', f.value::double precision, f.unit
  from (
    select count(*) filter (where a.cause = 'lock') as waiting,
      max(v_now - a.since_at) filter (where a.cause = 'lock') as longest_wait,
      max(v_now - a.since_at) filter (where a.cause = 'idle') as longest_idle,
      max(v_now - a.since_at) filter (where a.cause = 'transaction') as longest
    from messages.activity(1000) as a
  ) as a
  cross join lateral (
    -- greatest(): a wait that began after v_now, and no wait at all, are 0 seconds.
    values
      ('lock_waits', a.waiting, 'sessions'),
      ('longest_lock_wait', greatest(extract(epoch from a.longest_wait), 0), 'seconds'),
      ('longest_idle_in_transaction', greatest(extract(epoch from a.longest_idle), 0), 'seconds'),
      ('longest_transaction', greatest(extract(epoch from a.longest), 0), 'seconds')
  ) as f (name, value, unit)
  union all
  select f.name, '', f.value::double precision, f.unit
  from (
    -- The backend type of other users' sessions is hidden, their database is not.
    select count(*) filter (
        where a.datid is not null and coalesce(a.backend_type, 'client backend') = 'client backend'
      ) as used,
      count(*) filter (
        where a.datname = current_database() and a.application_name = 'notifyq worker'
      ) as workers
    from pg_stat_activity as a
  ) as c
  cross join notifyq.diagnose() as d
  cross join lateral (
    values
      ('connections', c.used, 'sessions'),
      (
        'connections_most',
        current_setting('max_connections')::integer
          - current_setting('superuser_reserved_connections')::integer, 'sessions'
      ),
      ('worker_sessions', c.workers, 'sessions'),
      ('notify_queue', pg_notification_queue_usage(), 'ratio'),
      ('missing', cardinality(d.missing), 'parts'),
      ('misplaced', d.misplaced, 'rows'),
      ('expired_for', greatest(extract(epoch from d.expired_for), 0), 'seconds'),
      ('overdue_for', greatest(extract(epoch from d.overdue_for), 0), 'seconds'),
      ('waiting_for', greatest(extract(epoch from d.waiting_for), 0), 'seconds'),
      ('database_bytes', pg_database_size(current_database()), 'bytes')
  ) as f (name, value, unit)
  union all
  select f.name, d.duty, f.value::double precision, 'runs'
  from notifyq.failing_duties() as d
  cross join lateral (
    values ('maintenance_failing', d.failures::bigint), ('maintenance_failures', d.total)
  ) as f (name, value)
  union all
  select 'frozen_age', '', age(d.datfrozenxid)::double precision, 'transactions'
  from pg_database as d
  where d.datname = current_database()
  union all
  select 'kept_wal', s.slot_name::text,
    pg_wal_lsn_diff(w.position, s.restart_lsn)::double precision, 'bytes'
  from pg_replication_slots as s
  cross join notifyq.wal_position() as w (position)
  where s.restart_lsn is not null
    and w.position is not null
  union all
  select f.name, j.entry, f.value::double precision, f.unit
  from messages.cron_entries() as j
  cross join lateral (
    values
      ('cron_run_age', extract(epoch from v_now - j.last_started_at), 'seconds'),
      ('cron_failed', j.failed, 'runs')
  ) as f (name, value, unit)
  where j.is_active and f.value is not null
  order by 1, 2;
end;
$$;
comment on function messages.health is
  'Figures to watch an installation by, each with its unit: those of notifyq.table_sizes() and '
  'notifyq.notification_counters(); by cause, the age in transactions of the oldest snapshot that '
  'messages.activity(holding => true) reports (xmin_age); how many sessions wait for locks, and '
  'the longest lock wait, transaction and idle transaction of messages.activity(), in seconds; '
  'connections and their limit; sessions of workers; how full the queue of NOTIFY is '
  '(notify_queue, 0 to 1); what notifyq.diagnose() finds; for each duty of maintenance that has '
  'failed, how many runs since one succeeded (maintenance_failing) and in all '
  '(maintenance_failures); the size of the database; how many transactions ago it was frozen; how '
  'much WAL each replication slot keeps; and for each entry of '
  'pg_cron how long ago its last run was and how many failed within an hour. Sessions of other '
  'users are included for members of pg_read_all_stats only. A viewer gets expired_for, '
  'overdue_for and waiting_for of the queues that it may read, and no other figure.';

-- Partitions of days and segments of streams are added up under their parent.
create or replace function notifyq.table_sizes()
  returns setof messages.figure language sql stable security definer
  set search_path = pg_catalog, pg_temp
  set jit = off
as $$
  with tables as materialized (
    select c.oid,
      case
        when p.relkind = 'p' or p.relname = 'event' then p.relname
        when c.relname in (
          'message', 'message_unlogged', 'event', 'dedup', 'redrive', 'relay_receipt', 'load_row'
        ) then c.relname
        else 'others'
      end as subject,
      pg_table_size(c.oid) as bytes, pg_indexes_size(c.oid) as index_bytes,
      greatest(c.reltuples, 0) as rows, c.relpages::bigint * 8192 as heap_bytes,
      coalesce(p.relkind = 'p', false) as is_part
    from pg_class as c
    left join pg_inherits as i on i.inhrelid = c.oid
    left join pg_class as p on p.oid = i.inhparent
    where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) and c.relkind = 'r'
  ), sums as materialized (
    select t.subject, sum(t.bytes) as bytes, sum(t.index_bytes) as index_bytes,
      sum(s.n_live_tup) as live, sum(s.n_dead_tup) as dead,
      min(greatest(s.last_vacuum, s.last_autovacuum)) filter (where not t.is_part) as vacuumed_at,
      min(greatest(s.last_analyze, s.last_autoanalyze)) filter (where not t.is_part) as analyzed_at
    from tables as t
    left join pg_stat_all_tables as s on s.relid = t.oid
    group by t.subject
  )
  select f.name, s.subject, f.value::double precision, f.unit
  from sums as s
  cross join lateral (
    values
      ('table_bytes', s.bytes, 'bytes'), ('index_bytes', s.index_bytes, 'bytes'),
      ('live_rows', s.live, 'rows'), ('dead_rows', s.dead, 'rows'),
      ('vacuum_age', extract(epoch from clock_timestamp() - s.vacuumed_at), 'seconds'),
      ('analyze_age', extract(epoch from clock_timestamp() - s.analyzed_at), 'seconds')
  ) as f (name, value, unit)
  where f.value is not null
  union all
  -- The share of the table that its rows would not need, packed to its fill factor.
  select 'bloat', t.subject,
    greatest(0, 1 - t.rows * (28 + w.width) / 0.7 / t.heap_bytes)::double precision, 'ratio'
  from tables as t
  cross join lateral (
    select sum(s.avg_width * (1 - s.null_frac)) as width
    from pg_stats as s
    where s.schemaname in ('messages', 'notifyq') and s.tablename = t.subject and not s.inherited
  ) as w
  where t.subject in ('message', 'message_unlogged') and t.heap_bytes > 0 and w.width is not null
  union all
  select f.name, d.parent, f.value::double precision, 'days'
  from (
    select p.parent, count(*) as days,
      count(*) filter (where p.day > (clock_timestamp() at time zone 'UTC')::date) as future
    from notifyq.day_partition as p
    group by p.parent
  ) as d
  cross join lateral (values ('partitions', d.days), ('partitions_ahead', d.future))
    as f (name, value);
$$;
comment on function notifyq.table_sizes is
  'Figures of the tables that grow, the others added up as one: table_bytes with TOAST, '
  'index_bytes, live_rows and dead_rows as the server last counted them, vacuum_age and '
  'analyze_age in seconds (not of tables by day), bloat, the estimated share of a table that its '
  'rows do not need (0 to 1), and how many days of the archive and of the attempts there are '
  '(partitions) and lie in the future (partitions_ahead). Days, and segments of streams, are added '
  'up.';
