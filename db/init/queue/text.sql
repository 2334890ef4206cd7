-- Text: convert the text of a value of any type to JSON without running code of users.
--
-- Domains have checks, and types have casts to json, that call functions of their owners; and a
-- type can be altered between a query of the catalog and its use. Texts are therefore read only by
-- the input functions of base types, enums and ranges, found by the oid of the type: only
-- superusers can create those, and nobody can alter them. A domain is read as its base type, a
-- composite type column by column.
--
-- raises: 22P02 and similar, for a text that is no such value

-- A type by the name that type_name() has given it. The owner of these functions may have no right
-- to use the schema of the type.
create or replace function notifyq.find_type(name text)
  returns oid language plpgsql stable
as $$
declare
  -- A type outside of the search path has its schema in its name.
  v_parts text[] := parse_ident(rtrim(name, '[]'), false);
  v_type oid;
begin
  if cardinality(v_parts) = 1 then
    return name::regtype::oid;
  end if;
  select case when find_type.name like '%[]' then t.typarray else t.oid end into v_type
  from pg_type as t
  join pg_namespace as n on n.oid = t.typnamespace
  where n.nspname = v_parts[1]
    and t.typname = v_parts[2];
  if v_type is null then
    raise undefined_object using message = format('type %s does not exist', name);
  end if;
  return v_type;
end;
$$;

-- The element type of an array type, else null: names and points have elements, too.
create or replace function notifyq.element_type(type oid)
  returns oid language sql stable
as $$
  select t.typelem
  from pg_type as t
  join pg_type as e on e.oid = t.typelem and e.typarray = t.oid
  where t.oid = element_type.type;
$$;

-- Whether reading a text of this type runs only its input function, now and later.
create or replace function notifyq.is_inert(type oid)
  returns boolean language plpgsql stable
as $$
declare
  v_kind "char" := (select t.typtype from pg_type as t where t.oid = is_inert.type);
  v_part oid := coalesce(
    notifyq.element_type(type),
    (
      select r.rngsubtype from pg_range as r
      where is_inert.type in (r.rngtypid, r.rngmultitypid)
    )
  );
begin
  return v_kind in ('b', 'e', 'r', 'm') and (v_part is null or notifyq.is_inert(v_part));
end;
$$;

-- The columns of the text of a row, as record_in() parses it.
create or replace function notifyq.row_fields(value text)
  returns text[] language plpgsql immutable
as $$
declare
  v_body text := substring(value from '^[[:space:]]*[(](.*)[)][[:space:]]*$') || ',';
begin
  if (v_body ~ e'^(?:(?:[^,"\\\\)]|\\\\.|"(?:[^"\\\\]|\\\\.|"")*")*,)+$') is not true then
    raise invalid_text_representation using
      message = format('malformed record literal: %L', left(value, 200));
  end if;
  return array(
    select case when f.field[1] <> '' then (
      select coalesce(string_agg(
        coalesce(
          p.part[1], regexp_replace(p.part[2], e'\\\\(.)|"(")', e'\\1\\2', 'g'), p.part[3]
        ), ''
        order by p.ordinal
      ), '')
      from regexp_matches(
        f.field[1], e'\\\\(.)|"((?:[^"\\\\]|\\\\.|"")*)"|([^"\\\\]+)', 'g'
      ) with ordinality as p (part, ordinal)
    ) end
    from regexp_matches(
      v_body, e'((?:[^,"\\\\)]|\\\\.|"(?:[^"\\\\]|\\\\.|"")*")*),', 'g'
    ) with ordinality as f (field, ordinal)
    order by f.ordinal
  );
end;
$$;

create or replace function notifyq.text_json(value text, type oid, modifier integer default -1)
  returns jsonb language plpgsql stable
as $$
declare
  v_type record;
  v_element oid;
  v_fields text[];
  v_row jsonb;
  v_columns bigint;
begin
  if value is null then
    return 'null'::jsonb;
  end if;
  select t.typtype as kind, t.typbasetype as base, t.typtypmod as modifier, t.typrelid as relation
  into v_type
  from pg_type as t
  where t.oid = text_json.type;
  if v_type.kind = 'd' then
    return notifyq.text_json(value, v_type.base, v_type.modifier);
  end if;
  if v_type.kind = 'c' then
    v_fields := notifyq.row_fields(value);
    select coalesce(
        jsonb_object_agg(
          a.attname, notifyq.text_json(v_fields[a.ordinal], a.atttypid, a.atttypmod)
        ), '{}'
      ),
      count(*)
    into v_row, v_columns
    from (
      select c.attname, c.atttypid, c.atttypmod, row_number() over (order by c.attnum) as ordinal
      from pg_attribute as c
      where c.attrelid = v_type.relation and c.attnum > 0 and not c.attisdropped
    ) as a;
    if cardinality(v_fields) <> greatest(v_columns, 1) or v_columns = 0 and v_fields <> '{null}'
    then
      raise invalid_text_representation using
        message = format('malformed record literal: %L', left(value, 200)),
        detail = format('it has %s columns, not %s', cardinality(v_fields), v_columns);
    end if;
    return v_row;
  end if;
  v_element := notifyq.element_type(type);
  if v_element is not null then
    return notifyq.array_json(value, v_element, modifier);
  end if;
  if not notifyq.is_inert(type) then
    return to_jsonb(value);  -- a range of domains or rows, whose bounds are not read
  end if;
  -- An array of one value: the way to call an input function by its type.
  v_row := notifyq.array_json(
    '{"' || replace(replace(value, e'\\', e'\\\\'), '"', e'\\"') || '"}', type, modifier
  );
  return v_row -> 0;
end;
$$;

create or replace function notifyq.array_json(value text, element oid, modifier integer)
  returns jsonb language plpgsql stable
as $$
begin
  if not notifyq.is_inert(element) then
    return notifyq.elements_json(to_jsonb(value::text[]), element, modifier);
  end if;
  -- For a user-defined type to_jsonb() would use a cast to json.
  if element < 16384::oid then
    return to_jsonb(array_in(textout(value), element, modifier));
  end if;
  perform array_in(textout(value), element, modifier);
  return to_jsonb(value::text[]);
end;
$$;

-- Texts in an array of any dimensions.
create or replace function notifyq.elements_json(texts jsonb, element oid, modifier integer)
  returns jsonb language plpgsql stable
as $$
begin
  if jsonb_typeof(texts) <> 'array' then
    return notifyq.text_json(texts #>> '{}', element, modifier);
  end if;
  return (
    select coalesce(
      jsonb_agg(notifyq.elements_json(t.text, element, modifier) order by t.ordinal), '[]'
    )
    from jsonb_array_elements(texts) with ordinality as t (text, ordinal)
  );
end;
$$;
