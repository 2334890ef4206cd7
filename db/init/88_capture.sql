-- Capture: the changes of a table become events of a stream, in the transaction that makes them.
--
-- The triggers are the registry: they go with the table, are renamed with it and dumped with it.
-- For statements as a whole, which is many times cheaper than row by row; by rows where there is a
-- condition, which is then that of the trigger, so that it never runs with the rights of the owner
-- of this schema, and where a table is or has partitions, whose rows no other trigger sees all of.
--
-- owns:    triggers notifyq_* of captured tables
-- writes:  messages.event
-- calls:   messages._publish_captured
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found, NQ024
--          stream paused

-- What becomes of rows: old ones, new ones, or pairs of both. Row by row this must be quick: no
-- function is called in it but those that JSON has.
create or replace function messages._publish_changes(
  relation oid,
  arguments text[],
  operation text,
  old_rows jsonb[],
  new_rows jsonb[]
)
  returns void
  language plpgsql
  set jit = off
as $$
declare
  v_root oid := coalesce(pg_partition_root(relation)::oid, relation);
  v_table text;
  v_watched text[] := nullif(arguments[2], '')::text[];
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
      hint = 'call capture() again with the columns that there are';
  end if;
  v_watched := coalesce(v_watched, v_columns);
  v_unwatched := array(select c from unnest(v_columns) as c where c <> all (v_watched));
  v_not_key := array(select c from unnest(v_columns) as c where c <> all (v_key));
  v_head := jsonb_build_object('op', operation, 'table', v_table);
  if operation = 'update' then
    select array_agg(
        v_head || jsonb_build_object(
          'key', case when v_key <> '{}' then r.new - v_not_key end, 'new', r.new - v_unwatched,
          -- Without a key nothing else says which row it was.
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
    v_rows := coalesce(new_rows, old_rows);
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
    perform messages._publish_captured(v_root, arguments[1], v_messages, v_keys, operation);
  end if;
end;
$$;

-- Of statements that insert or delete. What a row looks like as text must not depend on the session
-- that changes it, and a number must be exact.
create or replace function messages.capture_rows()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
  set timezone = 'UTC'
  set datestyle = 'ISO'
  set intervalstyle = 'iso_8601'
  set bytea_output = 'hex'
  set extra_float_digits = 1
as $$
declare
  v_rows jsonb[];
begin
  for v_rows in
    select array_agg(r.data order by r.number)
    from (select to_jsonb(c) as data, row_number() over () as number from captured as c) as r
    group by (r.number - 1) / 1000
    order by min(r.number)
  loop
    perform messages._publish_changes(
      tg_relid, tg_argv[0:1], lower(tg_op),
      case when tg_op = 'DELETE' then v_rows end, case when tg_op = 'INSERT' then v_rows end
    );
  end loop;
  return null;
end;
$$;
comment on function messages.capture_rows() is
  'Trigger of a captured table, for statements that insert or delete; see capture().';

-- Of statements that update. Both tables have the rows in the same order: a key may be changed, or
-- there may be none, so nothing else tells which belong together.
create or replace function messages.capture_updates()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
  set timezone = 'UTC'
  set datestyle = 'ISO'
  set intervalstyle = 'iso_8601'
  set bytea_output = 'hex'
  set extra_float_digits = 1
  -- The plan may be of a statement with one row.
  set enable_nestloop = off
as $$
declare
  v_old jsonb[];
  v_new jsonb[];
begin
  for v_old, v_new in
    select array_agg(o.data order by o.number), array_agg(n.data order by o.number)
    from (select to_jsonb(c) as data, row_number() over () as number from captured_old as c) as o
    join (select to_jsonb(c) as data, row_number() over () as number from captured as c) as n
      on n.number = o.number
    group by (o.number - 1) / 1000
    order by min(o.number)
  loop
    perform messages._publish_changes(tg_relid, tg_argv[0:1], 'update', v_old, v_new);
  end loop;
  return null;
end;
$$;
comment on function messages.capture_updates() is
  'Trigger of a captured table, for statements that update; see capture().';

-- Of single rows, and of TRUNCATE.
create or replace function messages.capture_each()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
  set timezone = 'UTC'
  set datestyle = 'ISO'
  set intervalstyle = 'iso_8601'
  set bytea_output = 'hex'
  set extra_float_digits = 1
as $$
begin
  perform messages._publish_changes(
    tg_relid, tg_argv[0:1], lower(tg_op),
    case when tg_op in ('UPDATE', 'DELETE') then array[to_jsonb(old)] end,
    case when tg_op in ('UPDATE', 'INSERT') then array[to_jsonb(new)] end
  );
  return null;
end;
$$;
comment on function messages.capture_each() is
  'Trigger of a captured table, for each row, and for TRUNCATE; see capture().';
