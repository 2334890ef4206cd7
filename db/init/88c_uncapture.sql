-- Uncapture: what is captured, what becomes of it, and how that ends.
--
-- owns:    nothing
-- writes:  messages.event (by _publish_events); drops triggers of captured tables
-- calls:   messages._publish_events, messages._invalid, messages._watched_columns
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found

-- Whether the owner of a table may publish into a stream.
create or replace function messages._may_capture(relation oid, stream text)
  returns boolean
  language plpgsql
  stable
as $$
declare
  v_owner oid;
begin
  if not exists (select from messages.queue_grant as g where g.queue = _may_capture.stream) then
    return true;
  end if;
  v_owner := (select c.relowner from pg_class as c where c.oid = _may_capture.relation);
  return exists (
    select from messages.queue_grant as g
    where g.queue = _may_capture.stream
      and g.may_publish
      and pg_has_role(v_owner, to_regrole(quote_ident(g.role))::oid, 'usage')
  ) or coalesce(pg_has_role(v_owner, to_regrole('notifyq_admin')::oid, 'usage'), false);
end;
$$;

-- What keeps a trigger of a capture from putting changes on a stream, or null.
create or replace function messages._capture_problem(relation oid, arguments text[])
  returns text
  language plpgsql
  stable
as $$
declare
  v_gone text[];
begin
  v_gone := array(
    select w.name from unnest(messages._watched_columns(arguments[2])) as w (name)
    where not exists (
      select from pg_attribute as a
      where a.attrelid = _capture_problem.relation and a.attname = w.name
        and a.attnum > 0 and not a.attisdropped
    )
  );
  return case
    when v_gone <> '{}' then format('it has columns that are gone: %s', v_gone)
    when not exists (select from messages.stream as s where s.name = arguments[1])
    then format('there is no stream %L', arguments[1])
    when not messages._may_capture(relation, arguments[1])
    then 'the owner of the table may not publish into the stream'
  end;
exception
  when sqlstate 'NQ003' then
    return sqlerrm;
end;
$$;

-- The rights are those of the owner of the table, who had it captured: whoever writes to the table
-- needs none to the stream, and the functions are of no use to reach the streams of others.
create or replace function messages._publish_captured(
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
  if not messages._may_capture(relation, stream) then
    raise exception using
      errcode = 'NQ007',
      message = format(
        'role %I, the owner of the captured table %s, may not publish into stream %L',
        (select pg_get_userbyid(c.relowner) from pg_class as c where c.oid = relation),
        relation::regclass, stream
      ),
      hint = 'an admin can allow it with messages.grant_queue(), or call uncapture()';
  end if;
  perform messages._publish_events(
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
  set search_path = pg_catalog, messages, pg_temp
as $$
  select c.relation, c.stream, array_agg(c.operation order by c.place),
    case when c.problem is null then nullif(c.columns, '')::text[] end, c.condition, c.is_by_row,
    c.is_enabled, array_agg(c.name order by c.place), c.problem
  from (
    select t.tgrelid::regclass as relation, o.place, o.operation, t.tgname::text as name,
      a.arguments[1] as stream, a.arguments[2] as columns,
      messages._capture_problem(t.tgrelid, a.arguments) as problem,
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
        'messages.capture_rows'::regproc, 'messages.capture_updates'::regproc,
        'messages.capture_each'::regproc
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
create or replace function messages._check_captured(stream text)
  returns void
  language plpgsql
  stable
as $$
declare
  v_relations text := (
    select string_agg(distinct c.relation::text, ', ')
    from messages.captures(_check_captured.stream) as c
    where c.problem is null
  );
begin
  if v_relations is not null then
    perform messages._invalid(
      format('stream %L has the changes of %s', stream, v_relations), 'call uncapture() first'
    );
  end if;
end;
$$;
