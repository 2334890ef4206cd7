-- JSON Schema: check payloads, by the standard of 2020-12, and check schemas.
--
-- Functions named _error return what is wrong, as a text that begins with its path, or null.
--
-- raises: NQ003 invalid argument

-- A pattern in the syntax of PostgreSQL: \b is a backspace there, and three stars at the beginning
-- are an option, where JavaScript has an error.
create or replace function notifyq.to_regex(pattern text)
  returns text language sql immutable
as $$
  select regexp_replace(
    regexp_replace(
      regexp_replace(pattern, '^[*]', '(*'),
      e'(?<!\\\\)((?:\\\\\\\\)*)\\\\b', e'\\1\\\\y', 'g'
    ),
    e'(?<!\\\\)((?:\\\\\\\\)*)\\\\B', e'\\1\\\\Y', 'g'
  );
$$;

create or replace function notifyq.number_error(value numeric, schema jsonb, path text)
  returns text language sql immutable
as $$
  select path || case
    when value < (schema ->> 'minimum')::numeric
      then ' is less than ' || (schema ->> 'minimum')
    when value > (schema ->> 'maximum')::numeric
      then ' is more than ' || (schema ->> 'maximum')
    when value <= (schema ->> 'exclusiveMinimum')::numeric
      then ' is not more than ' || (schema ->> 'exclusiveMinimum')
    when value >= (schema ->> 'exclusiveMaximum')::numeric
      then ' is not less than ' || (schema ->> 'exclusiveMaximum')
    when value % (schema ->> 'multipleOf')::numeric <> 0
      then ' is no multiple of ' || (schema ->> 'multipleOf')
  end;
$$;

create or replace function notifyq.string_error(value text, schema jsonb, path text)
  returns text language sql immutable
as $$
  select path || case
    when char_length(value) < (schema ->> 'minLength')::numeric
      then ' has less than ' || (schema ->> 'minLength') || ' characters'
    when char_length(value) > (schema ->> 'maxLength')::numeric
      then ' has more than ' || (schema ->> 'maxLength') || ' characters'
    when value collate "C" !~ notifyq.to_regex(schema ->> 'pattern')
      then ' does not match ' || (schema ->> 'pattern')
  end;
$$;

create or replace function notifyq.array_error(value jsonb, schema jsonb, root jsonb, path text)
  returns text language plpgsql immutable
as $$
declare
  v_length integer := jsonb_array_length(value);
  v_prefix integer := coalesce(jsonb_array_length(schema -> 'prefixItems'), 0);
  v_found bigint;
  v_error text;
begin
  if v_length < (schema ->> 'minItems')::numeric then
    return format('%s has less than %s items', path, schema ->> 'minItems');
  end if;
  if v_length > (schema ->> 'maxItems')::numeric then
    return format('%s has more than %s items', path, schema ->> 'maxItems');
  end if;
  if schema -> 'uniqueItems' = 'true' and v_length <> (
    select count(distinct e.item) from jsonb_array_elements(value) as e (item)
  ) then
    return format('%s has an item twice', path);
  end if;
  if schema ? 'prefixItems' or schema ? 'items' then
    for v_number in 0 .. v_length - 1 loop
      v_error := notifyq.schema_error(
        value -> v_number,
        coalesce(
          case when v_number < v_prefix then schema -> 'prefixItems' -> v_number
            else schema -> 'items' end,
          'true'
        ),
        root, format('%s[%s]', path, v_number)
      );
      if v_error is not null then
        return v_error;
      end if;
    end loop;
  end if;
  if schema ? 'contains' then
    v_found := (
      select count(*) from jsonb_array_elements(value) as e (item)
      where notifyq.schema_error(e.item, schema -> 'contains', root, path) is null
    );
    if v_found < coalesce((schema ->> 'minContains')::numeric, 1)
      or v_found > (schema ->> 'maxContains')::numeric
    then
      return format('%s has %s items that satisfy contains', path, v_found);
    end if;
  end if;
  return null;
end;
$$;

create or replace function notifyq.object_error(value jsonb, schema jsonb, root jsonb, path text)
  returns text language plpgsql immutable
as $$
declare
  v_size bigint;
  v_name text;
  v_item jsonb;
  v_part jsonb;
  v_is_known boolean;
  v_error text;
begin
  if schema ? 'required' then
    v_name := (
      select r.name from jsonb_array_elements_text(schema -> 'required') as r (name)
      where not value ? r.name
      limit 1
    );
    if v_name is not null then
      return format('%s has no %s', path, to_jsonb(v_name));
    end if;
  end if;
  if schema ? 'minProperties' or schema ? 'maxProperties' then
    v_size := (select count(*) from jsonb_object_keys(value));
    if v_size < (schema ->> 'minProperties')::numeric
      or v_size > (schema ->> 'maxProperties')::numeric
    then
      return format('%s has %s properties', path, v_size);
    end if;
  end if;
  v_name := (
    select n.name
    from jsonb_each(schema -> 'dependentRequired') as d (name, names),
      jsonb_array_elements_text(d.names) as n (name)
    where value ? d.name
      and not value ? n.name
    limit 1
  );
  if v_name is not null then
    return format('%s has no %s', path, to_jsonb(v_name));
  end if;
  for v_part in
    select d.part from jsonb_each(schema -> 'dependentSchemas') as d (name, part)
    where value ? d.name
  loop
    v_error := notifyq.schema_error(value, v_part, root, path);
    if v_error is not null then
      return v_error;
    end if;
  end loop;
  if not schema ?| '{properties,patternProperties,additionalProperties,propertyNames}' then
    return null;
  end if;
  for v_name, v_item in select e.name, e.item from jsonb_each(value) as e (name, item) loop
    v_is_known := coalesce(schema -> 'properties' ? v_name, false);
    v_error := coalesce(
      notifyq.schema_error(
        to_jsonb(v_name), coalesce(schema -> 'propertyNames', 'true'), root,
        format('%s, the name of a property,', to_jsonb(v_name))
      ),
      notifyq.schema_error(
        v_item, coalesce(schema -> 'properties' -> v_name, 'true'), root,
        format('%s.%s', path, v_name)
      )
    );
    for v_part in
      select p.part from jsonb_each(schema -> 'patternProperties') as p (pattern, part)
      where v_name collate "C" ~ notifyq.to_regex(p.pattern)
    loop
      v_is_known := true;
      v_error := coalesce(
        v_error, notifyq.schema_error(v_item, v_part, root, format('%s.%s', path, v_name))
      );
    end loop;
    if not v_is_known and schema ? 'additionalProperties' then
      v_error := coalesce(
        v_error,
        notifyq.schema_error(
          v_item, schema -> 'additionalProperties', root, format('%s.%s', path, v_name)
        )
      );
    end if;
    if v_error is not null then
      return v_error;
    end if;
  end loop;
  return null;
end;
$$;

-- The part of a schema that a reference points to: a JSON pointer into the whole schema.
create or replace function notifyq.schema_at(root jsonb, reference text)
  returns jsonb language sql immutable
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

create or replace function notifyq.has_type(value jsonb, types jsonb)
  returns boolean language sql immutable
as $$
  select types ? jsonb_typeof(value)
    or jsonb_typeof(value) = 'number' and types ? 'integer' and value::numeric % 1 = 0;
$$;

-- The first error of a value, or null. References point into root.
create or replace function notifyq.schema_error(value jsonb, schema jsonb, root jsonb, path text)
  returns text language plpgsql immutable
as $$
declare
  v_part jsonb;
  v_count bigint;
  v_error text;
begin
  if jsonb_typeof(schema) <> 'object' then
    return case when schema = 'false' then path || ' is not allowed' end;
  end if;
  if schema ? 'type' and not notifyq.has_type(value, schema -> 'type') then
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
    when 'number' then notifyq.number_error(value::numeric, schema, path)
    when 'string' then notifyq.string_error(value #>> '{}', schema, path)
    when 'array' then notifyq.array_error(value, schema, root, path)
    when 'object' then notifyq.object_error(value, schema, root, path)
  end;
  if v_error is null and schema ? '$ref' then
    v_error := notifyq.schema_error(
      value, notifyq.schema_at(root, schema ->> '$ref'), root, path
    );
  end if;
  if v_error is not null
    or not schema ?| '{allOf,anyOf,oneOf,not,if}'
  then
    return v_error;
  end if;
  for v_part in select a.part from jsonb_array_elements(schema -> 'allOf') as a (part) loop
    v_error := notifyq.schema_error(value, v_part, root, path);
    if v_error is not null then
      return v_error;
    end if;
  end loop;
  if schema ? 'anyOf' and not exists (
    select from jsonb_array_elements(schema -> 'anyOf') as a (part)
    where notifyq.schema_error(value, a.part, root, path) is null
  ) then
    return format('%s satisfies nothing of anyOf', path);
  end if;
  if schema ? 'oneOf' then
    v_count := (
      select count(*) from jsonb_array_elements(schema -> 'oneOf') as a (part)
      where notifyq.schema_error(value, a.part, root, path) is null
    );
    if v_count <> 1 then
      return format('%s satisfies %s parts of oneOf, not 1', path, v_count);
    end if;
  end if;
  if schema ? 'not' and notifyq.schema_error(value, schema -> 'not', root, path) is null then
    return format('%s satisfies what it must not', path);
  end if;
  if schema ? 'if' then
    return notifyq.schema_error(
      value,
      coalesce(
        schema -> case when notifyq.schema_error(value, schema -> 'if', root, path) is null
          then 'then' else 'else' end,
        'true'
      ),
      root, path
    );
  end if;
  return null;
end;
$$;

-- Keywords: which a JSON Schema may have here.
--
-- Unknown keywords are refused when a queue gets the schema, so that none is ignored later. A
-- format is only a comment, as in the standard.

create or replace function notifyq.check_pattern(pattern text, path text)
  returns void language plpgsql
as $$
begin
  perform '' ~ notifyq.to_regex(pattern);
exception
  when invalid_regular_expression then
    perform notifyq.raise_invalid(
      format('payload_schema: pattern %s of %s is invalid', to_jsonb(pattern), path),
      'write it as a PostgreSQL regular expression'
    );
end;
$$;

-- Raises for an invalid schema, or one with a keyword that is not supported.
create or replace function notifyq.check_schema(schema jsonb, root jsonb, path text)
  returns void language plpgsql
as $$
declare
  v_key text;
  v_value jsonb;
  v_is_good boolean;
begin
  if jsonb_typeof(schema) = 'boolean' then
    return;
  end if;
  if jsonb_typeof(schema) is distinct from 'object' then
    perform notifyq.raise_invalid(
      format('payload_schema: %s must be an object or a boolean', path),
      'see docs/guides/payloads.md'
    );
  end if;
  for v_key, v_value in select e.key, e.value from jsonb_each(schema) as e (key, value) loop
    v_is_good := true;
    if v_key in (
      'properties', 'patternProperties', 'dependentSchemas', '$defs', 'definitions'
    ) then
      v_is_good := jsonb_typeof(v_value) = 'object';
      perform notifyq.check_pattern(p.pattern, path)
      from jsonb_object_keys(case when v_key = 'patternProperties' then v_value else '{}' end)
        as p (pattern);
      perform notifyq.check_schema(e.part, root, format('%s.%s.%s', path, v_key, e.name))
      from jsonb_each(case when v_is_good then v_value else '{}' end) as e (name, part);
    elsif v_key in ('allOf', 'anyOf', 'oneOf', 'prefixItems') then
      v_is_good := jsonb_typeof(v_value) = 'array' and v_value <> '[]';
      perform notifyq.check_schema(
        e.part, root, format('%s.%s[%s]', path, v_key, e.position - 1)
      )
      from jsonb_array_elements(case when v_is_good then v_value else '[]' end) with ordinality
        as e (part, position);
    elsif v_key in (
      'items', 'additionalProperties', 'propertyNames', 'contains', 'not', 'if', 'then', 'else'
    ) then
      perform notifyq.check_schema(v_value, root, format('%s.%s', path, v_key));
    elsif v_key = 'type' then
      v_is_good := jsonb_path_exists(
        jsonb_build_array(v_value),
        'strict $[0] ? (@.type() == "string" || @.type() == "array" && @.size() > 0)'
      ) and not jsonb_path_exists(
        v_value,
        '$[*] ? (!(@ == "null" || @ == "boolean" || @ == "integer" || @ == "number"
          || @ == "string" || @ == "array" || @ == "object"))'
      );
    elsif v_key in ('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum') then
      v_is_good := jsonb_typeof(v_value) = 'number';
    elsif v_key = 'multipleOf' then
      v_is_good := jsonb_path_exists(v_value, 'strict $ ? (@.type() == "number" && @ > 0)');
    elsif v_key in (
      'minLength', 'maxLength', 'minItems', 'maxItems', 'minContains', 'maxContains',
      'minProperties', 'maxProperties'
    ) then
      v_is_good := jsonb_path_exists(v_value, 'strict $ ? (@.type() == "number" && @ >= 0)')
        and v_value::numeric % 1 = 0;
    elsif v_key in ('enum', 'required') then
      v_is_good := jsonb_typeof(v_value) = 'array' and (
        v_key = 'enum' or not jsonb_path_exists(v_value, 'strict $[*] ? (@.type() != "string")')
      );
    elsif v_key = 'dependentRequired' then
      v_is_good := jsonb_typeof(v_value) = 'object' and not jsonb_path_exists(
        v_value, 'strict $.* ? (@.type() != "array" || exists(@[*] ? (@.type() != "string")))'
      );
    elsif v_key = 'uniqueItems' then
      v_is_good := jsonb_typeof(v_value) = 'boolean';
    elsif v_key = '$ref' then
      v_is_good := (v_value #>> '{}') ~ '^#(/[^%]*)?$'
        and jsonb_typeof(notifyq.schema_at(root, v_value #>> '{}')) in ('object', 'boolean');
    elsif v_key = 'pattern' then
      v_is_good := jsonb_typeof(v_value) = 'string';
      perform notifyq.check_pattern(v_value #>> '{}', path);
    elsif v_key not in (
      'const', 'title', 'description', 'default', 'examples', 'deprecated', 'readOnly',
      'writeOnly', '$comment', '$schema', 'format', 'contentEncoding', 'contentMediaType',
      'contentSchema', 'discriminator'
    ) and v_key not like 'x-%' and not (v_key = '$id' and path = '$') then
      perform notifyq.raise_invalid(
        format('payload_schema: keyword %s of %s is not supported', v_key, path),
        'leave it out, or use other keywords: docs/guides/payloads.md has the list'
      );
    end if;
    if v_is_good is not true then
      perform notifyq.raise_invalid(
        format('payload_schema: %s of %s cannot be %s', v_key, path, left(v_value::text, 200))
      );
    end if;
  end loop;
end;
$$;
