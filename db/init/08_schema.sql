-- Schema: whether JSON satisfies a JSON Schema, as the standard of 2020-12 has it.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._number_error, messages._string_error, messages._array_error,
--          messages._object_error
-- raises:  nothing

-- Where a reference of a schema leads: a JSON pointer into the whole of it.
create or replace function messages._schema_at(root jsonb, reference text)
  returns jsonb
  language sql
  immutable
as $$
  select root #> coalesce(
    (
      select array_agg(replace(replace(p.part, '~1', '/'), '~0', '~') order by p.position)
      from unnest(string_to_array(substr(reference, 3), '/')) with ordinality
        as p (part, position)
    ),
    '{}'
  );
$$;


create or replace function messages._has_type(value jsonb, types jsonb)
  returns boolean
  language sql
  immutable
as $$
  select types ? jsonb_typeof(value)
    or jsonb_typeof(value) = 'number' and types ? 'integer' and value::numeric % 1 = 0;
$$;

-- The first thing that is wrong with a value, or null. root is the schema that references are of.
create or replace function messages._schema_error(
  value jsonb, schema jsonb, root jsonb, path text
)
  returns text
  language plpgsql
  immutable
as $$
declare
  v_part jsonb;
  v_count bigint;
  v_error text;
begin
  if jsonb_typeof(schema) <> 'object' then
    return case when schema = 'false' then path || ' is not allowed' end;
  end if;
  if schema ? 'type' and not messages._has_type(value, schema -> 'type') then
    return format('%s is no %s', path, array_to_string(
      array(select t.name from jsonb_path_query(schema, '$.type[*]') as q (item),
        lateral (select q.item #>> '{}') as t (name)), ' or '
    ));
  end if;
  if schema ? 'enum' and not exists (
    select from jsonb_array_elements(schema -> 'enum') as e (item) where e.item = value
  ) then
    return format('%s is none of %s', path, schema -> 'enum');
  end if;
  if schema -> 'const' <> value then
    return format('%s is not %s', path, schema -> 'const');
  end if;
  v_error := case jsonb_typeof(value)
    when 'number' then messages._number_error(value::numeric, schema, path)
    when 'string' then messages._string_error(value #>> '{}', schema, path)
    when 'array' then messages._array_error(value, schema, root, path)
    when 'object' then messages._object_error(value, schema, root, path)
  end;
  if v_error is null and schema ? '$ref' then
    v_error := messages._schema_error(
      value, messages._schema_at(root, schema ->> '$ref'), root, path
    );
  end if;
  if v_error is not null
    or not schema ?| '{allOf,anyOf,oneOf,not,if}'
  then
    return v_error;
  end if;
  for v_part in select a.part from jsonb_array_elements(schema -> 'allOf') as a (part) loop
    v_error := messages._schema_error(value, v_part, root, path);
    if v_error is not null then
      return v_error;
    end if;
  end loop;
  if schema ? 'anyOf' and not exists (
    select from jsonb_array_elements(schema -> 'anyOf') as a (part)
    where messages._schema_error(value, a.part, root, path) is null
  ) then
    return format('%s satisfies nothing of anyOf', path);
  end if;
  if schema ? 'oneOf' then
    v_count := (
      select count(*) from jsonb_array_elements(schema -> 'oneOf') as a (part)
      where messages._schema_error(value, a.part, root, path) is null
    );
    if v_count <> 1 then
      return format('%s satisfies %s parts of oneOf, not 1', path, v_count);
    end if;
  end if;
  if schema ? 'not' and messages._schema_error(value, schema -> 'not', root, path) is null then
    return format('%s satisfies what it must not', path);
  end if;
  if schema ? 'if' then
    return messages._schema_error(
      value,
      coalesce(
        schema -> case when messages._schema_error(value, schema -> 'if', root, path) is null
          then 'then' else 'else' end,
        'true'
      ),
      root, path
    );
  end if;
  return null;
end;
$$;
