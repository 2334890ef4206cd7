-- Keywords: what a JSON Schema may say here. See 08_schema.sql for what it means.
--
-- A keyword that is not known is refused when a queue gets the schema, so that none is passed over.
-- A format is a remark, as the standard has it.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._pattern, messages._schema_at, messages._invalid
-- raises:  NQ003 invalid argument

create or replace function messages._check_pattern(pattern text, path text)
  returns void
  language plpgsql
as $$
begin
  perform '' ~ messages._pattern(pattern);
exception
  when invalid_regular_expression then
    perform messages._invalid(
      format('payload_schema: the pattern %s of %s cannot be read', to_jsonb(pattern), path),
      'patterns are PostgreSQL''s regular expressions'
    );
end;
$$;

-- An error for a schema that is none, or that says something which is not checked here.
create or replace function messages._check_schema(schema jsonb, root jsonb, path text)
  returns void
  language plpgsql
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
    perform messages._invalid(
      format('payload_schema: %s must be an object or a boolean', path), 'see docs/typed.md'
    );
  end if;
  for v_key, v_value in select e.key, e.value from jsonb_each(schema) as e (key, value) loop
    v_is_good := true;
    if v_key in (
      'properties', 'patternProperties', 'dependentSchemas', '$defs', 'definitions'
    ) then
      v_is_good := jsonb_typeof(v_value) = 'object';
      perform messages._check_pattern(p.pattern, path)
      from jsonb_object_keys(case when v_key = 'patternProperties' then v_value else '{}' end)
        as p (pattern);
      perform messages._check_schema(e.part, root, format('%s.%s.%s', path, v_key, e.name))
      from jsonb_each(case when v_is_good then v_value else '{}' end) as e (name, part);
    elsif v_key in ('allOf', 'anyOf', 'oneOf', 'prefixItems') then
      v_is_good := jsonb_typeof(v_value) = 'array' and v_value <> '[]';
      perform messages._check_schema(
        e.part, root, format('%s.%s[%s]', path, v_key, e.position - 1)
      )
      from jsonb_array_elements(case when v_is_good then v_value else '[]' end) with ordinality
        as e (part, position);
    elsif v_key in (
      'items', 'additionalProperties', 'propertyNames', 'contains', 'not', 'if', 'then', 'else'
    ) then
      perform messages._check_schema(v_value, root, format('%s.%s', path, v_key));
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
        and jsonb_typeof(messages._schema_at(root, v_value #>> '{}')) in ('object', 'boolean');
    elsif v_key = 'pattern' then
      v_is_good := jsonb_typeof(v_value) = 'string';
      perform messages._check_pattern(v_value #>> '{}', path);
    elsif v_key not in (
      'const', 'title', 'description', 'default', 'examples', 'deprecated', 'readOnly',
      'writeOnly', '$comment', '$schema', 'format', 'contentEncoding', 'contentMediaType',
      'contentSchema', 'discriminator'
    ) and v_key not like 'x-%' and not (v_key = '$id' and path = '$') then
      perform messages._invalid(
        format('payload_schema: keyword %s of %s is not checked here', v_key, path),
        'leave it out, or say it in other words: docs/typed.md has the list'
      );
    end if;
    if v_is_good is not true then
      perform messages._invalid(
        format('payload_schema: %s of %s cannot be %s', v_key, path, left(v_value::text, 200))
      );
    end if;
  end loop;
end;
$$;
