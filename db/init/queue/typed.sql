-- Typed: values of the payload type of a queue, into it and back. See queue/checks.sql.
--
-- Converting between a value and text may run code of the owner of the type: checks of domains,
-- casts. Functions that convert therefore run with the rights of their caller, and only texts and
-- JSON are passed to functions with the rights of the owner.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, 42804 value of another type

-- The name by which a queue stores a type: all these functions have the same search path.
create or replace function notifyq.type_name(type regtype)
  returns text language plpgsql stable
as $$
begin
  if type <> 0 and not exists (
    select from pg_type as t where t.oid = type and t.typtype <> 'p' and t.typisdefined
      and t.typnamespace <> pg_my_temp_schema()
  ) then
    perform notifyq.raise_invalid(
      format('payload_type cannot be %s', type), 'give a type that a column can have'
    );
  end if;
  return nullif(type::text, '-');
end;
$$;

create or replace function messages.payload_type(queue text, given text default null)
  returns text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_type text;
begin
  -- A name belongs to a queue or to a stream.
  v_type := coalesce(
    (select q.payload_type from messages.queue as q where q.name = payload_type.queue),
    (select s.payload_type from messages.stream as s where s.name = payload_type.queue)
  );
  if given is not null and v_type is null then
    perform notifyq.find_queue(queue)
    where not exists (select from messages.stream as s where s.name = payload_type.queue);
    perform notifyq.raise_invalid(
      format('%L has no payload_type', queue), 'use messages.publish()'
    );
  elsif given <> v_type then
    perform notifyq.raise_mismatch(queue, v_type, given, null);
  end if;
  return v_type;
end;
$$;
comment on function messages.payload_type(text, text) is
  'The name of the type of messages of this queue, or events of this stream; null: it has none. '
  'With given: raises 42804 if that is another type, NQ003 if there is none, and NQ001 for an '
  'unknown queue.';

create or replace function messages.enqueue(
  queue text,
  value anyelement,
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null,
  dedup_key text default null,
  key text default null
)
  returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp
  set datestyle = 'ISO, YMD' set intervalstyle = 'postgres' set extra_float_digits = 1
  set bytea_output = 'hex' set lc_monetary = 'C' set timezone = 'UTC'
as $$
begin
  perform messages.payload_type(enqueue.queue, pg_typeof(enqueue.value)::text);
  return messages.publish(
    enqueue.queue,
    -- num_nulls(): a row of nulls is null, but not the null value. format() calls the output
    -- function, where a cast to text is another function for some types.
    case when num_nulls(enqueue.value) = 1 then 'null'
      else to_jsonb(format('%s', enqueue.value)) end,
    priority, delay, available_at, type, headers, dedup_key, key
  );
end;
$$;
comment on function messages.enqueue(
  text, anyelement, integer, interval, timestamptz, text, jsonb, text, text
) is
  'Publish one value into a queue or stream with a payload_type and return its id; value_of() '
  'returns exactly this value. The other arguments are those of publish(). Raises 42804 for a '
  'value of another type, NQ001 for an unknown queue, and NQ003 for a queue without a type.';

-- Also for untyped literals.
create or replace function messages.enqueue(
  queue text,
  value text,
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null,
  dedup_key text default null,
  key text default null
)
  returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_type text := messages.payload_type(enqueue.queue);
  v_found record;
begin
  select t.oid, t.typcategory as category, t.typname as name, n.nspname as namespace into v_found
  from pg_type as t
  join pg_namespace as n on n.oid = t.typnamespace
  where t.oid = to_regtype(v_type);
  if (
    v_found.category = 'S'
    or v_found.oid = '"char"'::regtype
      and enqueue.value::"char"::text is not distinct from enqueue.value
    or v_found.oid is not null and enqueue.value is null
  ) is not true then
    perform messages.payload_type(enqueue.queue, 'text');
  end if;
  -- Run the checks of a domain, as a cast of the caller would have done.
  if v_found.oid >= 16384::oid then
    execute format('select %L::%I.%I', enqueue.value, v_found.namespace, v_found.name);
  end if;
  return messages.publish(
    enqueue.queue, coalesce(to_jsonb(enqueue.value), 'null'),
    priority, delay, available_at, type, headers, dedup_key, key
  );
end;
$$;
comment on function messages.enqueue(
  text, text, integer, interval, timestamptz, text, jsonb, text, text
) is
  'As for any type, for texts: into queues of type text, varchar or another string type.';

-- Needed because "char" matches text and any type equally well, so a call would be ambiguous.
create or replace function messages.enqueue(
  queue text,
  value "char",
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null,
  dedup_key text default null,
  key text default null
)
  returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp
as $$
begin
  return messages.enqueue(
    queue, value::text, priority, delay, available_at, type, headers, dedup_key, key
  );
end;
$$;
comment on function messages.enqueue(
  text, "char", integer, interval, timestamptz, text, jsonb, text, text
) is
  'As for any type, for values of type "char".';

create or replace function messages.value_of(message jsonb, type anyelement)
  returns anyelement language plpgsql stable
  set search_path = pg_catalog, pg_temp
  set datestyle = 'ISO, YMD' set intervalstyle = 'postgres' set extra_float_digits = 1
  set bytea_output = 'hex' set lc_monetary = 'C' set timezone = 'UTC' set xmloption = 'content'
as $$
declare
  v_schema name;
  v_name name;
  v_is_row boolean;
  -- A declared variable would be checked as a domain first.
  v_value alias for $0;
begin
  if message is null or jsonb_typeof(message) = 'null' then
    return null;
  end if;
  if jsonb_typeof(message) <> 'string' then
    raise datatype_mismatch using
      message = format('a JSON %s is no value of a typed queue', jsonb_typeof(message)),
      hint = 'a value is the text in a JSON string, as messages.enqueue() publishes it';
  end if;
  select n.nspname, t.typname, t.typtype = 'c' into v_schema, v_name, v_is_row
  from pg_type as t
  join pg_namespace as n on n.oid = t.typnamespace
  where t.oid = pg_typeof(value_of.type);
  if v_is_row then
    execute format('select (%L::%I.%I).*', message #>> '{}', v_schema, v_name) into v_value;
  else
    execute format('select %L::%I.%I', message #>> '{}', v_schema, v_name) into v_value;
  end if;
  return v_value;
end;
$$;
comment on function messages.value_of(jsonb, anyelement) is
  'The value that enqueue() published as this message; type is a null of its type, as in '
  'null::int4range. Raises 42804 for JSON that is not such a value, else the error of the type.';
