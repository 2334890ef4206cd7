-- Workers: who works here, what each holds, and who is gone.
--
-- owns:    nothing
-- writes:  messages.worker
-- calls:   messages._check_quantity, messages._invalid
-- raises:  NQ003 invalid argument

create or replace function messages.note_worker(
  worker text,
  queues text[] default '{}',
  streams text[] default '{}',
  concurrency integer default null,
  running integer default 0,
  is_stopping boolean default false,
  host text default null,
  pid integer default null,
  version text default null
)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if coalesce(array_ndims(queues), 1) > 1 or coalesce(array_ndims(streams), 1) > 1
    or array_position(array_cat(queues, streams), null) is not null
  then
    perform messages._invalid('queues and streams must be lists of names');
  end if;
  insert into messages.worker as w (
    name, started_at, session_pid, pid, concurrency, running, is_stopping, host, version, queues,
    streams
  )
  values (
    note_worker.worker, clock_timestamp(), pg_backend_pid(), note_worker.pid,
    note_worker.concurrency, note_worker.running, note_worker.is_stopping, note_worker.host,
    note_worker.version, note_worker.queues, note_worker.streams
  )
  on conflict on constraint worker_name_pk do update set
    seen_at = clock_timestamp(), session_pid = excluded.session_pid, pid = excluded.pid,
    concurrency = excluded.concurrency, running = excluded.running,
    is_stopping = excluded.is_stopping, host = excluded.host, version = excluded.version,
    queues = excluded.queues, streams = excluded.streams;
end;
$$;
comment on function messages.note_worker(
  text, text[], text[], integer, integer, boolean, text, integer, text
) is
  'Say that a worker is there, what it serves and how many messages it handles now: each worker '
  'does about every ten seconds. Nothing goes by it but what messages.workers() shows.';

create or replace function messages.forget_worker(worker text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  delete from messages.worker as w where w.name = forget_worker.worker;
  return found;
end;
$$;
comment on function messages.forget_worker(text) is
  'Say that a worker has ended. False: it was not known.';

-- Workers that have not ended, and do not come any more.
create or replace function messages._forget_workers(quantity integer)
  returns integer
  language plpgsql
as $$
declare
  v_forgotten integer;
begin
  with gone as (
    delete from messages.worker as w
    where w.name in (
      select o.name from messages.worker as o
      where o.seen_at < clock_timestamp() - interval '1 hour'
      order by o.name
      limit quantity
      for update skip locked
    )
    returning w.name
  )
  select count(*)::integer into v_forgotten from gone;
  return v_forgotten;
end;
$$;

create or replace function messages.workers(most integer default 20)
  returns setof messages.presence_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform messages._check_quantity(workers.most, 10000);
  return query
  with locks as materialized (
    select coalesce(m.locked_by, '') as name, m.lock_expires_at <= v_now as is_expired,
      row(m.id, m.queue, m.type, m.attempts, m.locked_at, m.lock_expires_at)
        ::messages.held_message as message,
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
    from messages.worker as w
    -- The number alone could be another session's by now.
    left join pg_stat_activity as a
      on a.pid = w.session_pid and a.datname = current_database()
      and a.application_name like 'notifyq%'
  )
  select coalesce(k.name, h.name),
    case
      when k.name is null then 'unknown'
      when not k.is_there then case when k.is_connected then 'silent' else 'gone' end
      when k.is_stopping then 'stopping'
      when k.running > 0 or h.held > h.expired then 'working'
      else 'idle'
    end,
    k.host, k.pid, k.version, k.concurrency, k.running, k.queues, k.streams, k.started_at,
    k.seen_at, k.session_pid, k.is_connected, coalesce(h.held, 0), coalesce(h.expired, 0),
    coalesce(h.messages, '{}')
  from known as k
  full join held as h on h.name = k.name
  order by 1;
end;
$$;
comment on function messages.workers(integer) is
  'Each worker that says it is there, or has messages locked, with what it holds: all of them '
  'counted, and up to most of them, the longest held first. Its state is working, idle, or '
  'stopping; silent, it has not come for 30 seconds although its session is there; gone, its '
  'session is not there either; or unknown, it only has messages locked, as clients that call the '
  'functions themselves do. One that is gone is forgotten after an hour.';
