-- Windows: the events between two snapshots.
--
-- raises: NQ903 not adopted

-- All events of a window have ids larger than after_id. If that is far back, events of transactions
-- that were open at the first snapshot and are over in the second are found by transaction id. All
-- other transactions began in between, so their event ids are larger. Differences of snapshots as
-- in PgQ (M. Kreen, Skype, 2007); the bounds by id are new.

-- Segments that may hold events of a batch.
create or replace function notifyq.batch_segments(batch notifyq.batch)
  returns bigint[] language plpgsql stable
as $$
begin
  return (
    select coalesce(array_agg(s.id order by s.id), '{}')
    from notifyq.segment as s
    where s.stream = (
        select u.stream from messages.subscription as u where u.id = batch.subscription
      )
      and s.low < batch.upto_high
      and (s.sealed is null or notifyq.progress_of(s.sealed) > notifyq.progress_of(batch.seen))
  );
end;
$$;

-- Transactions that are open in `seen` and over in `upto`.
create or replace function notifyq.late_transactions(batch notifyq.batch)
  returns xid8[] language plpgsql immutable
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

-- The window after that of a batch, up to a later snapshot.
create or replace function notifyq.batch_window(
  last notifyq.batch, upto pg_snapshot, upto_low bigint, upto_high bigint
)
  returns notifyq.batch language plpgsql immutable
as $$
declare
  v_next notifyq.batch := last;
  v_late xid8[];
begin
  v_next.seen := last.upto;
  v_next.seen_low := last.upto_low;
  v_next.upto := batch_window.upto;
  v_next.upto_low := batch_window.upto_low;
  v_next.upto_high := batch_window.upto_high;
  v_next.last_id := batch_window.upto_high;
  v_next.is_last := true;
  v_late := notifyq.late_transactions(v_next);
  v_next.after_id := case
    when v_late = '{}' then last.upto_low
    -- All of them began in the last window.
    when v_late[1] >= pg_snapshot_xmax(last.seen) then last.seen_low
    else 0
  end;
  return v_next;
end;
$$;

-- The table of a segment. Inlined.
create or replace function notifyq.event_table(segment bigint)
  returns text language sql immutable parallel safe
as $$
  select 'event_' operator(pg_catalog.||) segment::pg_catalog.text;
$$;

-- The text of a query for the events between the two ids of a batch, by id, all or the first ones.
-- No index serves its conditions on the transaction id, on purpose: by id the rows come in order,
-- and by transaction id each batch would read all events that follow.
create or replace function notifyq.window_query(batch notifyq.batch, quantity integer default null)
  returns text language plpgsql stable
as $$
declare
  -- Reading so many rows is faster than planning the longer query.
  v_few constant integer := 1000;
  v_is_far boolean := batch.seen_low - batch.after_id > v_few;
  v_late xid8[] := case
    when v_is_far then notifyq.late_transactions(batch) else array[]::xid8[] end;
  v_after bigint := case when v_is_far then batch.seen_low else batch.after_id end;
  v_to bigint := least(batch.last_id, batch.upto_high);
  v_segments bigint[] := notifyq.batch_segments(batch);
begin
  if cardinality(v_segments) = 1 and v_late = '{}' then
    return format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from notifyq.%I as e where e.id > %L and e.id <= %L '
      'and pg_visible_in_snapshot(e.xid, %L) and not pg_visible_in_snapshot(e.xid, %L) '
      'order by e.id limit %L',
      notifyq.event_table(v_segments[1]), v_after, v_to, batch.upto, batch.seen, quantity
    );
  end if;
  return (
    select concat(
      string_agg(
        format(
          '(select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, '
          'null::text from %I.%I as e where e.id > %L and e.id <= %L '
          'and pg_visible_in_snapshot(e.xid, %L) and not pg_visible_in_snapshot(e.xid, %L) '
          'and e.xid <> all (%L::xid8[]) order by e.id limit %L) '
          'union all '
          '(select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, '
          'null::text from unnest(%L::xid8[]) as l (xid) join %I.%I as e '
          'on e.xid = l.xid and e.id > %L and e.id <= %L order by e.id limit %L)',
          t.schema, t.name, v_after, v_to, batch.upto, batch.seen, v_late, quantity, v_late,
          t.schema, t.name, batch.after_id, v_to, quantity
        ),
        ' union all '
      ),
      format(' order by id limit %L', quantity)
    )
    -- Without a segment: the empty partitioned table.
    from unnest(case when v_segments = '{}' then '{null}' else v_segments end) as s (id)
    cross join lateral (
      select case when s.id is null then 'messages' else 'notifyq' end,
        coalesce(notifyq.event_table(s.id), 'event')
    ) as t (schema, name)
  );
end;
$$;

-- Whether a window has events. If it spans many ids, transactions that still run are passed over:
-- their events are not read, however many they have written.
create or replace function notifyq.has_events(batch notifyq.batch)
  returns boolean language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  -- Reading so many rows is faster than planning the longer query.
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
    v_late := notifyq.late_transactions(batch);
    -- Transactions that began in the window have larger ids than those before.
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
  foreach v_segment in array notifyq.batch_segments(batch) loop
    v_table := notifyq.event_table(v_segment);
    if v_is_far then
      execute format(
        'select exists (select from notifyq.%I as e where e.xid = any (%L)) or exists ('
        '  select from unnest(%L::xid8[], %L::xid8[]) as s (before, until)'
        '  cross join lateral ('
        '    select from notifyq.%I as e where e.xid > s.before and e.xid < s.until limit 1'
        '  ) as e'
        ')',
        v_table, v_late, v_befores, v_untils, v_table
      )
      into v_is_there;
    else
      -- Backwards: the first ids may belong to the window before.
      execute format(
        'select true from notifyq.%I as e where e.id > %L and e.id <= %L '
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

-- How many of the next events of a window exist, up to quantity, and the id of the last one.
create or replace function notifyq.count_next_events(
  batch notifyq.batch, quantity integer, out events bigint, out last_id bigint
)
  language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
  execute concat(
    'select count(*), max(a.id) from (', notifyq.window_query(batch, quantity), ') as a'
  )
  into events, last_id;
end;
$$;

-- Most polls find nothing. They take no lock and no transaction id, and write nothing: that is the
-- cost of an idle subscription.

create or replace function notifyq.is_open(batch notifyq.batch)
  returns boolean language plpgsql stable
as $$
begin
  return batch.kind <> 'position'
    and not exists (select from notifyq.batch_end as e where e.batch = batch.id);
end;
$$;

-- Whether a member has a batch open, or may take one over.
create or replace function notifyq.may_hold(subscription bigint, member text, takeover interval)
  returns boolean language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
begin
  return exists (
    select
    from notifyq.batch as b
    where b.subscription = may_hold.subscription
      and (b.member = may_hold.member or b.opened_at < clock_timestamp() - may_hold.takeover)
      and b.kind <> 'position'
      and not exists (select from notifyq.batch_end as e where e.batch = b.id)
  );
end;
$$;

-- is_empty: there is nothing to hand out of what is committed now. Else next_batch() checks again
-- under the lock of the subscription. peeked: the last batch, if events follow it. As long as it is
-- still the last then, they need not be searched again: events do not go away.
create or replace function notifyq.peek_batch(
  subscription bigint,
  member text,
  takeover interval,
  out is_empty boolean,
  out peeked bigint
)
  language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_last notifyq.batch;
  v_horizon record;
begin
  is_empty := false;
  v_last := notifyq.last_batch(peek_batch.subscription);
  perform notifyq.check_position(v_last.upto);
  if (
      case when member is null then notifyq.is_open(v_last)
      else notifyq.may_hold(subscription, member, takeover) end
    )
    or exists (
      select
      from notifyq.event_retry as r
      where r.subscription = peek_batch.subscription
        and r.batch is null
        and r.due_at <= v_now
    )
  then
    return;
  end if;
  if not v_last.is_last then
    v_last.after_id := v_last.last_id;
    v_last.last_id := v_last.upto_high;
    if (notifyq.count_next_events(v_last, 1)).events > 0 then
      return;
    end if;
  end if;
  v_horizon := notifyq.current_horizon(v_last.upto_low, pg_snapshot_xmax(v_last.upto), null);
  if notifyq.progress_of(v_horizon.snapshot) <= notifyq.progress_of(v_last.upto) then
    is_empty := true;
    return;
  end if;
  if notifyq.has_events(
    notifyq.batch_window(v_last, v_horizon.snapshot, v_horizon.low, v_horizon.high)
  ) then
    peeked := v_last.id;
    return;
  end if;
  is_empty := not exists (
    select
    from messages.subscription as u
    join notifyq.tick as t on t.stream = u.stream and t.is_requested and t.id > v_last.tick
    where u.id = v_last.subscription
      and notifyq.progress_of(t.snapshot) > notifyq.progress_of(v_last.upto)
  );
end;
$$;
