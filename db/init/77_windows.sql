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

-- The text of a query for the events between the two ids of a batch, by id, or for the first ones.
-- The condition on the number is none for an index: by id the rows come in the order that is asked
-- for, and by number all that lie ahead of a reader would be read for each batch.
create or replace function messages._window_query(
  batch messages.batch,
  quantity integer default null
)
  returns text
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_late xid8[] := messages._late(batch);
  v_after bigint := greatest(batch.after_id, batch.seen_low);
  v_to bigint := least(batch.last_id, batch.upto_high);
  v_from xid8 := pg_snapshot_xmax(batch.seen);
  v_until xid8 := pg_snapshot_xmax(batch.upto);
  v_running xid8[] := array(select pg_snapshot_xip(batch.upto));
  v_segments bigint[] := messages._segments(batch);
begin
  if cardinality(v_segments) = 1 and v_late = '{}' then
    return format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from messages.%I as e where e.id > %L and e.id <= %L '
      'and (e.xid >= %L and e.xid < %L and e.xid <> all (%L::xid8[])) is true '
      'order by e.id limit %L',
      messages._event_table(v_segments[1]), v_after, v_to, v_from, v_until, v_running, quantity
    );
  end if;
  return (
    select concat(
      string_agg(
        format(
          '(select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, '
          'null::text from messages.%I as e where e.id > %L and e.id <= %L '
          'and (e.xid >= %L and e.xid < %L and e.xid <> all (%L::xid8[])) is true '
          'order by e.id limit %L) '
          'union all '
          '(select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, '
          'null::text from unnest(%L::xid8[]) as l (xid) join messages.%I as e '
          'on e.xid = l.xid and e.id > %L and e.id <= %L order by e.id limit %L)',
          t.name, v_after, v_to, v_from, v_until, v_running, quantity, v_late, t.name,
          batch.after_id, v_to, quantity
        ),
        ' union all '
      ),
      format(' order by id limit %L', quantity)
    )
    -- Without a segment, the empty table that they are parts of.
    from unnest(case when v_segments = '{}' then '{null}' else v_segments end) as s (id)
    cross join lateral (select coalesce(messages._event_table(s.id), 'event')) as t (name)
  );
end;
$$;

-- Whether a window has events of transactions that ran when it began (late), and of those that
-- began in it (fresh). Numbers of transactions that still run are passed over: however much one of
-- those has written, it is not looked at. What cannot be is not looked up, and not planned.
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
  -- Those that began in the window have larger ids than any that was given before it.
  v_has_ids boolean := batch.upto_high > batch.seen_low;
  v_before xid8 := (pg_snapshot_xmax(batch.seen)::text::bigint - 1)::text::xid8;
  v_until xid8 := pg_snapshot_xmax(batch.upto);
  v_running xid8[];
  v_befores xid8[];
  v_untils xid8[];
  v_table text;
  v_is_there boolean;
begin
  late := false;
  fresh := false;
  if v_late = '{}' and not v_has_ids then
    return;
  end if;
  v_running := array(
    select x.xid from pg_snapshot_xip(batch.upto) as x (xid)
    where x.xid > v_before
    order by x.xid
  );
  v_befores := v_before || v_running;
  v_untils := v_running || v_until;
  for v_table in
    select messages._event_table(s.id) from unnest(messages._segments(batch)) as s (id)
  loop
    if v_late <> '{}' then
      execute format(
        'select exists (select from messages.%I as e where e.xid = any (%L))', v_table, v_late
      )
      into v_is_there;
      late := v_is_there;
      exit when late;
    end if;
    continue when fresh or not v_has_ids;
    if v_running = '{}' then
      execute format(
        'select exists (select from messages.%I as e where e.xid > %L and e.xid < %L)',
        v_table, v_before, v_until
      )
      into v_is_there;
    else
      execute format(
        'select exists ('
        '  select from unnest(%L::xid8[], %L::xid8[]) as s (before, until)'
        '  cross join lateral ('
        '    select from messages.%I as e where e.xid > s.before and e.xid < s.until limit 1'
        '  ) as e'
        ')', v_befores, v_untils, v_table
      )
      into v_is_there;
    end if;
    fresh := v_is_there;
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
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
begin
  execute concat(
    'select count(*), max(a.id) from (', messages._window_query(batch, quantity), ') as a'
  )
  into there, last_id;
end;
$$;
