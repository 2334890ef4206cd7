-- Streams: create and change them.
--
-- owns:    nothing
-- writes:  messages.stream, messages.queue (table lock)
-- calls:   messages._invalid, messages._check_name, messages._check_positive,
--          messages._check_duration,
--          messages._open_segment, messages._spare_segment, messages._make_segment,
--          messages._cut_tick, messages._check_payload_policy, messages._type_name,
--          messages._schema_text
-- raises:  NQ003 invalid argument, NQ020 stream not found

create or replace function messages._stream(name text)
  returns messages.stream
  language plpgsql
  stable
as $$
declare
  v_stream messages.stream;
begin
  select s.* into v_stream from messages.stream as s where s.name = _stream.name;
  if not found then
    raise exception using
      errcode = 'NQ020',
      message = format('there is no stream %L', _stream.name),
      hint = format(
        'create it with `notifyq stream create %s` or select messages.create_stream(%L)',
        _stream.name, _stream.name
      );
  end if;
  return v_stream;
end;
$$;

create or replace function messages._check_stream(stream messages.stream)
  returns void
  language plpgsql
as $$
begin
  if stream.name is null then
    perform messages._invalid('the name of a stream must not be null');
  end if;
  perform messages._check_name('stream', stream.name);
  if stream.retention < interval '0' then
    perform messages._invalid(format('retention must not be negative: %s', stream.retention));
  end if;
  perform messages._check_duration('retention', stream.retention);
  perform messages._check_positive('max_lag', stream.max_lag);
  if stream.max_events < 1 then
    perform messages._invalid(format('max_events must be at least 1, not %s', stream.max_events));
  end if;
  if stream.max_bytes not between 4096 and 268435456 then
    perform messages._invalid(
      format('max_bytes must be between 4096 and 268435456, not %s', stream.max_bytes)
    );
  end if;
  if stream.bell not in ('auto', 'always', 'off') then
    perform messages._invalid(
      format('%L is no kind of bell', stream.bell), 'take auto, always or off'
    );
  end if;
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
  bell text default 'auto',
  max_bytes integer default 1048576
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream;
begin
  v_stream.name := create_stream.name;
  v_stream.retention := coalesce(create_stream.retention, interval '1 hour');
  v_stream.max_lag := create_stream.max_lag;
  v_stream.max_events := create_stream.max_events;
  v_stream.max_bytes := coalesce(create_stream.max_bytes, 1048576);
  v_stream.bell := coalesce(create_stream.bell, 'auto');
  perform messages._check_stream(v_stream);
  perform messages._check_payload_policy(
    messages._type_name(create_stream.payload_type), create_stream.payload_schema
  );
  -- Queues and streams are published into by the same function, so a name is one of the two. The
  -- lock makes create_queue() wait, which looks the other way round.
  lock table messages.queue in share mode;
  if exists (select from messages.queue as q where q.name = create_stream.name) then
    perform messages._invalid(
      format('%L is a queue', create_stream.name), 'take another name, or drop the queue'
    );
  end if;
  insert into messages.stream (
    name, retention, max_lag, max_events, max_bytes, bell, durable, payload_type, payload_schema,
    is_guarded
  )
  values (
    v_stream.name, v_stream.retention, v_stream.max_lag, v_stream.max_events, v_stream.max_bytes,
    v_stream.bell, coalesce(create_stream.durable, true),
    messages._type_name(create_stream.payload_type),
    messages._schema_text(create_stream.payload_schema),
    exists (select from messages.queue_grant as g where g.queue = v_stream.name)
  )
  on conflict on constraint stream_name_pk do nothing
  returning * into v_stream;
  if not found then
    return false;
  end if;
  perform messages._open_segment(
    v_stream,
    coalesce(messages._spare_segment(v_stream.durable), messages._make_segment(v_stream.durable))
  );
  perform messages._cut_tick(v_stream, false);
  return true;
end;
$$;
comment on function messages.create_stream(
  text, regtype, jsonb, boolean, interval, interval, bigint, text, integer
) is
  'Create a stream: what is published into it goes to every subscriber. payload_type and '
  'payload_schema (JSON Schema) say what a payload must be. durable => false: events are lost when '
  'the server crashes, and cost less. retention: how long events are kept for replay after all '
  'have passed them. max_lag and max_events bound how far behind a subscriber may be, before it is '
  'skipped ahead. bell: auto, always or off. max_bytes: of an event with its headers. False: it '
  'existed and was left alone. Raises NQ003 for the name of a queue.';

create or replace function messages.alter_stream(
  name text,
  payload_type regtype default null,
  payload_schema jsonb default null,
  retention interval default null,
  max_lag interval default null,
  max_events bigint default null,
  bell text default null,
  max_bytes integer default null
)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream := messages._stream(name);
begin
  v_stream.retention := coalesce(alter_stream.retention, v_stream.retention);
  v_stream.max_lag := coalesce(alter_stream.max_lag, v_stream.max_lag);
  v_stream.max_events := coalesce(alter_stream.max_events, v_stream.max_events);
  v_stream.max_bytes := coalesce(alter_stream.max_bytes, v_stream.max_bytes);
  v_stream.bell := coalesce(alter_stream.bell, v_stream.bell);
  -- Zero takes a bound away.
  v_stream.max_lag := nullif(v_stream.max_lag, interval '0');
  v_stream.max_events := nullif(v_stream.max_events, 0);
  perform messages._check_stream(v_stream);
  update messages.stream as s
  set retention = v_stream.retention, max_lag = v_stream.max_lag,
    max_events = v_stream.max_events, max_bytes = v_stream.max_bytes, bell = v_stream.bell,
    payload_type = case when alter_stream.payload_type is null then s.payload_type
      else messages._type_name(alter_stream.payload_type) end,
    payload_schema =
      messages._schema_text(coalesce(alter_stream.payload_schema, s.payload_schema::jsonb))
  where s.id = v_stream.id
  returning * into v_stream;
  perform messages._check_payload_policy(v_stream.payload_type, v_stream.payload_schema::jsonb);
end;
$$;
comment on function messages.alter_stream(
  text, regtype, jsonb, interval, interval, bigint, text, integer
) is
  'Change a stream; what is null stays. Zero as max_lag or max_events takes the bound away. '
  'Events that are there are not checked again. Raises NQ020 for an unknown stream.';

create or replace function messages.pause_stream(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream := messages._stream(name);
begin
  update messages.stream as s set paused = true where s.id = v_stream.id and not s.paused;
  return found;
end;
$$;
comment on function messages.pause_stream(text) is
  'Refuse publishing into the stream with NQ024; subscribers go on. False: it was so already. A '
  'session with session_replication_role = replica may publish all the same.';

create or replace function messages.resume_stream(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream := messages._stream(name);
begin
  update messages.stream as s set paused = false where s.id = v_stream.id and s.paused;
  return found;
end;
$$;
comment on function messages.resume_stream(text) is
  'Allow publishing into the stream again. False: it was not paused.';
