-- Inspect: live messages and queues.
--
-- raises: NQ003 invalid argument, NQ903 not adopted, NQ904 foreign position

create or replace function messages.queue_info(queue text default null)
  returns setof messages.queue_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue, to_workers => true);
begin
  return query
  -- One pass for all queues: one for each would read the whole table each time.
  with counted as (
    select m.queue,
      count(*) filter (where m.state = 'waiting') as waiting,
      count(*) filter (where m.state = 'scheduled' and m.parked_at is null) as scheduled,
      count(m.parked_at) as parked,
      count(*) filter (where m.state = 'locked') as locked,
      count(*) filter (where m.state = 'locked' and m.lock_expires_at <= now()) as expired,
      count(m.blockers) as blocked,
      min(m.available_at) filter (where m.state = 'waiting') as oldest_waiting_at
    from messages.message as m
    where (queue_info.queue is null or m.queue = queue_info.queue)
      and (v_readable is null or m.queue = any (v_readable))
    group by m.queue
  )
  select q.name, notifyq.is_paused(q), coalesce(c.waiting, 0), coalesce(c.scheduled, 0),
    coalesce(c.locked, 0), coalesce(c.expired, 0), c.oldest_waiting_at,
    q.lock_duration, q.max_attempts, q.backoff, q.backoff_max, q.notify, q.retention, q.max_bytes,
    q.concurrency, q.key_concurrency, q.rate, q.rate_period, q.rate_burst, q.key_rate,
    q.key_rate_period, q.key_rate_burst, q.ordered, q.fair, q.capacity, q.overflow,
    coalesce(c.blocked, 0), q.durable, q.payload_type, q.payload_schema::jsonb,
    v._finished, v._dropped, q.retention_dead,
    case when notifyq.is_paused(q) then q.resumes_at end, coalesce(c.parked, 0), q.aging,
    q.encrypted
  from messages.queue as q
  left join counted as c on c.queue = q.name
  left join lateral (
    -- Not a condition of the join: that calls it for every queue.
    select u.* from notifyq.count_unlogged(q.name) as u where not q.durable offset 0
  ) as v on true
  where (queue_info.queue is null or q.name = queue_info.queue)
    and (v_readable is null or q.name = any (v_readable))
  order by q.name;
end;
$$;
comment on function messages.queue_info is
  'Policy of each queue and how many of its messages wait, are scheduled, are locked, are locked '
  'past the end of their lock (expired), wait for messages that have not ended (blocked), and are '
  'parked, which are not in scheduled.';

create or replace function messages.message_list(
  queue text default null,
  state messages.message_state default null,
  quantity integer default 100
)
  returns setof messages.message language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  perform notifyq.check_quantity(message_list.quantity, 10000);
  return query
  select m.*
  from messages.message as m
  where (message_list.queue is null or m.queue = message_list.queue)
    and (message_list.state is null or m.state = message_list.state)
    and (v_readable is null or m.queue = any (v_readable))
  order by m.id
  limit message_list.quantity;
end;
$$;
comment on function messages.message_list is 'Live messages by id, the oldest first.';

create or replace function messages.message_find(id bigint)
  returns setof messages.message language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_sees_all boolean := notifyq.sees_all();
begin
  return query
  select m.*
  from messages.message as m
  where m.id = message_find.id
    and (v_sees_all or notifyq.may_read(m.queue));
end;
$$;
comment on function messages.message_find is 'The live message with this id, or no row.';

create or replace function messages.archive_find(id bigint)
  returns setof messages.message_archive language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
as $$
declare
  v_sees_all boolean := notifyq.sees_all();
begin
  return query
  select a.*
  from messages.message_archive as a
  where a.id = archive_find.id
    and (v_sees_all or notifyq.may_read(a.queue));
end;
$$;
comment on function messages.archive_find is
  'The finished message with this id, or no row, also for a queue that the caller may not read.';

create or replace function messages.archive_summary(
  queue text default null,
  since timestamptz default null
)
  returns setof messages.summary_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
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
    and (v_readable is null or a.queue = any (v_readable))
  group by grouping sets ((a.queue, a.status), (a.queue))
  order by a.queue, a.status nulls last;
end;
$$;
comment on function messages.archive_summary is
  'For each queue and status, and for each queue as a whole (status null): how many messages were '
  'archived since then, and percentiles of wait and run time.';

create or replace function messages.dead_since(
  seen text default null,
  queue text default null,
  subscriber text default null
)
  returns setof messages.dead_message language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_seen pg_snapshot := notifyq.snapshot_since(seen);
  v_readable text[] := notifyq.readable_names(queue);
begin
  return query
  select d.*
  from messages.dead_message as d
  where d.xid >= pg_snapshot_xmin(v_seen)
    -- Rows that this transaction has archived are reported after its commit.
    and d.xid < pg_snapshot_xmax(pg_current_snapshot())
    and not pg_visible_in_snapshot(d.xid, v_seen)
    and (dead_since.queue is null or d.queue = dead_since.queue)
    and (dead_since.subscriber is null or d.subscriber = dead_since.subscriber)
    and (v_readable is null or d.queue = any (v_readable))
  order by d.archived_at, d.id;
end;
$$;
comment on function messages.dead_since is
  'Dead messages and events that were archived after the position seen, a text of '
  'current_position() (null: all), the oldest first. Read current_position() in the same statement '
  'and pass it as seen next time: nothing is missed and nothing comes twice, in any order of '
  'commits. Raises NQ903 in a database that was restored and not adopted, and NQ904 for a position '
  'of another server, or later than that of this one.';

create or replace function notifyq.queue_list(queue text default null)
  returns setof messages.queue language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select q.*
  from messages.queue as q
  cross join notifyq.readable_names(queue_list.queue) as r (names)
  where (queue_list.queue is null or q.name = queue_list.queue)
    and (r.names is null or q.name = any (r.names))
  order by q.name;
$$;
comment on function notifyq.queue_list is
  'Policy of each queue, or of one: what queue_info() reports without its counts, whose cost grows '
  'with the backlog.';
