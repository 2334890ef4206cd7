-- Checks: size limits of a message, types and schemas of a payload.
--
-- raises: NQ003 invalid argument, NQ008 over a limit, NQ030 payload against the schema, 42804 value
-- of another type

-- The limit that a value exceeds, as text, or null.
create or replace function notifyq.limit_error(what text, value jsonb)
  returns text language plpgsql immutable
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

-- The limit that a message or an event exceeds, whatever its queue or stream, as text, or null. The
-- texts are those of the values: each caller has them already.
create or replace function notifyq.content_error(
  message jsonb, message_text text, headers jsonb, headers_text text, type text, key text
)
  returns text language plpgsql immutable
as $$
declare
  v_error text;
begin
  if octet_length(type) > 200 then
    return 'type has more than 200 bytes';
  elsif octet_length(key) > 200 then
    return 'key has more than 200 bytes';
  end if;
  -- PostgreSQL stores 1e5000 in a few bytes and writes it in full; Python reads 4300 digits.
  -- Numbers that long have 255 digits in a row, as few texts do: the costly check is for those
  -- only.
  if jsonb_path_exists(message, '$.**{101}')
    or octet_length(message_text) > 4000 and message_text ~ '[0-9]{255}'
  then
    v_error := notifyq.limit_error('message', message);
  end if;
  if octet_length(headers_text) > 200 then
    v_error := coalesce(v_error, notifyq.limit_error('header', headers));
  end if;
  return v_error;
end;
$$;

create or replace function notifyq.raise_limit(error text, resize text)
  returns void language plpgsql
as $$
begin
  raise exception using
    errcode = 'NQ008',
    message = error,
    hint = concat(
      'publish a reference to large data, and a string instead of deep or long values; ', resize
    );
end;
$$;

-- Only for the few rows that the condition of the trigger below lets through: what a short message
-- may break belongs into check_new_payload().
create or replace function notifyq.check_message_limits()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_message text := new.message::text;
  v_headers text := new.headers::text;
  v_bytes bigint := octet_length(v_message)::bigint + octet_length(v_headers)::bigint;
  v_most integer;
  v_error text;
begin
  if new.max_attempts is not null then
    perform notifyq.check_between('max_attempts', new.max_attempts, 1, 1000);
  end if;
  if jsonb_typeof(new.headers) <> 'object' then
    perform notifyq.raise_invalid('headers must be a JSON object');
  end if;
  v_error := notifyq.content_error(
    new.message, v_message, new.headers, v_headers, new.type, new.key
  );
  if octet_length(new.dedup_key) > 1000 then
    v_error := 'dedup_key has more than 1000 bytes';
  end if;
  -- No queue has a smaller maximum.
  if v_bytes > 4096 then
    v_most := (select q.max_bytes from messages.queue as q where q.name = new.queue);
    if v_bytes > v_most then
      v_error := format(
        'the message has %s bytes, queue %L takes %s', v_bytes, left(new.queue, 200), v_most
      );
    end if;
  end if;
  if v_error is not null then
    perform notifyq.raise_limit(
      v_error,
      'raise the size with `notifyq queues alter --max-bytes` or messages.alter_queue()'
    );
  end if;
  return new;
end;
$$;

-- Each statement that publishes parses this condition anew, and a short one costs least: with one
-- call for all five columns a single insert is a seventh faster than with five calls. It only finds
-- rows that may exceed a limit: with up to 200 characters in all none does. It measures text, as
-- the stored size is small for 1e5000 and for compressed values. Only objects contain an object.
create or replace trigger bound
  before insert or update of message, headers on messages.message
  for each row
  when (
    octet_length(concat(new.message, new.headers, new.type, new.dedup_key, new.key)) > 200
    or new.max_attempts is not null
    or not new.headers @> '{}'
  )
  execute function notifyq.check_message_limits();

-- Payload: queues with a payload type or a JSON Schema.
--
-- A value is stored as its text in a JSON string. All sessions write and read it under the same
-- settings, and get exactly the same value back; null is the null of JSON.

-- Schemas that everything satisfies count as no schema.
create or replace function notifyq.schema_text(schema jsonb)
  returns text language sql immutable
as $$
  select case when schema not in ('null', 'true', '{}') then schema::text end;
$$;

create or replace function notifyq.raise_mismatch(queue text, wanted text, given text, detail text)
  returns void language plpgsql
as $$
begin
  raise datatype_mismatch using
    message = format('%L has values of type %s, not %s', queue, wanted, given),
    detail = coalesce(detail, 'a value has exactly the type of its queue'),
    hint = format('publish with messages.enqueue(%L, value::%s)', queue, wanted);
end;
$$;

-- Raises for a type and schema that a queue or stream cannot have.
create or replace function notifyq.check_payload_policy(
  type text, schema jsonb, encrypted boolean
)
  returns void language plpgsql
as $$
begin
  if type is not null and schema is not null then
    perform notifyq.raise_invalid('payload_type and payload_schema exclude each other');
  end if;
  if encrypted and num_nonnulls(type, schema) > 0 then
    perform notifyq.raise_invalid(
      'encrypted excludes payload_type and payload_schema',
      'the database cannot read encrypted payloads: check them in the handler'
    );
  end if;
  if schema is not null then
    perform notifyq.check_schema(schema, schema, '$');
  end if;
end;
$$;

-- Raises for a message that the queue or stream of this name cannot have.
create or replace function notifyq.check_payload(
  name text, type text, schema jsonb, encrypted boolean, message jsonb
)
  returns void language plpgsql
  set datestyle = 'ISO, YMD' set intervalstyle = 'postgres' set extra_float_digits = 1
  set bytea_output = 'hex' set lc_monetary = 'C' set timezone = 'UTC' set xmloption = 'content'
as $$
declare
  v_error text;
begin
  if encrypted then
    perform notifyq.check_envelope(name, 'payload', message);
    return;
  end if;
  if type is not null and jsonb_typeof(message) = 'string' then
    begin
      perform notifyq.text_json(message #>> '{}', notifyq.find_type(type));
    exception
      when others then
        perform notifyq.raise_mismatch(name, type, 'this text', sqlerrm);
    end;
  elsif type is not null and jsonb_typeof(message) <> 'null' then
    perform notifyq.raise_mismatch(
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
      v_error := 'the schema is too deeply nested for this message';
  end;
  if v_error is not null then
    raise exception using
      errcode = 'NQ030',
      message = format('%L does not take this message: %s', name, v_error),
      hint = 'messages.queue_info() has its schema';
  end if;
end;
$$;

create or replace function notifyq.check_new_payload()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_payload(
    q.name, q.payload_type, q.payload_schema::jsonb, q.encrypted, new.message
  )
  from messages.queue as q
  where q.name = new.queue;
  return new;
end;
$$;

create or replace function messages.payload_schema(queue text)
  returns jsonb language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- A name belongs to a queue or to a stream.
  return coalesce(
    (select q.payload_schema from messages.queue as q where q.name = payload_schema.queue),
    (select s.payload_schema from messages.stream as s where s.name = payload_schema.queue)
  )::jsonb;
end;
$$;
comment on function messages.payload_schema is
  'The JSON Schema that messages of this queue, or events of this stream, must satisfy, for '
  'publishers that check before they send; null: there is none.';
