-- List: what the archive holds.
--
-- raises: NQ003 invalid argument

create or replace function notifyq.archive_extent(
  since timestamptz default null,
  until timestamptz default null
)
  returns setof date
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
begin
  return query
  select d.day
  from (
    select e.day from notifyq.archive_days() as e (day)
    union
    select a.archived_at::date from notifyq.message_archive_default as a
  ) as d
  where (archive_extent.since is null or d.day + 1 > archive_extent.since)
    and (archive_extent.until is null or d.day < archive_extent.until)
  order by d.day;
end;
$$;
comment on function notifyq.archive_extent(timestamptz, timestamptz) is
  'The days, in UTC, that the archive may have messages of, archived from since on and before '
  'until: those with a table, and those of messages that have none yet.';

-- Archive list: the latest finished messages, however many there are.

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
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_since timestamptz := coalesce(since, '-infinity'::timestamptz);
begin
  perform notifyq.check_quantity(archive_list.quantity, 100000);
  if status <> 'success' and archive_list.queue is not null then
    return query
    select a.*
    from notifyq.dead_rows(
      queue, status, null, v_since, true, archive_list.quantity, 0
    ) as a;
    return;
  elsif status <> 'success' then
    return query
    select a.*
    from messages.message_archive as a
    where a.status <> 'success'
      and a.status = archive_list.status
      and a.archived_at >= v_since
    order by a.archived_at desc, a.id desc
    limit archive_list.quantity;
    return;
  end if;
  -- The latest of each queue, of which there is an index: of all by time there is none.
  return query
  select f.*
  from unnest(
    case when archive_list.queue is null then notifyq.archived_queues()
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
comment on function messages.archive_list(
  text, messages.message_status, integer, timestamptz
) is
  'Finished messages, the latest first, not archived before since.';
