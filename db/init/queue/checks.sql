-- Checks: limits and types of a payload.
--
-- raises: NQ003 invalid argument, NQ008 over a limit, NQ030 payload against the schema, 42804 value
-- of another type, NQ009 open transactions

-- What of a value is over the limits, or null.
create or replace function notifyq.excess_of(what text, value jsonb)
  returns text
  language plpgsql
  immutable
as $$
begin
  if jsonb_path_exists(value, '$.**{101}') then
    return format('the %s is nested more than 100 levels deep', what);
  end if;
  if exists (
    select from jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') as n (number)
    where octet_length(n.number::text) > 4000
  ) then
    return format('the %s has a number of more than 4000 characters', what);
  end if;
  return null;
end;
$$;

create or replace function notifyq.check_message_limits()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_message text := new.message::text;
  v_headers text := new.headers::text;
  v_bytes bigint := octet_length(v_message)::bigint + octet_length(v_headers)::bigint;
  v_most integer;
  v_excess text;
begin
  if new.max_attempts is not null then
    perform notifyq.check_attempts(new.max_attempts);
  end if;
  -- PostgreSQL keeps 1e5000 in a few bytes and writes it out in full; Python reads 4300 digits. A
  -- number that long has 255 digits in a row, as few texts do: only then is it worth while to look.
  if jsonb_path_exists(new.message, '$.**{101}')
    or octet_length(v_message) > 4000 and v_message ~ '[0-9]{255}'
  then
    v_excess := notifyq.excess_of('message', new.message);
  end if;
  if octet_length(v_headers) > 200 then
    v_excess := coalesce(v_excess, notifyq.excess_of('header', new.headers));
  end if;
  if octet_length(new.type) > 200 then
    v_excess := 'type has more than 200 bytes';
  elsif octet_length(new.dedup_key) > 1000 then
    v_excess := 'dedup_key has more than 1000 bytes';
  elsif octet_length(new.key) > 200 then
    v_excess := 'key has more than 200 bytes';
  end if;
  -- No queue allows less than 4096.
  if v_bytes > 4096 then
    v_most := (select q.max_bytes from messages.queue as q where q.name = new.queue);
    if v_bytes > v_most then
      v_excess := format(
        'the message has %s bytes, queue %L takes %s', v_bytes, left(new.queue, 200), v_most
      );
    end if;
  end if;
  if v_excess is not null then
    raise exception using
      errcode = 'NQ008',
      message = v_excess,
      hint = 'publish a reference to what is large, and as a string what is deep or long; '
        '`notifyq queues alter --max-bytes` raises the size';
  end if;
  return new;
end;
$$;

-- Each statement that publishes reads this condition anew, so a short one costs least: with one
-- call for all five a lone insert is a seventh quicker than with five. It only says that something
-- might be over a limit; nothing is, that has 200 characters in all. As text, since the size in the
-- table is small for 1e5000 and for whatever is compressed.
create or replace trigger bound
  before insert on messages.message
  for each row
  when (
    octet_length(concat(new.message, new.headers, new.type, new.dedup_key, new.key)) > 200
    or new.max_attempts is not null
  )
  execute function notifyq.check_message_limits();

-- Payload: queues whose messages are values of one type, or satisfy a schema.
--
-- A value is kept as its text in a JSON string, written and read under the same settings in every
-- session, so that it comes back exactly; null is the null of JSON.

-- What stands for no schema: all that is satisfied by everything.
create or replace function notifyq.schema_text(schema jsonb)
  returns text
  language sql
  immutable
as $$
  select case when schema not in ('null', 'true', '{}') then schema::text end;
$$;

create or replace function notifyq.mismatch(queue text, wanted text, given text, detail text)
  returns void
  language plpgsql
as $$
begin
  raise datatype_mismatch using
    message = format('%L has values of type %s, not %s', queue, wanted, given),
    detail = coalesce(detail, 'a value has exactly the type of its queue'),
    hint = format('publish with messages.enqueue(%L, value::%s)', queue, wanted);
end;
$$;

-- An error where a queue, or a stream, cannot have both, or not this schema.
create or replace function notifyq.check_payload_policy(type text, schema jsonb)
  returns void
  language plpgsql
as $$
begin
  if type is not null and schema is not null then
    perform notifyq.raise_invalid('payload_type and payload_schema exclude each other');
  end if;
  if schema is not null then
    perform notifyq.check_schema(schema, schema, '$');
  end if;
end;
$$;

-- An error for what the queue, or the stream, of this name cannot take.
create or replace function notifyq.check_payload(
  name text,
  type text,
  schema jsonb,
  message jsonb
)
  returns void
  language plpgsql
  set datestyle = 'ISO, YMD'
  set intervalstyle = 'postgres'
  set extra_float_digits = 1
  set bytea_output = 'hex'
  set lc_monetary = 'C'
  set timezone = 'UTC'
  set xmloption = 'content'
as $$
declare
  v_error text;
begin
  if type is not null and jsonb_typeof(message) = 'string' then
    begin
      perform notifyq.text_json(message #>> '{}', notifyq.find_type(type));
    exception
      when others then
        perform notifyq.mismatch(name, type, 'this text', sqlerrm);
    end;
  elsif type is not null and jsonb_typeof(message) <> 'null' then
    perform notifyq.mismatch(
      name, type, format('a JSON %s', jsonb_typeof(message)), 'a value is a JSON string'
    );
  end if;
  if schema is null then
    return;
  end if;
  begin
    v_error := notifyq.schema_error(message, schema, schema, '$');
  exception
    when statement_too_complex then
      v_error := 'the schema goes too deep for this message';
  end;
  if v_error is not null then
    raise exception using
      errcode = 'NQ030',
      message = format('%L does not take this message: %s', name, v_error),
      hint = 'messages.queue_info() has its schema';
  end if;
end;
$$;

create or replace function notifyq.guard_payload()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_payload(q.name, q.payload_type, q.payload_schema::jsonb, new.message)
  from messages.queue as q
  where q.name = new.queue;
  return new;
end;
$$;

-- A trigger of some queues alone: its condition names them.
create or replace function notifyq.rebuild_queue_trigger(
  relation regclass, name name, function name, names text[]
)
  returns void
  language plpgsql
  set lock_timeout = '2s'
as $$
declare
  v_present text := (
    select pg_get_triggerdef(g.oid)
    from pg_trigger as g
    where g.tgrelid = rebuild_queue_trigger.relation and g.tgname = rebuild_queue_trigger.name
  );
  v_schema name;
  v_table name;
begin
  select n.nspname, c.relname into v_schema, v_table
  from pg_class as c
  join pg_namespace as n on n.oid = c.relnamespace
  where c.oid = relation;
  if position(quote_literal(names::text) in v_present) > 0
    or names = '{}' and v_present is null
  then
    return;
  end if;
  if names = '{}' then
    execute format('drop trigger %I on %I.%I', name, v_schema, v_table);
    return;
  end if;
  execute format(
    'create or replace trigger %I before insert on %I.%I for each row '
    'when (new.queue = any (%L::text[])) execute function notifyq.%I()',
    name, v_schema, v_table, names, function
  );
exception
  when lock_not_available then
    perform notifyq.raise_busy('publish or claim');
end;
$$;

create or replace function notifyq.rebuild_payload_trigger()
  returns void
  language plpgsql
as $$
declare
  v_names text[] := array(
    select q.name from messages.queue as q
    where q.payload_type is not null or q.payload_schema is not null
    order by q.name
  );
begin
  perform notifyq.rebuild_queue_trigger('messages.message', 'payload', 'guard_payload', v_names);
  perform notifyq.rebuild_queue_trigger(
    'notifyq.message_volatile', 'payload', 'guard_payload', v_names
  );
end;
$$;

create or replace function messages.payload_schema(queue text)
  returns jsonb
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- A name is that of a queue or of a stream.
  return coalesce(
    (select q.payload_schema from messages.queue as q where q.name = payload_schema.queue),
    (select s.payload_schema from messages.stream as s where s.name = payload_schema.queue)
  )::jsonb;
end;
$$;
comment on function messages.payload_schema(text) is
  'The JSON Schema that messages of this queue, or events of this stream, must satisfy, for those '
  'who publish and check before they send; null where there is none.';
