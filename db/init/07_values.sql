-- Values: what a JSON Schema may ask of a number, a string, an array, an object.
--
-- What is wrong is told by a text that begins with the path of it; null: nothing is.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._schema_error
-- raises:  nothing

-- A pattern as PostgreSQL writes it: \b is a backspace there, and three stars at the beginning say
-- how to read what follows, where all others find an error.
create or replace function messages._pattern(pattern text)
  returns text
  language sql
  immutable
as $$
  select regexp_replace(
    regexp_replace(regexp_replace(pattern, '^[*]', '(*'), '(?<!\\)((?:\\\\)*)\\b', '\1\\y', 'g'),
    '(?<!\\)((?:\\\\)*)\\B', '\1\\Y', 'g'
  );
$$;

create or replace function messages._number_error(value numeric, schema jsonb, path text)
  returns text
  language sql
  immutable
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

create or replace function messages._string_error(value text, schema jsonb, path text)
  returns text
  language sql
  immutable
as $$
  select path || case
    when char_length(value) < (schema ->> 'minLength')::numeric
      then ' has less than ' || (schema ->> 'minLength') || ' characters'
    when char_length(value) > (schema ->> 'maxLength')::numeric
      then ' has more than ' || (schema ->> 'maxLength') || ' characters'
    when value collate "C" !~ messages._pattern(schema ->> 'pattern')
      then ' does not match ' || (schema ->> 'pattern')
  end;
$$;

create or replace function messages._array_error(
  value jsonb, schema jsonb, root jsonb, path text
)
  returns text
  language plpgsql
  immutable
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
      v_error := messages._schema_error(
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
      where messages._schema_error(e.item, schema -> 'contains', root, path) is null
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

create or replace function messages._object_error(
  value jsonb, schema jsonb, root jsonb, path text
)
  returns text
  language plpgsql
  immutable
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
    v_error := messages._schema_error(value, v_part, root, path);
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
      messages._schema_error(
        to_jsonb(v_name), coalesce(schema -> 'propertyNames', 'true'), root,
        format('%s, the name of a property,', to_jsonb(v_name))
      ),
      messages._schema_error(
        v_item, coalesce(schema -> 'properties' -> v_name, 'true'), root,
        format('%s.%s', path, v_name)
      )
    );
    for v_part in
      select p.part from jsonb_each(schema -> 'patternProperties') as p (pattern, part)
      where v_name collate "C" ~ messages._pattern(p.pattern)
    loop
      v_is_known := true;
      v_error := coalesce(
        v_error, messages._schema_error(v_item, v_part, root, format('%s.%s', path, v_name))
      );
    end loop;
    if not v_is_known and schema ? 'additionalProperties' then
      v_error := coalesce(
        v_error,
        messages._schema_error(
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
