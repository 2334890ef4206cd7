-- List: what the archive holds.
--
-- raises: NQ003 invalid argument

-- No time is negative, also where a clock was set back. Null: the message was never claimed.
create or replace view notifyq.timed_message as
  select a.*,
    case
      when a.locked_at is not null then greatest(
        interval '0', a.locked_at - greatest(a.created_at, nullif(a.available_at, 'infinity'))
      )
    end as wait,
    case
      when a.locked_at is not null then greatest(interval '0', a.archived_at - a.locked_at)
    end as run
  from messages.message_archive as a;
comment on view notifyq.timed_message is
  'Finished messages, with the time from when they could be claimed to the last lock (wait), and '
  'from there to their end (run).';

create or replace function notifyq.archive_names()
  returns text[] language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select notifyq.readable_names(null);
$$;
comment on function notifyq.archive_names is
  'The queues and streams whose archive the caller may read; null: all.';

create or replace view notifyq.readable_archive with (security_barrier) as
  select a.*
  from messages.message_archive as a
  where (a.queue = any ((select notifyq.archive_names())::text[])) is not false;
comment on view notifyq.readable_archive is 'The archive, as far as the caller may read it.';

create or replace function notifyq.archive_extent(
  since timestamptz default null,
  until timestamptz default null
)
  returns setof date language sql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
  select d.day
  from (
    select p.day from notifyq.day_partition as p where p.parent = 'message_archive'
    union
    select a.archived_at::date
    from notifyq.message_archive_default as a
    cross join notifyq.readable_names(null) as r (names)
    where r.names is null or a.queue = any (r.names)
  ) as d
  where (archive_extent.since is null or d.day + 1 > archive_extent.since)
    and (archive_extent.until is null or d.day < archive_extent.until)
  order by d.day;
$$;
comment on function notifyq.archive_extent is
  'The days, in UTC, that may have messages archived from since on and before until: those with a '
  'partition, and those of messages in the default one.';

create or replace function messages.archive_list(
  queue text default null,
  status messages.message_status default null,
  quantity integer default 100,
  since timestamptz default null
)
  returns setof messages.message_archive language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_since timestamptz := coalesce(since, '-infinity'::timestamptz);
  v_readable text[] := notifyq.readable_names(queue);
begin
  perform notifyq.check_quantity(archive_list.quantity, 100000);
  if status <> 'success' and archive_list.queue is not null then
    return query
    select a.*
    from notifyq.dead_rows(
      queue, status, null, v_since, true, null, archive_list.quantity, 0
    ) as a;
    return;
  elsif status <> 'success' then
    return query
    select a.*
    from messages.message_archive as a
    where a.status <> 'success'
      and a.status = archive_list.status
      and a.archived_at >= v_since
      and (v_readable is null or a.queue = any (v_readable))
    order by a.archived_at desc, a.id desc
    limit archive_list.quantity;
    return;
  end if;
  -- The latest of each queue, by the index of queues: no index has all queues by time.
  return query
  select f.*
  from unnest(
    case when archive_list.queue is null then coalesce(v_readable, notifyq.archived_queues())
      else array[archive_list.queue] end
  ) as q (name)
  cross join lateral (
    select a.*
    from messages.message_archive as a
    where a.queue = q.name
      and (archive_list.status is null or a.status = archive_list.status)
      and a.archived_at >= v_since
    order by a.archived_at desc, a.id desc
    limit archive_list.quantity
  ) as f
  order by f.archived_at desc, f.id desc
  limit archive_list.quantity;
end;
$$;
comment on function messages.archive_list is
  'Finished messages, the latest first: of one queue (null: all), with one status (null: any), '
  'archived since then (null: at any time).';
