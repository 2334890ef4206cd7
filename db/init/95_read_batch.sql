-- Read batch: the events of a batch.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._open_batch, messages._segments, messages._event_table, messages._late,
--          messages._passed, messages._invalid
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ022 batch not
--          open

-- The events of a batch that are in one segment, found as _segment_ids() finds them.
create or replace function messages._segment_events(batch messages.batch, segment bigint)
  returns setof messages.batch_event
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
  v_late xid8[] := messages._late(batch);
  v_to bigint := least(batch.last_id, batch.upto_high);
  v_after bigint := greatest(batch.after_id, batch.seen_low);
  v_running xid8[] := array(select pg_snapshot_xip(batch.upto));
begin
  if v_late = '{}' then
    return query execute format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from messages.%I as e where e.id > %L and e.id <= %L '
      'and (e.xid >= %L and e.xid < %L and e.xid <> all (%L::xid8[])) is true '
      'order by e.id',
      v_table, v_after, v_to, pg_snapshot_xmax(batch.seen), pg_snapshot_xmax(batch.upto), v_running
    );
    return;
  end if;
  return query execute format(
    'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
    'from messages.%I as e where e.id > %L and e.id <= %L '
    'and (e.xid >= %L and e.xid < %L and e.xid <> all (%L::xid8[])) is true '
    'union all '
    'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
    'from unnest(%L::xid8[]) as l (xid) join messages.%I as e '
    'on e.xid = l.xid and e.id > %L and e.id <= %L '
    'order by id',
    v_table, v_after, v_to, pg_snapshot_xmax(batch.seen), pg_snapshot_xmax(batch.upto), v_running,
    v_late, v_table, batch.after_id, v_to
  );
end;
$$;

-- Those that lie between its two ids.
create or replace function messages._events(batch messages.batch)
  returns setof messages.batch_event
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_segments bigint[];
begin
  if batch.kind = 'retries' then
    return query
    select r.event_id, r.created_at, r.type, r.key, r.message, r.headers, nullif(r.retries, 0),
      r.reason
    from messages.event_retry as r
    where r.batch = _events.batch.id
      and r.event_id > _events.batch.after_id
      and r.event_id <= _events.batch.last_id
    order by r.event_id;
    return;
  end if;
  -- A transaction that keeps an older snapshot would see a part of it, and take it for the whole.
  if messages._passed(pg_current_snapshot()) < messages._passed(batch.upto) then
    perform messages._invalid(
      format('batch %s is younger than the snapshot of this transaction', batch.id),
      'read it in a new transaction'
    );
  end if;
  v_segments := messages._segments(batch);
  if cardinality(v_segments) = 1 then
    return query select e.* from messages._segment_events(batch, v_segments[1]) as e;
  else
    return query
    select e.*
    from unnest(v_segments) as s (id)
    cross join lateral messages._segment_events(batch, s.id) as e
    order by e.id;
  end if;
end;
$$;

create or replace function messages.batch_events(batch bigint)
  returns setof messages.batch_event
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_batch messages.batch := messages._open_batch(batch);
begin
  if v_batch.kind = 'retries' then
    v_batch.after_id := 0;
    v_batch.last_id := 9223372036854775807;
  end if;
  return query select e.* from messages._events(v_batch) as e;
end;
$$;
comment on function messages.batch_events(bigint) is
  'The events of an open batch by id, the same each time. retries is null for one that is seen for '
  'the first time, else how often it was retried, with the reason. Raises NQ022 for a batch that '
  'is finished or unknown.';
