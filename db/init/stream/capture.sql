-- Capture: changes of a table become events of a stream, in the transaction that makes them.
--
-- The triggers are the registry: they are dropped, renamed and dumped with the table. Statement
-- triggers are many times cheaper than row triggers. Row triggers are used for a condition, which
-- is then a condition of the trigger and never runs with the rights of the schema owner, and for
-- tables with partitions, whose rows no statement trigger sees completely.
--
-- The triggers run as the owner of this schema on rows with types of other roles. to_jsonb() would
-- call casts to json with the rights of the owner, so it is given built-in types only: other values
-- are read from their text, see queue/text.sql. A query is built for each table with such columns.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ024
-- stream paused

-- The columns of a capture, from the second argument of its trigger; null: all. The owner of the
-- table may write anything there.
create or replace function notifyq.watched_columns(argument text)
  returns text[] language plpgsql immutable
as $$
begin
  return nullif(argument, '')::text[];
exception
  when data_exception or program_limit_exceeded then
    raise exception using
      errcode = 'NQ003',
      message = format('the columns of a capture cannot be read: %L', left(argument, 200)),
      hint = 'call uncapture(), then capture() with existing columns';
end;
$$;

-- Publish changes: old rows, new rows, or pairs of both. It must be fast for each row: it calls
-- only JSON functions there.
create or replace function notifyq.publish_changes(
  relation oid,
  arguments text[],
  operation text,
  old_rows jsonb[],
  new_rows jsonb[]
)
  returns void language plpgsql
  set jit = off
as $$
declare
  v_root oid := coalesce(pg_partition_root(relation)::oid, relation);
  v_table text;
  v_watched text[] := notifyq.watched_columns(arguments[2]);
  v_columns text[];
  v_key text[];
  v_unwatched text[];
  v_not_key text[];
  v_head jsonb;
  v_rows jsonb[];
  v_messages jsonb[];
  v_keys text[];
begin
  select format('%I.%I', n.nspname, c.relname),
    array(
      select a.attname::text from pg_attribute as a
      where a.attrelid = v_root and a.attnum > 0 and not a.attisdropped
      order by a.attnum
    ),
    array(
      select a.attname::text
      from pg_index as x
      cross join unnest(x.indkey::int2[]) with ordinality as k (attnum, position)
      join pg_attribute as a on a.attrelid = x.indrelid and a.attnum = k.attnum
      where x.indrelid = v_root and x.indisprimary
      order by k.position
    )
  into v_table, v_columns, v_key
  from pg_class as c
  join pg_namespace as n on n.oid = c.relnamespace
  where c.oid = v_root;
  if not coalesce(v_watched <@ v_columns, true) then
    raise exception using
      errcode = 'NQ003',
      message = format(
        'the capture of %s into stream %L has columns that are gone: %s', v_table, arguments[1],
        array(select w from unnest(v_watched) as w where w <> all (v_columns))
      ),
      hint = 'call capture() again with existing columns';
  end if;
  v_watched := coalesce(v_watched, v_columns);
  v_unwatched := array(select c from unnest(v_columns) as c where c <> all (v_watched));
  v_not_key := array(select c from unnest(v_columns) as c where c <> all (v_key));
  v_head := jsonb_build_object('op', operation, 'table', v_table);
  if operation = 'update' then
    select array_agg(
        v_head || jsonb_build_object(
          'key', case when v_key <> '{}' then r.new - v_not_key end, 'new', r.new - v_unwatched,
          -- Without a primary key only the whole old row identifies it.
          'old', case when v_key <> '{}' then d.old else r.old - v_unwatched end,
          'changed', d.names
        ) order by r.position
      ),
      array_agg(r.new order by r.position)
    into v_messages, v_rows
    from unnest(old_rows, new_rows) with ordinality as r (old, new, position)
    cross join lateral (
      select jsonb_object_agg(w.name, r.old -> w.name) as old,
        jsonb_agg(w.name order by w.position) as names
      from unnest(v_watched) with ordinality as w (name, position)
      where r.old -> w.name is distinct from r.new -> w.name
    ) as d
    where d.names is not null;
  elsif operation = 'truncate' then
    v_messages := array[v_head];
  else
    v_rows := case operation when 'delete' then old_rows else new_rows end;
    select array_agg(
      v_head || jsonb_build_object(
        'key', case when v_key <> '{}' then r.data - v_not_key end,
        case operation when 'insert' then 'new' else 'old' end, r.data - v_unwatched
      ) order by r.position
    )
    into v_messages
    from unnest(v_rows) with ordinality as r (data, position);
  end if;
  if cardinality(v_key) = 1 then
    v_keys := array(
      select r.data ->> v_key[1]
      from unnest(v_rows) with ordinality as r (data, position)
      order by r.position
    );
  elsif cardinality(v_key) > 1 then
    v_keys := array(
      select (
        select jsonb_agg(r.data -> k.name order by k.position)::text
        from unnest(v_key) with ordinality as k (name, position)
      )
      from unnest(v_rows) with ordinality as r (data, position)
      order by r.position
    );
  end if;
  if v_messages is not null then
    -- A write to the table must not fail because its key is long: a hash identifies the row too.
    v_keys := array(
      select case when octet_length(k.key) > 200 then md5(k.key) else k.key end
      from unnest(v_keys) with ordinality as k (key, position)
      order by k.position
    );
    perform notifyq.publish_captured(v_root, arguments[1], v_messages, v_keys, operation);
  end if;
end;
$$;

-- Whether a table has columns of types that are not in this list, which columns_query() checks one
-- by one.
create or replace function notifyq.has_unlisted_types(relation oid)
  returns boolean language sql stable
as $$
  select exists (
    select from pg_attribute as a
    where a.attrelid = has_unlisted_types.relation and a.attnum > 0 and not a.attisdropped
      and a.atttypid <> all (
        -- Built-in types have fixed oids; reading their names takes long.
        '{16,21,23,20,700,701,1700,25,1043,1042,17,2950,114,3802,869,26,19,1082,1083,1114,1184,1186,
          1007,1016,1009}'::oid[]
      )
  );
$$;

-- The type below all domains, and below those of array elements.
create or replace function notifyq.base_type(type oid)
  returns oid language plpgsql stable
as $$
declare
  v_below oid := (
    select t.typbasetype from pg_type as t where t.oid = base_type.type and t.typtype = 'd'
  );
begin
  v_below := coalesce(v_below, notifyq.element_type(type));
  return case when v_below is null then type else notifyq.base_type(v_below) end;
end;
$$;

-- The columns of a row c for to_jsonb(), without calls of functions of other roles. Types of
-- columns cannot change while the table is written to.
create or replace function notifyq.columns_query(relation oid)
  returns text language plpgsql stable
as $$
declare
  v_as_is constant text := '%s';
begin
  return (
    select string_agg(
      format(
        case
          when a.is_built_in then 'c.%I'
          when a.is_simple
          then 'case num_nulls(c.%I) when 0 then format(%L, c.%I) else %L end as %I'
          else
            'notifyq.text_json(case num_nulls(c.%I) when 0 then format(%L, c.%I) end, %L) as %I'
        end,
        a.name, v_as_is, a.name, case when not a.is_simple then a.type end, a.name
      ),
      ', '
    )
    from (
      -- A composite type of the catalog may contain an array of any type.
      select c.attname as name, c.atttypid as type,
        t.oid < 16384::oid and t.typtype not in ('c', 'p') as is_built_in,
        notifyq.is_inert(c.atttypid) and notifyq.element_type(c.atttypid) is null as is_simple
      from pg_attribute as c
      join pg_type as t on t.oid = notifyq.base_type(c.atttypid)
      where c.attrelid = columns_query.relation and c.attnum > 0 and not c.attisdropped
      order by c.attnum
    ) as a
  );
end;
$$;

create or replace function notifyq.row_query(relation oid)
  returns text language plpgsql stable
as $$
begin
  return concat(
    'select to_jsonb(r.*) from (select ', notifyq.columns_query(relation),
    ' from (select ($1).*) as c) as r'
  );
end;
$$;

-- Rows, or pairs of old and new rows, in arrays of 1000.
create or replace function notifyq.rows_query(relation oid, is_update boolean)
  returns text language plpgsql stable
as $$
begin
  if is_update then
    return concat(
      'select array_agg(o.data order by o.number), array_agg(n.data order by o.number) '
      'from (select to_jsonb(c.*) as data, row_number() over () as number from (select ',
      notifyq.columns_query(relation), ' from captured_old as c) as c) as o '
      'join (select to_jsonb(c.*) as data, row_number() over () as number from (select ',
      notifyq.columns_query(relation), ' from captured as c) as c) as n on n.number = o.number '
      'group by (o.number - 1) / 1000 order by min(o.number)'
    );
  end if;
  return concat(
    'select array_agg(r.data order by r.number) '
    'from (select to_jsonb(c.*) as data, row_number() over () as number from (select ',
    notifyq.columns_query(relation), ' from captured as c) as c) as r '
    'group by (r.number - 1) / 1000 order by min(r.number)'
  );
end;
$$;

-- Placeholders for the transition tables. A trigger that was created without transition tables
-- would else read temporary views of its owner, with functions that run with the rights of this
-- schema.
create or replace function notifyq.no_transition()
  returns boolean language plpgsql immutable
as $$
begin
  raise exception using
    errcode = 'NQ003',
    message = 'this trigger lacks the transition tables that its function reads',
    hint = 'create it with messages.capture()';
end;
$$;

create or replace view notifyq.captured as select notifyq.no_transition() as is_missing;
comment on view notifyq.captured is
  'The name under which triggers of capture() read new rows; an error if there are none.';

create or replace view notifyq.captured_old as select notifyq.no_transition() as is_missing;
comment on view notifyq.captured_old is
  'The name under which triggers of capture() read old rows; an error if there are none.';

-- For statements that insert or delete. The settings make the text of a value independent of the
-- session, and numbers exact.
create or replace function notifyq.capture_rows()
  returns trigger language plpgsql security definer
  -- Without transition tables the views of that name are read, not temporary ones.
  set search_path = pg_catalog, notifyq, pg_temp
  set jit = off set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'iso_8601'
  set bytea_output = 'hex' set extra_float_digits = 1
as $$
declare
  v_changes refcursor;
  v_rows jsonb[];
begin
  if notifyq.has_unlisted_types(tg_relid) then
    open v_changes for execute notifyq.rows_query(tg_relid, false);
  else
    open v_changes for
      select array_agg(r.data order by r.number)
      from (select to_jsonb(c.*) as data, row_number() over () as number from captured as c) as r
      group by (r.number - 1) / 1000
      order by min(r.number);
  end if;
  loop
    fetch v_changes into v_rows;
    exit when not found;
    perform notifyq.publish_changes(
      tg_relid, tg_argv[0:1], lower(tg_op),
      case when tg_op = 'DELETE' then v_rows end, case when tg_op = 'INSERT' then v_rows end
    );
  end loop;
  close v_changes;
  return null;
end;
$$;
comment on function notifyq.capture_rows() is
  'Trigger of a captured table, for statements that insert or delete; see capture().';

-- For statements that update. Rows belong together by their order in both tables: keys may change
-- or be missing.
create or replace function notifyq.capture_updates()
  returns trigger language plpgsql security definer
  -- Without transition tables the views of that name are read, not temporary ones.
  set search_path = pg_catalog, notifyq, pg_temp
  set jit = off set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'iso_8601'
  set bytea_output = 'hex' set extra_float_digits = 1
  -- The plan may have been made for a statement with one row.
  set enable_nestloop = off
as $$
declare
  v_changes refcursor;
  v_old jsonb[];
  v_new jsonb[];
begin
  if notifyq.has_unlisted_types(tg_relid) then
    open v_changes for execute notifyq.rows_query(tg_relid, true);
  else
    open v_changes for
      select array_agg(o.data order by o.number), array_agg(n.data order by o.number)
      from (
        select to_jsonb(c.*) as data, row_number() over () as number from captured_old as c
      ) as o
      join (
        select to_jsonb(c.*) as data, row_number() over () as number from captured as c
      ) as n on n.number = o.number
      group by (o.number - 1) / 1000
      order by min(o.number);
  end if;
  loop
    fetch v_changes into v_old, v_new;
    exit when not found;
    perform notifyq.publish_changes(tg_relid, tg_argv[0:1], 'update', v_old, v_new);
  end loop;
  close v_changes;
  return null;
end;
$$;
comment on function notifyq.capture_updates() is
  'Trigger of a captured table, for statements that update; see capture().';

-- For single rows, and for TRUNCATE.
create or replace function notifyq.capture_each()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set jit = off set timezone = 'UTC' set datestyle = 'ISO' set intervalstyle = 'iso_8601'
  set bytea_output = 'hex' set extra_float_digits = 1
as $$
declare
  v_old jsonb;
  v_new jsonb;
begin
  if notifyq.has_unlisted_types(tg_relid) then
    if tg_op in ('UPDATE', 'DELETE') then
      execute notifyq.row_query(tg_relid) into v_old using old;
    end if;
    if tg_op in ('UPDATE', 'INSERT') then
      execute notifyq.row_query(tg_relid) into v_new using new;
    end if;
  else
    v_old := case when tg_op in ('UPDATE', 'DELETE') then to_jsonb(old) end;
    v_new := case when tg_op in ('UPDATE', 'INSERT') then to_jsonb(new) end;
  end if;
  perform notifyq.publish_changes(
    tg_relid, tg_argv[0:1], lower(tg_op), array[v_old], array[v_new]
  );
  return null;
end;
$$;
comment on function notifyq.capture_each() is
  'Trigger of a captured table, for each row, and for TRUNCATE; see capture().';
