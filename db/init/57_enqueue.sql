-- Enqueue: values of the type of a queue, into it and back. See 39_payload.sql.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._queue, messages._mismatch, messages._invalid, messages.publish
-- raises:  NQ001 queue not found, NQ003 invalid argument, 42804 value of another type

-- An error for a type that cannot be one of values here. To read the text of a value runs the
-- checks of the domains in its type, which here would have the rights of the owner of schema
-- messages: so they may call nothing but what PostgreSQL has itself.
create or replace function messages._check_type(type regtype)
  returns void
  language plpgsql
  stable
  set jit = off
as $$
begin
  if not exists (
    select from pg_type as t where t.oid = type and t.typtype <> 'p' and t.typisdefined
      and t.typnamespace <> pg_my_temp_schema()
  ) then
    perform messages._invalid(format('payload_type cannot be %s', type), 'give one for columns');
  end if;
  -- Most are built in, and done with.
  if type >= 16384::oid and exists (
    with recursive parts (oid) as (
      select _check_type.type::oid
      union
      select x.part
      from parts as p
      join pg_type as t on t.oid = p.oid
      cross join lateral (
        select u.part from unnest(array[t.typelem, t.typbasetype]) as u (part)
        union all
        select a.atttypid from pg_attribute as a
        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        union all
        select r.rngsubtype from pg_range as r where t.oid in (r.rngtypid, r.rngmultitypid)
      ) as x (part)
      where x.part <> 0
    )
    select from parts as p
    join pg_constraint as k on k.contypid = p.oid
    join pg_depend as d on d.classid = 'pg_constraint'::regclass and d.objid = k.oid
    where d.refclassid in ('pg_proc'::regclass, 'pg_operator'::regclass)
  ) then
    perform messages._invalid(
      format('payload_type cannot be %s: a domain of it has a check that calls a function', type),
      'make the check without one, or ask for it in the handler'
    );
  end if;
end;
$$;

-- The name under which a queue keeps a type: these functions all have one search path.
create or replace function messages._type_name(type regtype)
  returns text
  language plpgsql
  stable
as $$
begin
  if type <> 0 then
    perform messages._check_type(type);
  end if;
  return nullif(type::text, '-');
end;
$$;

create or replace function messages._payload_type(name text)
  returns text
  language plpgsql
  stable
as $$
declare
  v_type text;
begin
  select s.payload_type into v_type from messages.stream as s where s.name = _payload_type.name;
  if not found then
    v_type := (messages._queue(name)).payload_type;
  end if;
  if v_type is null then
    perform messages._invalid(format('%L has no payload_type', name), 'use messages.publish()');
  end if;
  return v_type;
end;
$$;

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
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set datestyle = 'ISO, YMD'
  set intervalstyle = 'postgres'
  set extra_float_digits = 1
  set bytea_output = 'hex'
  set lc_monetary = 'C'
  set timezone = 'UTC'
as $$
declare
  v_type text := messages._payload_type(enqueue.queue);
  v_given text := pg_typeof(enqueue.value)::text;
begin
  if v_given <> v_type then
    perform messages._mismatch(enqueue.queue, v_type, v_given, null);
  end if;
  return messages.publish(
    enqueue.queue,
    -- A row of nulls is null, but no null; and format() calls the output function, where a cast to
    -- text is another function for some types.
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
  'gives back exactly this value. The other arguments are those of publish(). Raises 42804 where '
  'the value is of another type, NQ001 for an unknown queue, and NQ003 for one without a type.';

-- Also what a literal of no type comes to.
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
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_type text := messages._payload_type(enqueue.queue);
begin
  if enqueue.value is not null and not exists (
    select from pg_type as t where t.oid = v_type::regtype and t.typcategory = 'S'
  ) then
    perform messages._mismatch(enqueue.queue, v_type, 'text', null);
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
  'As for any type, for texts: of a queue of type text, varchar, or another type of strings.';

create or replace function messages.value_of(message jsonb, type anyelement)
  returns anyelement
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set datestyle = 'ISO, YMD'
  set intervalstyle = 'postgres'
  set extra_float_digits = 1
  set bytea_output = 'hex'
  set lc_monetary = 'C'
  set timezone = 'UTC'
  set xmloption = 'content'
as $$
declare
  v_schema name;
  v_name name;
  v_is_row boolean;
  -- A variable of its own would be checked as a domain before anything else.
  v_value alias for $0;
begin
  if message is null or jsonb_typeof(message) = 'null' then
    return null;
  end if;
  if jsonb_typeof(message) <> 'string' then
    raise datatype_mismatch using
      message = format('a JSON %s is no value of a typed queue', jsonb_typeof(message)),
      hint = 'such a value is the text of a JSON string, as messages.enqueue() publishes it';
  end if;
  perform messages._check_type(pg_typeof(value_of.type));
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
  'The value that enqueue() published as this message, exactly; type is a null of its type, as in '
  'null::int4range. Raises 42804 for JSON that is no such value, else the error of the type.';
