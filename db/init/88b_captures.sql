-- Captures: begin the capture of a table.
--
-- capture() runs as its caller and with the search path of the caller, as no one else may change
-- the table and condition is the caller's: so all in it is named with its schema.
--
-- owns:    nothing
-- writes:  triggers notifyq_* of captured tables
-- calls:   messages._stream, messages._invalid, messages._caller, messages._has_role,
--          messages._check_access
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found

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
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream := messages._stream(stream);
  v_table pg_class;
  v_unknown text[];
  v_is_by_row boolean;
  v_operation text;
begin
  select c.* into v_table from pg_class as c where c.oid = capture_sql.relation;
  if v_table.relkind not in ('r', 'p') or v_table.relkind is null then
    perform messages._invalid(
      format('%s is no table whose changes can be captured', relation),
      'capture the tables behind a view, and a foreign table where it is'
    );
  end if;
  if v_table.relnamespace in ('messages'::regnamespace, 'pg_catalog'::regnamespace) then
    perform messages._invalid(format('%s cannot be captured', relation), 'it is no table of yours');
  end if;
  if not messages._has_role(pg_get_userbyid(v_table.relowner)) then
    raise exception using
      errcode = 'NQ007',
      message = format(
        'role %I may not capture %s: it is not the owner', messages._caller(), relation
      ),
      hint = format('have %I do it', pg_get_userbyid(v_table.relowner));
  end if;
  perform messages._check_access(v_stream.name, 'publish into');
  v_unknown := array(
    select u from unnest(operations) as u
    where u is null or u not in ('insert', 'update', 'delete', 'truncate')
  );
  if v_unknown <> '{}' or cardinality(operations) = 0 or operations is null then
    perform messages._invalid(
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
    perform messages._invalid(
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
        'execute function messages.%I(%L, %L)',
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
