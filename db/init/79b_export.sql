-- Export: who writes a lake, and which parts of the archive lie between two snapshots.
--
-- An export is one transaction at `repeatable read`: it holds the lake, reads the window from the
-- place of the lake to its own snapshot, and calls commit_lake() last. What ends it before leaves
-- files that nobody knows, and the lake as it was.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._lake, messages._check_quantity
-- raises:  NQ003 invalid argument, NQ031 unknown lake, NQ032 lake in use

create or replace function messages.hold_lake(lake bigint)
  returns messages.lake
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_class constant integer := 1852926059;
  v_holder text;
begin
  -- No lock of a row: it would give this transaction, which may last for hours, a number, and the
  -- readers of streams would wait for that.
  perform messages._lake(hold_lake.lake);
  if not pg_try_advisory_xact_lock(v_class, hold_lake.lake::integer) then
    select format(' by %s, process %s', a.usename, a.pid) into v_holder
    from pg_locks as k
    join pg_stat_activity as a on a.pid = k.pid
    where k.locktype = 'advisory'
      and k.classid::bigint = v_class
      and k.objid::bigint = hold_lake.lake
      and k.objsubid = 2
      and k.granted
      and k.database = (select d.oid from pg_database as d where d.datname = current_database())
    limit 1;
    raise exception using
      errcode = 'NQ032',
      message = format('the lake is being written%s', v_holder),
      hint = 'wait until that has ended';
  end if;
  return messages._lake(hold_lake.lake);
end;
$$;
comment on function messages.hold_lake(bigint) is
  'Keep a lake from other writers until the end of this transaction, and return what is known of '
  'it. Raises NQ031 for an unknown lake, and NQ032 at once if another session has it.';

-- One day of the archive, as far as it lies in the window. One of which nothing was seen before is
-- read whole: nobody counts its rows. Of another, up to `most` rows are counted; of more it tells
-- in which blocks of the table they are. Rows come by time, so that those are its end.
create or replace function messages._archive_part(
  relation text,
  day date,
  low pg_snapshot,
  high pg_snapshot,
  most integer
)
  returns messages.archive_part
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
  set timezone = 'UTC'
as $$
declare
  v_late xid8[] := array(
    select x.xid from pg_snapshot_xip(low) as x (xid) where pg_visible_in_snapshot(x.xid, high)
  );
  v_part messages.archive_part;
  v_first xid8;
begin
  v_part.day := day;
  execute format('select a.xid from messages.%I as a order by a.xid limit 1', relation)
  into v_first;
  if v_first is null then
    v_part.rows := 0;
    return v_part;
  end if;
  if v_first >= pg_snapshot_xmax(low) then
    v_part.first_block := 0;
    v_part.until_block := pg_relation_size(format('messages.%I', relation)::regclass)
      / current_setting('block_size')::bigint;
    return v_part;
  end if;
  execute format(
    'select count(*) from ('
    '  (select from messages.%I as a where a.xid >= %L and a.xid < %L and a.xid <> all (%L) '
    '  and a.archived_at >= %L and a.archived_at < %L limit %L) '
    '  union all '
    '  (select from messages.%I as a where a.xid = any (%L) '
    '  and a.archived_at >= %L and a.archived_at < %L limit %L)'
    ') as f',
    relation, pg_snapshot_xmax(low), pg_snapshot_xmax(high), array(select pg_snapshot_xip(high)),
    day::timestamptz, (day + 1)::timestamptz, most::bigint + 1,
    relation, v_late, day::timestamptz, (day + 1)::timestamptz, most::bigint + 1
  ) into v_part.rows;
  if v_part.rows <= most then
    return v_part;
  end if;
  execute format(
    'select (min(a.ctid)::text::point)[0], (max(a.ctid)::text::point)[0] + 1 '
    'from messages.%I as a where a.xid >= %L and a.xid < %L or a.xid = any (%L)',
    relation, pg_snapshot_xmax(low), pg_snapshot_xmax(high), v_late
  ) into v_part.first_block, v_part.until_block;
  v_part.rows := null;
  return v_part;
end;
$$;

create or replace function messages.archive_parts(
  low pg_snapshot,
  high pg_snapshot,
  most integer default 50000
)
  returns setof messages.archive_part
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set timezone = 'UTC'
as $$
begin
  perform messages._check_quantity(archive_parts.most, 2147483647);
  return query
  select p.*
  from (
    select c.relname::text as name, to_date(right(c.relname, 8), 'YYYYMMDD') as day
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'messages.message_archive'::regclass
      and c.relname ~ '^message_archive_\d{8}$'
    union all
    select distinct 'message_archive_default', a.archived_at::date
    from messages.message_archive_default as a
  ) as d
  cross join lateral messages._archive_part(
    d.name, d.day, archive_parts.low, archive_parts.high, archive_parts.most
  ) as p
  where p.rows is null or p.rows > 0
  order by p.day;
end;
$$;
comment on function messages.archive_parts(pg_snapshot, pg_snapshot, integer) is
  'Which days of the archive may have rows that the snapshot high sees and low does not. Up to '
  'most rows of a day are counted; where there are more, or where low sees nothing of the day, '
  'rows is null, and they are in the blocks of its partition from first_block up to, and not '
  'including, until_block.';
