-- Filter: which messages a claim wants, said as a JSON path predicate.
--
-- A path is data: the server parses it as jsonpath, and nothing of it ever becomes SQL. What it
-- cannot compute for a message (a division by zero, a text where a number is meant) is no match.
--
-- raises: NQ003 invalid argument

-- Whether a filter needs more than the payload: one with variables, or with instants, which an
-- operator would not compare with dates.
create or replace function notifyq.needs_row(filter jsonpath)
  returns boolean
  language sql
  immutable
as $$
  -- As the server writes a path, each name is quoted.
  select filter::text ~ '\$"|\.datetime\(';
$$;

-- Whether somebody has made an index that finds messages by what is in them, and it can help: with
-- values that the filter names, in the payload.
create or replace function notifyq.is_indexed(filter jsonpath)
  returns boolean
  language sql
  stable
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

-- All that a filter matches. It is a constant of the plan, else no index could be used for it, and
-- the rest of the condition is written so that the index of what waits looks no better.
create or replace function notifyq.find_matching(queue text, filter jsonpath)
  returns bigint[]
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_indexscan = off
  -- Which find_messages() has switched off, and that holds for what it calls.
  set enable_bitmapscan = on
  set jit = off
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

-- The ids of messages that match, in the order in which they are handed out. An index knows no
-- order, so all of them have to be found: only where the first ones do not give enough.
create or replace function notifyq.find_by_index(
  queue text, quantity integer, filter jsonpath
)
  returns bigint[]
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_sort = on
  set jit = off
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
  returns boolean
  language sql
  stable
  -- A date is compared with an instant as the one at which it begins there.
  set timezone = 'UTC'
as $$
  select case when filter::text ~ '\$"|\.datetime\('
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

-- Whether a path says yes or no, and not a value, which would match nothing. As the server writes
-- a path, an operator at its top has brackets around it, and within them only those operators
-- outside of further brackets that bind as loosely, or more tightly.
create or replace function notifyq.is_predicate(filter jsonpath)
  returns boolean
  language plpgsql
  immutable
as $$
declare
  -- Without texts, which may have anything in them.
  v_rest text := regexp_replace(
    regexp_replace(filter::text, '"(?:[^"\\]|\\.)*"', '', 'g'), '^strict ', ''
  );
begin
  if v_rest in ('true', 'false') then
    return true;
  elsif v_rest !~ '^(!|exists )?\(' then
    return false;
  end if;
  -- Without its first bracket, and all that are closed behind that, only the one is left that
  -- closes it.
  v_rest := regexp_replace(v_rest, '\(', '#');
  while v_rest ~ '\([^()]*\)' loop
    v_rest := regexp_replace(v_rest, '\([^()]*\)', '', 'g');
  end loop;
  return v_rest ~ '^(!|exists )#.*\)$'
    or v_rest ~ '^#.*\) is unknown$'
    or v_rest ~ '^#.* (==|!=|<|<=|>|>=|&&|\|\||like_regex|starts with) .*\)$';
end;
$$;

create or replace function notifyq.check_filter(filter jsonpath)
  returns void
  language plpgsql
as $$
declare
  v_quoted text;
  v_known text[] := array[
    'headers', 'id', 'type', 'key', 'priority', 'attempts', 'created_at'
  ];
begin
  for v_quoted in
    -- Texts, too, so that what looks like a variable inside of one is not taken for one.
    select q.parts[1] from regexp_matches(filter::text, '(\$?"(?:[^"\\]|\\.)*")', 'g') as q (parts)
  loop
    if v_quoted ^@ '$' and substr(v_quoted, 2)::jsonb #>> '{}' <> all (v_known) then
      perform notifyq.raise_invalid(
        format('a filter knows no variable %s', substr(v_quoted, 2)::jsonb #>> '{}'),
        '$ is the payload; beside it there are $' || array_to_string(v_known, ', $')
      );
    end if;
  end loop;
  if not notifyq.is_predicate(filter) then
    perform notifyq.raise_invalid(
      format('the filter %s finds values and says neither yes nor no', filter),
      'a filter is a predicate: write exists(...) around it, or compare, as in $.n < 3 or '
      '$.paid == true'
    );
  end if;
end;
$$;
