-- Filters: JSON path predicates that select messages for a claim.
--
-- A path is data: the server parses it as jsonpath, and it never becomes SQL. A message for which
-- it cannot be computed (division by zero, text instead of a number) does not match.
--
-- raises: NQ003 invalid argument

-- Whether a filter needs more than the payload: it has variables, or instants, which the operator
-- @@ would not compare with dates.
create or replace function notifyq.needs_row(filter jsonpath)
  returns boolean language sql immutable
as $$
  -- The server's text of a path has each name in quotes.
  select filter::text ~ '[$]"|[.]datetime[(]';
$$;

-- Whether an index on the payload exists and can help: the filter compares values of the payload.
create or replace function notifyq.is_indexed(filter jsonpath)
  returns boolean language sql stable
as $$
  select filter::text ~ ' == ' and not notifyq.needs_row(filter) and exists (
    select
    from pg_index as x
    join pg_class as c on c.oid = x.indexrelid
    join pg_am as a on a.oid = c.relam and a.amname = 'gin'
    where x.indrelid = 'messages.message'::regclass
      and x.indisvalid
  );
$$;

-- All ids that a filter matches. The filter is a constant of the plan: otherwise no index could be
-- used for it. The other conditions are written in a way that the index on waiting messages costs
-- no less.
create or replace function notifyq.find_matching(queue text, filter jsonpath)
  returns bigint[] language plpgsql stable
  set enable_seqscan = off set enable_indexscan = off
  -- claim() has it off, and settings hold for functions that it calls.
  set enable_bitmapscan = on set jit = off
as $$
declare
  v_ids bigint[];
begin
  execute format(
    'select array_agg(m.id) from messages.message as m where m.message @@ %L::jsonpath '
    'and m.state = %L and concat(m.queue) = %L',
    filter, 'waiting', queue
  ) into v_ids;
  return v_ids;
end;
$$;

-- Ids of matching messages, in queue order. The index has no order, so all matches have to be
-- found; that is done only if the first messages of the queue do not give enough.
create or replace function notifyq.find_by_index(queue text, quantity integer, filter jsonpath)
  returns bigint[] language plpgsql stable
  set enable_seqscan = off set enable_sort = on set jit = off
as $$
declare
  v_ids bigint[];
begin
  with first as materialized (
    select m.id, m.message
    from messages.message as m
    where m.queue = find_by_index.queue
      and m.state = 'waiting'
    order by m.priority desc, m.id
    limit 200
  )
  select array_agg(f.id) into v_ids from first as f where f.message @@ filter;
  if cardinality(v_ids) < quantity is not false then
    v_ids := notifyq.find_matching(queue, filter);
  end if;
  return array(
    select m.id
    from messages.message as m
    where m.id = any (v_ids)
    order by m.priority desc, m.id
  );
end;
$$;

create or replace function notifyq.matches(message messages.message, filter jsonpath)
  returns boolean language sql stable
  -- The zone in which a date is compared with an instant.
  set timezone = 'UTC'
as $$
  select case when filter::text ~ '[$]"|[.]datetime[(]'
    then jsonb_path_match_tz(
      message.message,
      filter,
      jsonb_build_object(
        'headers', message.headers,
        'id', message.id,
        'type', message.type,
        'key', message.key,
        'priority', message.priority,
        'attempts', message.attempts,
        'created_at', to_char(message.created_at, 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')
      ),
      true
    )
    else message.message @@ filter end;
$$;

-- Whether a path is a predicate: a path that gives a value would match nothing. In the server's
-- text of a predicate the operator at the top is in brackets, and inside of them, but outside of
-- further brackets, only operators stand that bind as loosely or more tightly.
create or replace function notifyq.is_predicate(filter jsonpath)
  returns boolean language plpgsql immutable
as $$
declare
  -- Without strings, which may contain anything.
  v_rest text := regexp_replace(
    regexp_replace(filter::text, e'"(?:[^"\\\\]|\\\\.)*"', '', 'g'), '^strict ', ''
  );
begin
  if v_rest in ('true', 'false') then
    return true;
  elsif v_rest !~ '^(!|exists )?[(]' then
    return false;
  end if;
  -- Remove the first bracket and then all pairs: only the bracket that closes it is left.
  v_rest := regexp_replace(v_rest, '[(]', '#');
  while v_rest ~ '[(][^()]*[)]' loop
    v_rest := regexp_replace(v_rest, '[(][^()]*[)]', '', 'g');
  end loop;
  return v_rest ~ '^(!|exists )#.*[)]$'
    or v_rest ~ '^#.*[)] is unknown$'
    or v_rest ~ '^#.* (==|!=|<|<=|>|>=|&&|[|][|]|like_regex|starts with) .*[)]$';
end;
$$;

create or replace function notifyq.check_filter(filter jsonpath)
  returns void language plpgsql
as $$
declare
  v_quoted text;
  v_known text[] := array[
    'headers', 'id', 'type', 'key', 'priority', 'attempts', 'created_at'
  ];
begin
  for v_quoted in
    -- Strings as well: text inside of one must not be taken for a variable.
    select q.parts[1]
    from regexp_matches(filter::text, e'(\\$?"(?:[^"\\\\]|\\\\.)*")', 'g') as q (parts)
  loop
    if v_quoted ^@ '$' and substr(v_quoted, 2)::jsonb #>> '{}' <> all (v_known) then
      perform notifyq.raise_invalid(
        format('a filter has no variable %s', substr(v_quoted, 2)::jsonb #>> '{}'),
        '$ is the payload; the variables are $' || array_to_string(v_known, ', $')
      );
    end if;
  end loop;
  if not notifyq.is_predicate(filter) then
    perform notifyq.raise_invalid(
      format('the filter %s gives values instead of true or false', filter),
      'write a predicate: exists(...), or a comparison such as $.n < 3 or $.paid == true'
    );
  end if;
end;
$$;
