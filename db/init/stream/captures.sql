-- Captures: list the captures of tables, and end them.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found

-- capture() runs as its caller and with the search path of the caller, as no one else may change
-- the table and condition is the caller's: so all in it is named with its schema.

create or replace function messages.capture_sql(
  relation regclass,
  stream text,
  columns text[] default null,
  condition text default null,
  operations text[] default '{insert,update,delete,truncate}'
)
  returns setof text
  language plpgsql
  stable
  security definer
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
      format('%s is no table whose changes can be captured', relation),
      'capture the tables behind a view, and a foreign table where it is'
    );
  end if;
  if v_table.relnamespace in (
    'messages'::regnamespace, 'notifyq'::regnamespace, 'pg_catalog'::regnamespace
  ) then
    perform notifyq.raise_invalid(
      format('%s cannot be captured', relation), 'it is no table of yours'
    );
  end if;
  if not notifyq.has_role(pg_get_userbyid(v_table.relowner)) then
    raise exception using
      errcode = 'NQ007',
      message = format(
        'role %I may not capture %s: it is not the owner', notifyq.calling_role(), relation
      ),
      hint = format('have %I do it', pg_get_userbyid(v_table.relowner));
  end if;
  perform notifyq.check_access(v_stream.name, 'publish into');
  v_unknown := array(
    select u from unnest(operations) as u
    where u is null or u not in ('insert', 'update', 'delete', 'truncate')
  );
  if v_unknown <> '{}' or cardinality(operations) = 0 or operations is null then
    perform notifyq.raise_invalid(
      format('no such operations: %s', array_to_string(v_unknown, ', ', 'null')),
      'take some of insert, update, delete and truncate'
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
      'leave columns out for all of them'
    );
  end if;
  v_is_by_row := condition is not null or v_table.relkind = 'p' or exists (
    select from pg_inherits as i where v_table.oid in (i.inhrelid, i.inhparent)
  );
  -- One of a name for each: a second call takes the place of the first.
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
      -- A comment at the end of the condition must not go on.
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
  returns void
  language plpgsql
as $$
declare
  v_statement text;
  v_probe refcursor;
  v_problem text;
begin
  -- The owner of the schema may not; so this is what keeps functions of others from being called.
  if condition is not null then
    begin
      -- A cursor takes one statement: a condition that ends it and begins another one is refused.
      open v_probe for execute pg_catalog.format(
        'select from %s as new, %s as old where false and (%s%s)', relation, relation, condition,
        pg_catalog.chr(10)
      );
      close v_probe;
    exception
      when insufficient_privilege then
        raise;
      when syntax_error_or_access_rule_violation or feature_not_supported then
        get stacked diagnostics v_problem = message_text;
        raise exception using
          errcode = 'NQ003',
          message = pg_catalog.concat('condition: ', v_problem),
          hint = 'it is an SQL expression over the rows new and old';
    end;
  end if;
  for v_statement in
    select s.statement
    from messages.capture_sql(relation, stream, columns, condition, operations) as s (statement)
  loop
    begin
      execute v_statement;
    exception
      when insufficient_privilege then
        raise;
      when syntax_error_or_access_rule_violation or feature_not_supported then
        get stacked diagnostics v_problem = message_text;
        raise exception using
          errcode = 'NQ003',
          message = pg_catalog.concat('condition: ', v_problem),
          hint = 'an insert has no old row and a delete no new one: call capture() for each';
    end;
  end loop;
end;
$$;
comment on function messages.capture(regclass, text, text[], text, text[]) is
  'Put the inserts, updates, deletes and truncates of a table, or those operations of them, on a '
  'stream, in the transaction that makes them. With columns events hold those, and an update that '
  'changes none of them is no event. condition is an SQL expression over the rows new and old, '
  'evaluated as whoever writes to the table. Called again for the same table, stream and '
  'operation it takes the place of the former call. Only the owner of a table may. Raises NQ003, '
  'NQ007 without the right to publish into the stream, and NQ020 for an unknown stream.';

-- Uncapture: what is captured, what becomes of it, and how that ends.

-- Whether the owner of a table may publish into a stream.
create or replace function notifyq.may_capture(relation oid, stream text)
  returns boolean
  language plpgsql
  stable
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

-- What keeps a trigger of a capture from putting changes on a stream, or null.
create or replace function notifyq.capture_problem(relation oid, arguments text[])
  returns text
  language plpgsql
  stable
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

-- The rights are those of the owner of the table, who had it captured: whoever writes to the table
-- needs none to the stream, and the functions are of no use to reach the streams of others.
create or replace function notifyq.publish_captured(
  relation oid,
  stream text,
  payloads jsonb[],
  keys text[],
  operation text
)
  returns void
  language plpgsql
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
  returns setof messages.capture_report
  language sql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
  select c.relation, c.stream, array_agg(c.operation order by c.place),
    case when c.problem is null then nullif(c.columns, '')::text[] end, c.condition, c.is_by_row,
    c.is_enabled, array_agg(c.name order by c.place), c.problem
  from (
    select t.tgrelid::regclass as relation, o.place, o.operation, t.tgname::text as name,
      a.arguments[1] as stream, a.arguments[2] as columns,
      notifyq.capture_problem(t.tgrelid, a.arguments) as problem,
      substring(pg_get_triggerdef(t.oid) from ' WHEN \((.*)\) EXECUTE FUNCTION ') as condition,
      t.tgtype & 1 = 1 as is_by_row, t.tgenabled in ('O', 'A') as is_enabled
    from pg_trigger as t
    -- The bits of tgtype say which operation it is; as arguments are kept, each ends with a zero.
    join (
      values (1, 'insert', 4), (2, 'update', 16), (3, 'delete', 8), (4, 'truncate', 32)
    ) as o (place, operation, bit) on t.tgtype & o.bit > 0
    cross join lateral (
      select array_agg(convert_from(decode(p.part, 'hex'), getdatabaseencoding()) order by p.place)
      from regexp_split_to_table(
        regexp_replace(encode(t.tgargs, 'hex'), '(..)', '\1 ', 'g'), '00 '
      ) with ordinality as p (part, place)
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
  order by c.relation::text, c.stream, min(c.place);
$$;
comment on function messages.captures(text) is
  'Which tables are captured into the stream (null: any), which operations, and by which triggers; '
  'is_by_row where each row is an event of its own trigger, and not the statement as a whole. '
  'problem: what keeps it from being captured, so that writing to the table fails; null: nothing.';

create or replace function messages.uncapture(relation regclass, stream text)
  returns boolean
  language plpgsql
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

-- Else the next statement that changes the table would fail. A capture that fails already, as the
-- owner of the table may not publish, does not count: any publisher can make such a trigger.
create or replace function notifyq.check_captured(stream text)
  returns void
  language plpgsql
  stable
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
      format('stream %L has the changes of %s', stream, v_relations), 'call uncapture() first'
    );
  end if;
end;
$$;
