-- Windows: which events lie between two snapshots of a stream, found without reading the others.
--
-- Of transactions that were running when the first snapshot was taken, and are over in the second,
-- the events are looked up by their number. All others began in between, so that their events have
-- ids above those that were given before the first snapshot. Differences of snapshots as in PgQ
-- (M. Kreen, Skype, 2007); the cut of a window by ids is our own.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._passed
-- raises:  nothing

-- The segments that hold, or may hold, events of a batch.
create or replace function messages._segments(batch messages.batch)
  returns bigint[]
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return (
    select coalesce(array_agg(s.id order by s.id), '{}')
    from messages.segment as s
    where s.stream = (
        select u.stream from messages.subscription as u where u.id = batch.subscription
      )
      and s.low < batch.upto_high
      and (s.sealed is null or messages._passed(s.sealed) > messages._passed(batch.seen))
  );
end;
$$;

-- Of transactions that `seen` saw running, and that `upto` sees over.
create or replace function messages._late(batch messages.batch)
  returns xid8[]
  language plpgsql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return array(
    select pg_snapshot_xip(batch.seen) except select pg_snapshot_xip(batch.upto)
  );
end;
$$;

-- The table of a segment.
create or replace function messages._event_table(segment bigint)
  returns text
  language plpgsql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return 'event_' || segment;
end;
$$;

-- The first ids of a batch's events that are in one segment. The condition on the number is none
-- for an index: by id the rows come in the order that is asked for, and by number all that lie
-- ahead of a reader would be read for each batch.
create or replace function messages._segment_ids(
  batch messages.batch,
  segment bigint,
  quantity integer
)
  returns setof bigint
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_table text := messages._event_table(segment);
begin
  return query execute format(
    '(select e.id from messages.%I as e where e.id > %L and e.id <= %L '
    'and (e.xid >= %L and e.xid < %L and e.xid <> all (%L::xid8[])) is true '
    'order by e.id limit %L) '
    'union all '
    '(select e.id from unnest(%L::xid8[]) as l (xid) join messages.%I as e '
    'on e.xid = l.xid and e.id > %L and e.id <= %L order by e.id limit %L)',
    v_table, greatest(batch.after_id, batch.seen_low), least(batch.last_id, batch.upto_high),
    pg_snapshot_xmax(batch.seen), pg_snapshot_xmax(batch.upto),
    array(select pg_snapshot_xip(batch.upto)), quantity, messages._late(batch), v_table,
    batch.after_id, least(batch.last_id, batch.upto_high), quantity
  );
end;
$$;

-- Whether a window has events of transactions that ran when it began (late), and of those that
-- began in it (fresh). Numbers of transactions that still run are passed over: however much one of
-- those has written, it is not looked at.
create or replace function messages._look_ahead(
  batch messages.batch,
  out late boolean,
  out fresh boolean
)
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_late xid8[] := messages._late(batch);
  v_running xid8[] := array(
    select x.xid from pg_snapshot_xip(batch.upto) as x (xid)
    where x.xid >= pg_snapshot_xmax(batch.seen)
    order by x.xid
  );
  v_before xid8 := (pg_snapshot_xmax(batch.seen)::text::bigint - 1)::text::xid8;
  v_befores xid8[] := v_before || v_running;
  v_untils xid8[] := v_running || pg_snapshot_xmax(batch.upto);
  v_table text;
  v_has_late boolean;
  v_has_fresh boolean;
begin
  late := false;
  fresh := false;
  for v_table in
    select messages._event_table(s.id) from unnest(messages._segments(batch)) as s (id)
  loop
    execute format(
      'select exists ('
      '  select from unnest(%L::xid8[]) as l (xid) join messages.%I as e on e.xid = l.xid'
      '), exists ('
      '  select from unnest(%L::xid8[], %L::xid8[]) as s (before, until)'
      '  cross join lateral ('
      '    select from messages.%I as e where e.xid > s.before and e.xid < s.until limit 1'
      '  ) as e'
      ')', v_late, v_table, v_befores, v_untils, v_table
    )
    into v_has_late, v_has_fresh;
    late := late or v_has_late;
    fresh := fresh or v_has_fresh;
    exit when late;
  end loop;
end;
$$;

-- How many of the next events of a window there are, up to quantity, and the id of the last.
create or replace function messages._ahead(
  batch messages.batch,
  quantity integer,
  out there bigint,
  out last_id bigint
)
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  select count(*), max(a.id)
  into there, last_id
  from (
    select i.id
    from unnest(messages._segments(batch)) as s (id)
    cross join lateral messages._segment_ids(batch, s.id, quantity) as i (id)
    order by i.id
    limit quantity
  ) as a;
end;
$$;
