-- Statistics: estimates from the catalog, without reading a table.

-- Rows of a partition: estimated where it is large, else counted.
create or replace function notifyq.estimate_count(relation text)
  returns bigint language plpgsql stable
as $$
declare
  v_class regclass := format('notifyq.%I', relation)::regclass;
  v_rows bigint;
begin
  select c.reltuples::bigint into v_rows from pg_class as c where c.oid = v_class;
  if v_rows > 0 and pg_relation_size(v_class) > 8000000 then
    return v_rows;
  end if;
  execute format('select count(*) from notifyq.%I', relation) into v_rows;
  return v_rows;
end;
$$;

-- The most common values of a column, and the fraction of rows, 0 to 1, that have each.
create or replace function notifyq.common_values(
  relation regclass, attribute text, out _value text, out _share double precision
)
  returns setof record language sql stable
as $$
  select m.value, m.share
  from pg_class as r
  join pg_namespace as n on n.oid = r.relnamespace
  join pg_stats as s on s.schemaname = n.nspname and s.tablename = r.relname
  cross join lateral unnest(s.most_common_vals::text::text[], s.most_common_freqs)
    as m (value, share)
  where r.oid = relation and s.attname = attribute
    and not s.inherited;
$$;
