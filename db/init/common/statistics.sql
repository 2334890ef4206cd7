-- Statistics: what the server knows of a table without reading it.

-- A huge table is not read for a figure.
create or replace function messages._count_about(relation text)
  returns bigint
  language plpgsql
  stable
as $$
declare
  v_class regclass := format('messages.%I', relation)::regclass;
  v_rows bigint;
begin
  select c.reltuples::bigint into v_rows from pg_class as c where c.oid = v_class;
  if v_rows > 0 and pg_relation_size(v_class) > 8000000 then
    return v_rows;
  end if;
  execute format('select count(*) from messages.%I', relation) into v_rows;
  return v_rows;
end;
$$;

-- The most common values of a column, and what part of the rows has each, 0 to 1.
create or replace function messages._common_values(
  relation text,
  attribute text,
  out _value text,
  out _share double precision
)
  returns setof record
  language sql
  stable
as $$
  select m.value, m.share
  from pg_stats as s
  cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs)
    as m (value, share)
  where s.schemaname = 'messages' and s.tablename = relation and s.attname = attribute
    and not s.inherited;
$$;
