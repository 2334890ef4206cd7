-- Windows: which events lie between two snapshots of a stream, found without reading the others.
--
-- All of them have larger ids than after_id. Where that is far, those of transactions that were
-- running when the first snapshot was taken, and are over in the second, are looked up by their
-- number. All others began in between, so that their ids are above those that were given before.
-- Differences of snapshots as in PgQ (M. Kreen, Skype, 2007); the cut by ids is our own.
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
as $$
begin
  if pg_snapshot_xmin(batch.seen) = pg_snapshot_xmax(batch.seen) then
    return array[]::xid8[];
  end if;
  return array(
    select x.xid from pg_snapshot_xip(batch.seen) as x (xid)
    where pg_visible_in_snapshot(x.xid, batch.upto)
  );
end;
$$;

-- The window behind the one of a batch, up to a later moment.
create or replace function messages._window(
  last messages.batch, upto pg_snapshot, upto_low bigint, upto_high bigint
)
  returns messages.batch
  language plpgsql
  immutable
as $$
declare
  v_next messages.batch := last;
  v_late xid8[];
begin
  v_next.seen := last.upto;
  v_next.seen_low := last.upto_low;
  v_next.upto := _window.upto;
  v_next.upto_low := _window.upto_low;
  v_next.upto_high := _window.upto_high;
  v_next.last_id := _window.upto_high;
  v_next.is_last := true;
  v_late := messages._late(v_next);
  v_next.after_id := case
    when v_late = '{}' then last.upto_low
    -- They have all begun in the last window.
    when v_late[1] >= pg_snapshot_xmax(last.seen) then last.seen_low
    else 0
  end;
  return v_next;
end;
$$;

-- The table of a segment. Inlined.
create or replace function messages._event_table(segment bigint)
  returns text
  language sql
  immutable
  parallel safe
as $$
  select 'event_' operator(pg_catalog.||) segment::pg_catalog.text;
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
as $$
declare
  -- So many rows are read sooner than the longer query is planned.
  v_few constant integer := 1000;
  v_is_far boolean := batch.seen_low - batch.after_id > v_few;
  v_late xid8[] := case when v_is_far then messages._late(batch) else array[]::xid8[] end;
  v_after bigint := case when v_is_far then batch.seen_low else batch.after_id end;
  v_to bigint := least(batch.last_id, batch.upto_high);
  v_segments bigint[] := messages._segments(batch);
begin
  if cardinality(v_segments) = 1 and v_late = '{}' then
    return format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from messages.%I as e where e.id > %L and e.id <= %L '
      'and pg_visible_in_snapshot(e.xid, %L) and not pg_visible_in_snapshot(e.xid, %L) '
      'order by e.id limit %L',
      messages._event_table(v_segments[1]), v_after, v_to, batch.upto, batch.seen, quantity
    );
  end if;
  return (
    select concat(
      string_agg(
        format(
          '(select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, '
          'null::text from messages.%I as e where e.id > %L and e.id <= %L '
          'and pg_visible_in_snapshot(e.xid, %L) and not pg_visible_in_snapshot(e.xid, %L) '
          'and e.xid <> all (%L::xid8[]) order by e.id limit %L) '
          'union all '
          '(select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, '
          'null::text from unnest(%L::xid8[]) as l (xid) join messages.%I as e '
          'on e.xid = l.xid and e.id > %L and e.id <= %L order by e.id limit %L)',
          t.name, v_after, v_to, batch.upto, batch.seen, v_late, quantity, v_late, t.name,
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
