-- Ahead: whether something is in a window, how much, and where a part of it ends.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._late, messages._segments, messages._event_table, messages._window_query
-- raises:  nothing

-- Whether a window has events. Where many ids were given, numbers of transactions that still run
-- are passed over: however much one of those has written, it is not looked at.
create or replace function messages._is_ahead(batch messages.batch)
  returns boolean
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  -- So many rows are read sooner than the longer query is planned.
  v_few constant integer := 1000;
  v_is_far boolean := batch.upto_high - batch.after_id > v_few;
  v_late xid8[];
  v_before xid8;
  v_befores xid8[];
  v_untils xid8[];
  v_running xid8[];
  v_segment bigint;
  v_table text;
  v_is_there boolean := false;
begin
  if batch.upto_high <= batch.after_id then
    return false;
  end if;
  if v_is_far then
    v_late := messages._late(batch);
    -- Those that began in the window have larger ids than any that was given before it.
    if batch.upto_high > batch.seen_low then
      v_before := (pg_snapshot_xmax(batch.seen)::text::bigint - 1)::text::xid8;
      v_running := array(
        select x.xid from pg_snapshot_xip(batch.upto) as x (xid)
        where x.xid > v_before
        order by x.xid
      );
      v_befores := v_before || v_running;
      v_untils := v_running || pg_snapshot_xmax(batch.upto);
    end if;
  end if;
  foreach v_segment in array messages._segments(batch) loop
    v_table := messages._event_table(v_segment);
    if v_is_far then
      execute format(
        'select exists (select from messages.%I as e where e.xid = any (%L)) or exists ('
        '  select from unnest(%L::xid8[], %L::xid8[]) as s (before, until)'
        '  cross join lateral ('
        '    select from messages.%I as e where e.xid > s.before and e.xid < s.until limit 1'
        '  ) as e'
        ')',
        v_table, v_late, v_befores, v_untils, v_table
      )
      into v_is_there;
    else
      -- From the end: the start may be that of the window before it.
      execute format(
        'select true from messages.%I as e where e.id > %L and e.id <= %L '
        'and pg_visible_in_snapshot(e.xid, %L) and not pg_visible_in_snapshot(e.xid, %L) '
        'order by e.id desc limit 1',
        v_table, batch.after_id, batch.upto_high, batch.upto, batch.seen
      )
      into v_is_there;
    end if;
    exit when v_is_there;
  end loop;
  return coalesce(v_is_there, false);
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
