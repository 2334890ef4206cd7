-- Read batch: the events of a batch.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._open_batch, messages._window_query, messages._passed, messages._invalid
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ022 batch not open

-- The text of a query for what is in a batch. Whoever hands it out runs that himself: each function
-- that the events went through would store them once more.
create or replace function messages._batch_query(batch messages.batch)
  returns text
  language plpgsql
  stable
as $$
begin
  if batch.kind = 'retries' then
    return format(
      'select r.event_id, r.created_at, r.type, r.key, r.message, r.headers, '
      'nullif(r.retries, 0), r.reason '
      'from messages.event_retry as r '
      'where r.batch = %L and r.event_id > %L and r.event_id <= %L '
      'order by r.event_id',
      batch.id, batch.after_id, batch.last_id
    );
  end if;
  -- A transaction that keeps an older snapshot would see a part of it, and take it for the whole.
  if messages._passed(pg_current_snapshot()) < messages._passed(batch.upto) then
    perform messages._invalid(
      format('batch %s is younger than the snapshot of this transaction', batch.id),
      'read it in a new transaction'
    );
  end if;
  return messages._window_query(batch);
end;
$$;

-- Those that lie between its two ids.
create or replace function messages._events(batch messages.batch)
  returns setof messages.batch_event
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
begin
  return query execute messages._batch_query(batch);
end;
$$;

create or replace function messages.batch_events(batch bigint)
  returns setof messages.batch_event
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_batch messages.batch := messages._open_batch(batch);
begin
  if v_batch.kind = 'retries' then
    v_batch.after_id := 0;
    v_batch.last_id := 9223372036854775807;
  end if;
  return query execute messages._batch_query(v_batch);
end;
$$;
comment on function messages.batch_events(bigint) is
  'The events of an open batch by id, the same each time. retries is null for one that is seen for '
  'the first time, else how often it was retried, with the reason. Raises NQ022 for a batch that '
  'is finished or unknown.';
