-- Prune: a day of the archive is dropped early, once a lake is proved to have all of its rows.
--
-- raises: NQ031 unknown lake

-- Whether a lake has all rows of a day; false also where its position is not valid.
create or replace function notifyq.is_exported(lake notifyq.lake, relation text)
  returns boolean language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_seen pg_snapshot;
  v_is_missing boolean;
begin
  if notifyq.lake_obstacle(lake) is not null then
    return false;
  end if;
  v_seen := split_part(lake.position, '/', 2)::pg_snapshot;
  execute format(
    'select exists (select from notifyq.%I as a where a.xid >= %L '
    'and not pg_visible_in_snapshot(a.xid, %L))',
    relation, pg_snapshot_xmin(v_seen), v_seen
  ) into v_is_missing;
  return not v_is_missing;
end;
$$;

-- A hash of all columns that the lake has. Instants are counted in microseconds: their text depends
-- on the session's settings.
create or replace function notifyq.archive_hashes(day date, out id bigint, out hash bigint)
  returns setof record language sql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
  select a.id, ('x' || left(md5(concat_ws(
    e'\x1f',
    a.id, coalesce(a.type, '~'), a.status, a.priority, a.attempts, coalesce(a.max_attempts, -1),
    coalesce(a.key, '~'), coalesce(a.dedup_key, '~'),
    (extract(epoch from a.created_at) * 1000000)::bigint,
    (extract(epoch from least(
      greatest(a.available_at, '0001-01-01 00:00+00'), '9999-12-31 23:59:59.999999+00'
    )) * 1000000)::bigint,
    coalesce((extract(epoch from a.locked_at) * 1000000)::bigint, -1),
    (extract(epoch from a.archived_at) * 1000000)::bigint,
    a.lock_token, a.xid, coalesce(a.handled_by, '~'), coalesce(a.subscriber, '~'),
    coalesce(a.event_id, -1), a.message, a.headers, coalesce(a.details, '~'),
    coalesce(a.result::text, '~'), coalesce(a.cancelled_by, '~'), a.queue
  )), 16))::bit(64)::bigint
  from messages.message_archive as a
  where a.archived_at >= archive_hashes.day::timestamptz
    and a.archived_at < (archive_hashes.day + 1)::timestamptz;
$$;
comment on function notifyq.archive_hashes is
  'The id of each message archived on a day, in UTC, and a hash of its columns, which can be '
  'computed from the files of a lake too.';

create or replace function notifyq.archive_days()
  returns setof date language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select d.day from notifyq.day_partition as d where d.parent = 'message_archive' order by d.day;
$$;
comment on function notifyq.archive_days is
  'The days, in UTC, that have a partition of the archive, also days to come.';

create or replace function notifyq.prune_obstacle(lake bigint, day date)
  returns text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
declare
  v_name text := notifyq.partition_name(day);
  v_location text;
begin
  perform notifyq.find_lake(prune_obstacle.lake);
  if to_regclass('notifyq.' || v_name) is null then
    return 'it has no partition';
  elsif day >= clock_timestamp()::date then
    return 'it is not over';
  end if;
  select l.location into v_location
  from notifyq.lake as l
  where not notifyq.is_exported(l, v_name)
  order by l.id <> prune_obstacle.lake, l.id
  limit 1;
  return 'some of it is still to be exported into ' || v_location;
end;
$$;
comment on function notifyq.prune_obstacle is
  'Why a day of the archive cannot be dropped yet: it is not over, or some of it is still to be '
  'exported into this lake or another one. Null: no obstacle.';

create or replace function notifyq.prune_day(
  lake bigint,
  day date,
  rows bigint,
  checksum numeric
)
  returns text language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '500ms' set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  v_name text := notifyq.partition_name(prune_day.day);
  v_obstacle text := notifyq.prune_obstacle(prune_day.lake, prune_day.day);
  v_rows bigint;
  v_checksum numeric;
begin
  if v_obstacle is not null then
    return v_obstacle;
  end if;
  -- Readers continue during the comparison. A past day has few writers: a delete of dead messages,
  -- and transactions that archived and have not committed yet.
  execute format('lock table notifyq.%I in share mode', v_name);
  v_obstacle := notifyq.prune_obstacle(prune_day.lake, prune_day.day);
  if v_obstacle is not null then
    return v_obstacle;
  end if;
  select count(*), coalesce(sum(h.hash), 0) into v_rows, v_checksum
  from notifyq.archive_hashes(prune_day.day) as h;
  if (v_rows, v_checksum) is distinct from (prune_day.rows, prune_day.checksum) then
    return 'the lake does not have the same rows';
  end if;
  if not notifyq.drop_day(v_name) then
    return 'it is in use';
  end if;
  insert into notifyq.lake_prune as p (lake, day, rows, checksum)
  values (prune_day.lake, prune_day.day, v_rows, v_checksum)
  on conflict on constraint lake_prune_lake_day_pk do update
  set rows = p.rows + excluded.rows, checksum = p.checksum + excluded.checksum,
    pruned_at = clock_timestamp();
  return null;
exception
  when lock_not_available or deadlock_detected then
    return 'it is in use';
end;
$$;
comment on function notifyq.prune_day is
  'Drop a day of the archive if it has exactly the rows of the lake: this number, and this sum of '
  'archive_hashes(). Returns null when it was dropped, else why not. Waits for locks for at most '
  'half a second. Raises NQ031 for an unknown lake.';
