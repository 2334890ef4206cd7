-- Sessions: workers, and sessions that block or delay messages.
--
-- raises: NQ003 invalid argument

create or replace function notifyq.worker_heartbeat(
  worker text,
  queues text[] default '{}',
  streams text[] default '{}',
  concurrency integer default null,
  running integer default 0,
  is_stopping boolean default false,
  host text default null,
  pid integer default null,
  version text default null,
  blocked_for interval default null
)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(array_ndims(queues), 1) > 1 or coalesce(array_ndims(streams), 1) > 1
    or array_position(array_cat(queues, streams), null) is not null
  then
    perform notifyq.raise_invalid('queues and streams must be lists of names');
  end if;
  if blocked_for is not null then
    perform notifyq.check_duration('blocked_for', blocked_for);
  end if;
  insert into notifyq.worker as w (
    name, started_at, blocked_at, session_pid, pid, concurrency, running, is_stopping, host,
    version, queues, streams
  )
  values (
    worker, clock_timestamp(), clock_timestamp() - blocked_for, pg_backend_pid(), pid, concurrency,
    running, is_stopping, host, version, queues, streams
  )
  on conflict on constraint worker_name_pk do update set
    seen_at = clock_timestamp(), blocked_at = excluded.blocked_at,
    session_pid = excluded.session_pid, pid = excluded.pid,
    concurrency = excluded.concurrency, running = excluded.running,
    is_stopping = excluded.is_stopping, host = excluded.host, version = excluded.version,
    queues = excluded.queues, streams = excluded.streams;
end;
$$;
comment on function notifyq.worker_heartbeat is
  'Report that a worker is running, what it serves and how many messages it handles now; each '
  'worker does so about every ten seconds. blocked_for: how long a handler has blocked its event '
  'loop; null: none does. Only messages.workers() uses it.';

create or replace function notifyq.remove_worker(worker text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  delete from notifyq.worker as w where w.name = remove_worker.worker;
  return found;
end;
$$;
comment on function notifyq.remove_worker is
  'Report that a worker has ended. False: it was not known.';

-- Removes workers that crashed: they reported no end.
create or replace function notifyq.forget_workers(quantity integer)
  returns integer language sql
as $$
  with forgotten as (
    delete from notifyq.worker as w
    where w.ctid = any (array(
      select o.ctid from notifyq.worker as o
      where o.seen_at < clock_timestamp() - interval '1 hour'
      order by o.name
      limit quantity
      for update skip locked
    ))
    returning w.name
  )
  select count(*)::integer from forgotten;
$$;

create or replace function messages.workers(most integer default 20)
  returns setof messages.presence_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform notifyq.check_quantity(workers.most, 10000);
  return query
  with locks as materialized (
    select coalesce(m.locked_by, '') as name, m.lock_expires_at <= v_now as is_expired,
      row(m.id, m.queue, m.type, m.attempts, m.locked_at, m.lock_expires_at)
        ::notifyq.held_message as message,
      row_number() over (partition by m.locked_by order by m.locked_at, m.id) as number
    from messages.message as m
    where m.state = 'locked'
  ), held as materialized (
    select l.name, count(*) as held, count(*) filter (where l.is_expired) as expired,
      array_agg(l.message order by l.number) filter (where l.number <= most) as messages
    from locks as l
    group by l.name
  ), known as materialized (
    select w.*, a.pid is not null as is_connected,
      w.seen_at > v_now - interval '30 seconds' as is_there
    from notifyq.worker as w
    -- Another session may have this process id by now.
    left join pg_stat_activity as a
      on a.pid = w.session_pid and a.datname = current_database()
      and a.application_name like 'notifyq%'
  )
  select coalesce(k.name, h.name),
    case
      when k.name is null then 'unknown'
      when not k.is_there then case when k.is_connected then 'unresponsive' else 'gone' end
      when k.blocked_at is not null then 'blocked'
      when k.is_stopping then 'stopping'
      when k.running > 0 or h.held > h.expired then 'working'
      else 'idle'
    end,
    k.host, k.pid, k.version, k.concurrency, k.running, k.queues, k.streams, k.started_at,
    k.seen_at, k.blocked_at, k.session_pid, k.is_connected, coalesce(h.held, 0),
    coalesce(h.expired, 0), coalesce(h.messages, '{}')
  from known as k
  full join held as h on h.name = k.name
  order by 1;
end;
$$;
comment on function messages.workers is
  'Each worker that sends heartbeats or has messages locked, with its locked messages: their '
  'number, and up to most of them, the longest held first. state is working, idle, or stopping; '
  'blocked: a handler blocks its event loop, since blocked_at, so that its other handlers and '
  'their timeouts wait; '
  'unresponsive: no heartbeat for 30 seconds, but its session is connected; gone: its session is '
  'not connected either; unknown: it has messages locked but sends no heartbeats, as clients that '
  'call the functions themselves do. One that is gone is forgotten after an hour.';

-- activity() runs with the rights of its caller: without pg_read_all_stats the server hides the
-- snapshots and queries of other users' sessions.

create or replace function messages.activity(
  most integer default 50,
  holding boolean default false
)
  returns setof messages.session_report language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  -- A block comment: a statement may follow. Commands and workers of notifyq have longer names than
  -- `notifyq`, the name of an application's transactions; their transactions end by themselves.
  v_own text := 'select state, query from pg_stat_activity where pid = %s /* of notifyq itself: '
    'do not end it */';
  v_standby text := 'select pg_terminate_backend(a.pid) from pg_stat_activity as a '
    'where a.pid <> pg_backend_pid() and a.backend_xmin is not null '
    'order by age(a.backend_xmin) desc limit 1 -- on the standby';
begin
  if holding then
    return query
    select h.cause, h.name, h.pid, h.user_name, h.application, h.state, h.since_at, h.xmin_age,
      null::text, null::integer[], h.query, h.advice
    from (
      select 'session' as cause, format('session %s', a.pid) as name, a.pid,
        a.usename::text as user_name, a.application_name as application, a.state,
        a.xact_start as since_at,
        -- A reader of another database holds no snapshot of this one. A writer does: until it ends,
        -- it is the xmin of each new snapshot here.
        case
          when a.datname = current_database() then age(a.backend_xmin)
          else age(a.backend_xid)
        end::bigint as xmin_age,
        left(a.query, 1000) as query,
        format(
          case
            when a.application_name ~ '^notifyq |^pg_cron$' then v_own
            else 'select pg_terminate_backend(%s)'
          end, a.pid
        ) as advice
      from pg_stat_activity as a
      where a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
      union all
      select 'prepared transaction', p.gid, null, p.owner::text, null, 'prepared', p.prepared,
        age(p.transaction)::bigint, null,
        format('rollback prepared %L -- or commit prepared', p.gid)
          || case
            when p.database <> current_database() then format(', in database %s', p.database)
            else ''
          end
      from pg_prepared_xacts as p
      union all
      select 'replication slot', s.slot_name::text, s.active_pid, null, s.plugin::text,
        case when s.active then 'active' else 'abandoned' end, null, age(s.xmin)::bigint, null,
        case
          when s.active then v_standby || ' that uses it'
          else format('select pg_drop_replication_slot(%L)', s.slot_name)
        end
      from pg_replication_slots as s
      union all
      select 'standby', coalesce(nullif(r.application_name, ''), r.pid::text), r.pid,
        r.usename::text, r.application_name, r.state, r.backend_start,
        age(r.backend_xmin)::bigint, null,
        v_standby || ', or alter system set hot_standby_feedback = off'
      from pg_stat_replication as r
    ) as h
    where h.xmin_age is not null
    order by h.xmin_age desc, h.since_at
    limit greatest(most, 0);
    return;
  end if;
  return query
  select
    case
      when a.wait_event_type = 'Lock' then 'lock'
      when a.state like 'idle in transaction%' then 'idle'
      else 'transaction'
    end,
    format('session %s', a.pid), a.pid, a.usename::text, a.application_name, a.state,
    case
      when a.wait_event_type = 'Lock' then coalesce(k.since_at, a.query_start)
      when a.state like 'idle in transaction%' then a.state_change
      else a.xact_start
    end,
    age(a.backend_xmin)::bigint,
    case when a.wait_event_type = 'Lock' then k.what end,
    case when a.wait_event_type = 'Lock' then pg_blocking_pids(a.pid) end,
    left(a.query, 1000), (
      -- For a session that waits for a lock: end those that hold it.
      select string_agg(
        format(
          case
            when b.application_name ~ '^notifyq |^pg_cron$' then v_own
            else 'select pg_terminate_backend(%s)'
          end, b.pid
        ), '; '
      )
      from pg_stat_activity as b
      where case
        when a.wait_event_type = 'Lock' then b.pid = any (pg_blocking_pids(a.pid))
        else b.pid = a.pid
      end
    )
  from pg_stat_activity as a
  left join lateral (
    select min(l.waitstart) as since_at,
      string_agg(
        concat_ws(' ', l.mode, 'of', l.locktype, (
          select c.relname from pg_class as c
          where c.oid = l.relation and l.database = a.datid
        )), ', '
      ) as what
    from pg_locks as l
    where l.pid = a.pid and not l.granted
  ) as k on a.wait_event_type = 'Lock'
  where a.datname = current_database()
    and a.pid <> pg_backend_pid()
    and a.backend_type = 'client backend'
    and a.xact_start is not null
  order by 7, a.pid
  limit greatest(most, 0);
end;
$$;
comment on function messages.activity is
  'Sessions of this database that are in a transaction, the longest first. cause: lock, it waits '
  'for a lock (waits_for) that the sessions blocked_by hold; idle, its transaction runs no '
  'statement; transaction, it runs one. since_at: when that began; advice: the statement that ends '
  'it, or the sessions it waits for, but none of notifyq itself. holding: what holds an old '
  'snapshot instead, the oldest first: sessions, prepared transactions, replication slots and '
  'standbys. Sessions of other users are reported to members of pg_read_all_stats only.';
