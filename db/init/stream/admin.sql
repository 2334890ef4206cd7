-- Streams: create, alter, pause and drop them.
--
-- raises: NQ003 invalid argument, NQ020 stream not found

create or replace function notifyq.find_stream(name text)
  returns messages.stream language plpgsql stable
as $$
declare
  v_stream messages.stream;
begin
  select s.* into v_stream from messages.stream as s where s.name = find_stream.name;
  if not found then
    raise exception using
      errcode = 'NQ020',
      message = format('there is no stream %L', find_stream.name),
      hint = notifyq.near_names(find_stream.name) || format(
        'create it with `notifyq stream create %s` or select messages.create_stream(%L)',
        find_stream.name, find_stream.name
      );
  end if;
  return v_stream;
end;
$$;

create or replace function notifyq.check_stream(stream messages.stream)
  returns void language plpgsql
as $$
begin
  if stream.name is null then
    perform notifyq.raise_invalid('the name of a stream must not be null');
  end if;
  perform notifyq.check_name('stream', stream.name);
  if stream.retention < interval '0' then
    perform notifyq.raise_invalid(format('retention must not be negative: %s', stream.retention));
  end if;
  perform notifyq.check_duration('retention', stream.retention);
  perform notifyq.check_positive('max_lag', stream.max_lag);
  if stream.max_events < 1 then
    perform notifyq.raise_invalid(
      format('max_events must be at least 1, not %s', stream.max_events)
    );
  end if;
  perform notifyq.check_between('max_bytes', stream.max_bytes, 4096, 268435456);
  perform notifyq.check_choice('notify', stream.notify, '{auto,always,off}');
end;
$$;

create or replace function messages.create_stream(
  name text,
  payload_type regtype default null,
  payload_schema jsonb default null,
  durable boolean default true,
  retention interval default interval '1 hour',
  max_lag interval default null,
  max_events bigint default null,
  notify text default 'auto',
  max_bytes integer default 1048576,
  encrypted boolean default false
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream;
begin
  v_stream.name := create_stream.name;
  v_stream.retention := coalesce(create_stream.retention, interval '1 hour');
  v_stream.max_lag := nullif(create_stream.max_lag, interval '0');
  v_stream.max_events := nullif(create_stream.max_events, 0);
  v_stream.max_bytes := coalesce(create_stream.max_bytes, 1048576);
  v_stream.notify := coalesce(create_stream.notify, 'auto');
  perform notifyq.check_stream(v_stream);
  perform notifyq.check_payload_policy(
    notifyq.type_name(create_stream.payload_type), create_stream.payload_schema,
    coalesce(create_stream.encrypted, false)
  );
  -- publish() serves queues and streams, so a name is one of the two. The lock makes
  -- create_queue() wait, which checks the other way round.
  lock table messages.queue in share mode;
  if exists (select from messages.queue as q where q.name = create_stream.name) then
    perform notifyq.raise_invalid(
      format('%L is a queue', create_stream.name), 'use another name, or drop the queue'
    );
  end if;
  insert into messages.stream (
    name, retention, max_lag, max_events, max_bytes, notify, durable, payload_type, payload_schema,
    encrypted, is_guarded
  )
  values (
    v_stream.name, v_stream.retention, v_stream.max_lag, v_stream.max_events, v_stream.max_bytes,
    v_stream.notify, coalesce(create_stream.durable, true),
    notifyq.type_name(create_stream.payload_type),
    notifyq.schema_text(create_stream.payload_schema),
    coalesce(create_stream.encrypted, false),
    exists (select from messages.queue_grant as g where g.queue = v_stream.name)
  )
  on conflict on constraint stream_name_pk do nothing
  returning * into v_stream;
  if not found then
    return false;
  end if;
  perform notifyq.open_segment(
    v_stream,
    coalesce(notifyq.spare_segment(v_stream.durable), notifyq.make_segment(v_stream.durable))
  );
  perform notifyq.cut_tick(v_stream, false);
  return true;
end;
$$;
comment on function messages.create_stream(
  text, regtype, jsonb, boolean, interval, interval, bigint, text, integer, boolean
) is
  'Create a stream: every subscriber gets each event that is published into it. payload_type and '
  'payload_schema (JSON Schema) restrict payloads. durable => false: events cost less and are '
  'lost when the server crashes. retention: how long events are kept for replay after all '
  'subscribers have finished them. max_lag and max_events limit how far behind a subscriber may '
  'be before events are skipped for it. notify: auto, always or off. max_bytes: of an event with '
  'its headers. encrypted: programs encrypt payloads, and the database refuses plaintext; not with '
  'a type or schema, and for good. False: it existed and was not changed. Raises NQ003 for the '
  'name of a queue.';

create or replace function messages.alter_stream(
  name text,
  payload_type regtype default null,
  payload_schema jsonb default null,
  retention interval default null,
  max_lag interval default null,
  max_events bigint default null,
  notify text default null,
  max_bytes integer default null
)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream;
begin
  -- Locked before it is read: another call's change would be lost.
  perform from messages.stream as s where s.name = alter_stream.name for no key update;
  v_stream := notifyq.find_stream(name);
  v_stream.retention := coalesce(alter_stream.retention, v_stream.retention);
  v_stream.max_lag := coalesce(alter_stream.max_lag, v_stream.max_lag);
  v_stream.max_events := coalesce(alter_stream.max_events, v_stream.max_events);
  v_stream.max_bytes := coalesce(alter_stream.max_bytes, v_stream.max_bytes);
  v_stream.notify := coalesce(alter_stream.notify, v_stream.notify);
  -- Zero removes a limit.
  v_stream.max_lag := nullif(v_stream.max_lag, interval '0');
  v_stream.max_events := nullif(v_stream.max_events, 0);
  perform notifyq.check_stream(v_stream);
  if alter_stream.payload_type is not null then
    v_stream.payload_type := notifyq.type_name(alter_stream.payload_type);
  end if;
  v_stream.payload_schema :=
    notifyq.schema_text(coalesce(alter_stream.payload_schema, v_stream.payload_schema::jsonb));
  perform notifyq.check_payload_policy(
    v_stream.payload_type, v_stream.payload_schema::jsonb, v_stream.encrypted
  );
  update messages.stream as s
  set retention = v_stream.retention, max_lag = v_stream.max_lag,
    max_events = v_stream.max_events, max_bytes = v_stream.max_bytes, notify = v_stream.notify,
    payload_type = v_stream.payload_type, payload_schema = v_stream.payload_schema
  where s.id = v_stream.id;
end;
$$;
comment on function messages.alter_stream(
  text, regtype, jsonb, interval, interval, bigint, text, integer
) is
  'Change a stream; what is null stays. Zero as max_lag or max_events removes the limit. Existing '
  'events are not checked again. Raises NQ020 for an unknown stream.';

create or replace function messages.pause_stream(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream := notifyq.find_stream(name);
begin
  update messages.stream as s set paused = true where s.id = v_stream.id and not s.paused;
  return found;
end;
$$;
comment on function messages.pause_stream(text) is
  'Refuse publishing into the stream with NQ024; subscribers go on. False: it was paused already. '
  'A session with session_replication_role = replica may still publish.';

create or replace function messages.resume_stream(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream := notifyq.find_stream(name);
begin
  update messages.stream as s set paused = false where s.id = v_stream.id and s.paused;
  return found;
end;
$$;
comment on function messages.resume_stream(text) is
  'Allow publishing into the stream again. False: it was not paused.';

-- What is committed now. pg_current_snapshot() leaves out the own transaction, and counts it as
-- over if a later one has ended: no subscriber would then see what it publishes after that.
create or replace function notifyq.committed_snapshot()
  returns pg_snapshot language plpgsql stable
as $$
declare
  v_snapshot pg_snapshot := pg_current_snapshot();
  v_own xid8 := pg_current_xact_id_if_assigned();
begin
  if v_own is null or v_own >= pg_snapshot_xmax(v_snapshot) then
    return v_snapshot;
  end if;
  return concat(
    least(v_own::text::bigint, pg_snapshot_xmin(v_snapshot)::text::bigint), ':',
    pg_snapshot_xmax(v_snapshot), ':', (
      select string_agg(x.xid::text, ',' order by x.xid)
      from (select pg_snapshot_xip(v_snapshot) union select v_own) as x (xid)
    )
  )::pg_snapshot;
end;
$$;

-- The same snapshot, with all transaction ids below `until` as running.
create or replace function notifyq.snapshot_until(snapshot pg_snapshot, until xid8)
  returns pg_snapshot language plpgsql immutable
as $$
begin
  -- Most calls end here, and a statement costs several times as much.
  if (until > pg_snapshot_xmax(snapshot)) is not true then
    return snapshot;
  end if;
  -- The added ids are larger than those that run in the snapshot.
  return concat(
    pg_snapshot_xmin(snapshot), ':', until, ':',
    nullif(split_part(snapshot::text, ':', 3), '') || ',',
    array_to_string(
      array(
        select generate_series(
          pg_snapshot_xmax(snapshot)::text::bigint, until::text::bigint - 1
        )
      ), ','
    )
  )::pg_snapshot;
end;
$$;

-- How many transactions are over in a snapshot. Of two snapshots of one server the later one sees
-- all that the earlier one sees, so the larger number is the later snapshot. Inlined.
create or replace function notifyq.progress_of(snapshot pg_snapshot)
  returns bigint language sql immutable parallel safe
as $$
  -- The text is xmin:xmax:xip,...; parsing it costs less than a statement.
  select pg_catalog.pg_snapshot_xmax(snapshot)::pg_catalog.text::bigint operator(pg_catalog.-)
    pg_catalog.cardinality(
      pg_catalog.string_to_array(pg_catalog.split_part(snapshot::pg_catalog.text, ':', 3), ',')
    );
$$;

create or replace function notifyq.last_event_id()
  returns bigint language plpgsql stable
as $$
begin
  return (
    select case when s.is_called then s.last_value else 0 end from messages.event_id_seq as s
  );
end;
$$;

-- The last event id before this transaction has a transaction id: a transaction with a larger id
-- draws its event ids later. Null: it has an id already, or keeps an older snapshot.
create or replace function notifyq.fresh_low()
  returns bigint language plpgsql stable
as $$
begin
  if pg_current_xact_id_if_assigned() is null
    and current_setting('transaction_isolation') = 'read committed'
  then
    return notifyq.last_event_id();
  end if;
  return null;
end;
$$;

-- The snapshot of what is committed, with bounds of event ids: transactions at or above its xmax
-- have ids larger than low, and committed events have no id larger than high. The xmax of a
-- snapshot follows the last transaction that is over, so transactions with larger ids may already
-- run and have drawn event ids. They are added as running, up to the own transaction id. Without
-- fresh, known_low is returned with known_until, the xmax that it is valid for.
create or replace function notifyq.current_horizon(
  known_low bigint,
  known_until xid8,
  fresh bigint,
  out low bigint,
  out snapshot pg_snapshot,
  out high bigint
)
  language plpgsql stable
as $$
declare
  v_until xid8 := known_until;
begin
  low := known_low;
  if fresh is not null then
    low := greatest(fresh, known_low);
    v_until := greatest(known_until, pg_current_xact_id());
  end if;
  snapshot := notifyq.snapshot_until(notifyq.committed_snapshot(), v_until);
  high := notifyq.last_event_id();
end;
$$;
