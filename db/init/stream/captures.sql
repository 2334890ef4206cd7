-- Captures: create, list and end captures of tables.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found

-- capture() runs as its caller, because only the owner of the table may change it and the condition
-- is the caller's. It has the search path of the caller, so it names all schemas.

create or replace function messages.capture_sql(
  relation regclass,
  stream text,
  columns text[] default null,
  condition text default null,
  operations text[] default '{insert,update,delete,truncate}'
)
  returns setof text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream := notifyq.find_stream(stream);
  v_table pg_class;
  v_unknown text[];
  v_is_by_row boolean;
  v_operation text;
begin
  select c.* into v_table from pg_class as c where c.oid = capture_sql.relation;
  if v_table.relkind not in ('r', 'p') or v_table.relkind is null then
    perform notifyq.raise_invalid(
      format('%s is not a table that can be captured', relation),
      'capture the tables of a view, and a foreign table in its own database'
    );
  end if;
  if v_table.relnamespace in (
    'messages'::regnamespace, 'notifyq'::regnamespace, 'pg_catalog'::regnamespace
  ) then
    perform notifyq.raise_invalid(
      format('%s cannot be captured', relation), 'tables of its schema cannot be captured'
    );
  end if;
  if not notifyq.has_role(pg_get_userbyid(v_table.relowner)) then
    raise exception using
      errcode = 'NQ007',
      message = format(
        'role %I may not capture %s: it is not the owner', notifyq.calling_role(), relation
      ),
      hint = format('role %I can do it', pg_get_userbyid(v_table.relowner));
  end if;
  perform notifyq.check_access(v_stream.name, 'publish into'),
    notifyq.check_readable(array[v_stream.name], 'captured changes');
  v_unknown := array(
    select u from unnest(operations) as u
    where u is null or u not in ('insert', 'update', 'delete', 'truncate')
  );
  if v_unknown <> '{}' or cardinality(operations) = 0 or operations is null then
    perform notifyq.raise_invalid(
      format('no such operations: %s', array_to_string(v_unknown, ', ', 'null')),
      'give some of insert, update, delete and truncate'
    );
  end if;
  v_unknown := array(
    select u from unnest(columns) as u
    where not exists (
      select from pg_attribute as a
      where a.attrelid = v_table.oid and a.attname = u and a.attnum > 0 and not a.attisdropped
    )
  );
  if v_unknown <> '{}' or cardinality(columns) = 0 then
    perform notifyq.raise_invalid(
      format('%s has no such columns: %s', relation, array_to_string(v_unknown, ', ', 'null')),
      'give existing columns, or null for all columns'
    );
  end if;
  v_is_by_row := condition is not null or v_table.relkind = 'p' or exists (
    select from pg_inherits as i where v_table.oid in (i.inhrelid, i.inhparent)
  );
  -- The same name for the same stream and operation: a second call replaces the trigger.
  for v_operation in
    select o from unnest(array['insert', 'update', 'delete', 'truncate']) as o
    where o = any (operations)
  loop
    return next concat_ws(
      ' ',
      format(
        'create or replace trigger %I after %s on %s',
        format('notifyq_%s_%s', v_operation, left(md5(v_stream.name), 12)), v_operation, relation
      ),
      case
        when v_is_by_row or v_operation = 'truncate' then null
        when v_operation = 'insert' then 'referencing new table as captured'
        when v_operation = 'delete' then 'referencing old table as captured'
        else 'referencing new table as captured old table as captured_old'
      end,
      case
        when v_operation = 'truncate' or not v_is_by_row then 'for each statement'
        else 'for each row'
      end,
      -- The line break ends a comment at the end of the condition.
      case
        when v_operation <> 'truncate' and condition is not null then
          format('when (%s%s)', condition, chr(10))
      end,
      format(
        'execute function notifyq.%I(%L, %L)',
        case
          when v_is_by_row or v_operation = 'truncate' then 'capture_each'
          when v_operation = 'update' then 'capture_updates'
          else 'capture_rows'
        end,
        v_stream.name, coalesce(columns::text, '')
      )
    );
  end loop;
end;
$$;
comment on function messages.capture_sql(regclass, text, text[], text, text[]) is
  'The statements that capture() runs, after the same checks.';

create or replace function messages.capture(
  relation regclass,
  stream text,
  columns text[] default null,
  condition text default null,
  operations text[] default '{insert,update,delete,truncate}'
)
  returns void language plpgsql
as $$
declare
  v_statement text;
  v_probe refcursor;
  v_hint text := 'give an SQL expression over the rows new and old';
begin
  -- The owner of the schema may not call functions of other roles; the caller may.
  if condition is not null then
    -- A cursor takes one statement: a condition that ends it and begins another is refused.
    open v_probe for execute pg_catalog.format(
      'select from %s as new, %s as old where false and (%s%s)', relation, relation, condition,
      pg_catalog.chr(10)
    );
    close v_probe;
  end if;
  v_hint := 'an insert has no old row and a delete no new one: call capture() for each operation';
  for v_statement in
    select s.statement
    from messages.capture_sql(relation, stream, columns, condition, operations) as s (statement)
  loop
    execute v_statement;
  end loop;
exception
  when insufficient_privilege then
    raise;
  when syntax_error_or_access_rule_violation or feature_not_supported then
    raise exception using
      errcode = 'NQ003', message = pg_catalog.concat('condition: ', sqlerrm), hint = v_hint;
end;
$$;
comment on function messages.capture(regclass, text, text[], text, text[]) is
  'Publish the inserts, updates, deletes and truncates of a table, or some of these operations, '
  'into a stream, in the transaction that makes them. With columns, events have those only, and '
  'an update that changes none of them is no event. condition is an SQL expression over the rows '
  'new and old, which runs with the rights of the session that writes to the table. A second call '
  'for the same table, stream and operation replaces the first. Only the owner of the table may. '
  'Raises NQ003, NQ007 without the right to publish into the stream, and NQ020 for an unknown '
  'stream.';

-- Whether the owner of a table may publish into a stream.
create or replace function notifyq.may_capture(relation oid, stream text)
  returns boolean language plpgsql stable
as $$
declare
  v_owner oid;
begin
  if not exists (select from messages.queue_grant as g where g.queue = may_capture.stream) then
    return true;
  end if;
  v_owner := (select c.relowner from pg_class as c where c.oid = may_capture.relation);
  return exists (
    select from messages.queue_grant as g
    where g.queue = may_capture.stream
      and g.may_publish
      and pg_has_role(v_owner, to_regrole(quote_ident(g.role))::oid, 'usage')
  ) or coalesce(pg_has_role(v_owner, to_regrole('notifyq_admin')::oid, 'usage'), false);
end;
$$;

-- Why a trigger of a capture cannot publish, or null.
create or replace function notifyq.capture_problem(relation oid, arguments text[])
  returns text language plpgsql stable
as $$
declare
  v_gone text[];
begin
  v_gone := array(
    select w.name from unnest(notifyq.watched_columns(arguments[2])) as w (name)
    where not exists (
      select from pg_attribute as a
      where a.attrelid = capture_problem.relation and a.attname = w.name
        and a.attnum > 0 and not a.attisdropped
    )
  );
  return case
    when v_gone <> '{}' then format('it has columns that are gone: %s', v_gone)
    when not exists (select from messages.stream as s where s.name = arguments[1])
    then format('there is no stream %L', arguments[1])
    when not notifyq.may_capture(relation, arguments[1])
    then 'the owner of the table may not publish into the stream'
  end;
exception
  when sqlstate 'NQ003' then
    return sqlerrm;
end;
$$;

-- The condition of a capture as SQL. The owner of the table may have written one that is too
-- complex to be shown.
create or replace function notifyq.capture_condition(trigger oid)
  returns text language plpgsql stable
as $$
begin
  return substring(pg_get_triggerdef(trigger) from ' WHEN [(](.*)[)] [A-Z]+ FUNCTION ');
exception
  when others then
    return format('(cannot be shown: %s)', sqlerrm);
end;
$$;

-- The right to publish is that of the owner of the table: a session that writes to the table needs
-- none, and these functions give no access to other streams.
create or replace function notifyq.publish_captured(
  relation oid,
  stream text,
  payloads jsonb[],
  keys text[],
  operation text
)
  returns void language plpgsql
as $$
begin
  if not notifyq.may_capture(relation, stream) then
    raise exception using
      errcode = 'NQ007',
      message = format(
        'role %I, the owner of the captured table %s, may not publish into stream %L',
        (select pg_get_userbyid(c.relowner) from pg_class as c where c.oid = relation),
        relation::regclass, stream
      ),
      hint = 'an admin can allow it with messages.grant_queue(), or call uncapture()';
  end if;
  perform notifyq.publish_events(
    stream, payloads, keys, operation,
    jsonb_build_object('transaction', pg_current_xact_id()::text), true
  );
end;
$$;

create or replace function messages.captures(stream text default null)
  returns setof messages.capture_report language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select c.relation, c.stream, array_agg(c.operation order by c.ordinal),
    case when c.problem is null then nullif(c.columns, '')::text[] end, c.condition, c.is_by_row,
    c.is_enabled, array_agg(c.name order by c.ordinal), c.problem
  from (
    select t.tgrelid::regclass as relation, o.ordinal, o.operation, t.tgname::text as name,
      a.arguments[1] as stream, a.arguments[2] as columns,
      notifyq.capture_problem(t.tgrelid, a.arguments) as problem,
      notifyq.capture_condition(t.oid) as condition,
      t.tgtype & 1 = 1 as is_by_row, t.tgenabled in ('O', 'A') as is_enabled
    from pg_trigger as t
    -- The bits of tgtype are the operations; in tgargs each argument ends with a zero byte.
    join (
      values (1, 'insert', 4), (2, 'update', 16), (3, 'delete', 8), (4, 'truncate', 32)
    ) as o (ordinal, operation, bit) on t.tgtype & o.bit > 0
    cross join lateral (
      select array_agg(
        convert_from(decode(p.part, 'hex'), getdatabaseencoding()) order by p.ordinal
      )
      from regexp_split_to_table(
        regexp_replace(encode(t.tgargs, 'hex'), '(..)', e'\\1 ', 'g'), '00 '
      ) with ordinality as p (part, ordinal)
    ) as a (arguments)
    where t.tgfoid in (
        'notifyq.capture_rows'::regproc, 'notifyq.capture_updates'::regproc,
        'notifyq.capture_each'::regproc
      )
      and t.tgparentid = 0
  ) as c
  where captures.stream is null
    or c.stream = captures.stream
  group by c.relation, c.stream, c.columns, c.problem, c.condition, c.is_by_row, c.is_enabled
  order by c.relation::text, c.stream, min(c.ordinal);
$$;
comment on function messages.captures(text) is
  'Tables that are captured into the stream (null: any), with operations and triggers; is_by_row: '
  'by row triggers instead of statement triggers. problem: why changes cannot be published, so '
  'that writing to the table fails; null: they can.';

create or replace function messages.uncapture(relation regclass, stream text)
  returns boolean language plpgsql
as $$
declare
  v_name text;
  v_is_there boolean := false;
begin
  for v_name in
    select t.name
    from messages.captures(stream) as c
    cross join pg_catalog.unnest(c.triggers) as t (name)
    where c.relation operator(pg_catalog.=) uncapture.relation
  loop
    execute pg_catalog.format('drop trigger %I on %s', v_name, relation);
    v_is_there := true;
  end loop;
  return v_is_there;
end;
$$;
comment on function messages.uncapture(regclass, text) is
  'End the capture of a table into a stream. Only the owner of the table may. False: there was '
  'none.';

-- Without this, the next statement that changes the table would fail. Captures that fail already do
-- not count: any publisher can create such a trigger.
create or replace function notifyq.check_captured(stream text)
  returns void language plpgsql stable
as $$
declare
  v_relations text := (
    select string_agg(distinct c.relation::text, ', ')
    from messages.captures(check_captured.stream) as c
    where c.problem is null
  );
begin
  if v_relations is not null then
    perform notifyq.raise_invalid(
      format('tables are captured into stream %L: %s', stream, v_relations),
      'call messages.uncapture() for each first'
    );
  end if;
end;
$$;
