-- Events since: what was published into a stream after a snapshot, for whoever only looks on.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._stream, messages._check_access, messages._event_table, messages._passed
-- raises:  NQ007 no right to the stream, NQ020 stream not found

create or replace function messages.events_since(stream text, seen pg_snapshot)
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
  v_stream messages.stream := messages._stream(stream);
  v_table text;
begin
  if exists (select from messages.queue_grant) then
    perform messages._check_access(v_stream.name, 'consume from');
  end if;
  for v_table in
    select messages._event_table(s.id)
    from messages.segment as s
    where s.stream = v_stream.id
      and (s.sealed is null or messages._passed(s.sealed) > messages._passed(events_since.seen))
    order by s.low, s.id
  loop
    return query execute format(
      'select e.id, e.created_at, e.type, e.key, e.message, e.headers, null::integer, null::text '
      'from messages.%I as e '
      'where e.xid >= %L and not pg_visible_in_snapshot(e.xid, %L) '
      'order by e.id',
      v_table, pg_snapshot_xmin(events_since.seen), events_since.seen
    );
  end loop;
end;
$$;
comment on function messages.events_since(text, pg_snapshot) is
  'Events whose publishing was not committed in a snapshot, as far as they are kept; no subscriber '
  'is needed, and none is moved. With the snapshot of snapshot_of(current_position()), and the '
  'position taken by the same statement for the next call, none is missed and none comes twice. '
  'Raises NQ020 for an unknown stream.';
