-- Filter: which messages a claim wants, said as a JSON path predicate.
--
-- A path is data: the server parses it as jsonpath, and nothing of it ever becomes SQL. What it
-- cannot compute for a message (a division by zero, a text where a number is meant) is no match.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._invalid, messages._queue, messages.claim, messages._check_limits
-- raises:  NQ001 queue not found, NQ003 invalid argument

-- Whether a filter needs more than the payload: one with variables, or with instants, which an
-- operator would not compare with dates.
create or replace function messages._needs_row(filter jsonpath)
  returns boolean
  language sql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  -- As the server writes a path, each name is quoted.
  select filter::text ~ '\$"|\.datetime\(';
$$;

create or replace function messages._matches(message messages.message, filter jsonpath)
  returns boolean
  language sql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
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

create or replace function messages._check_filter(filter jsonpath)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
      perform messages._invalid(
        format('a filter knows no variable %s', substr(v_quoted, 2)::jsonb #>> '{}'),
        '$ is the payload; beside it there are $' || array_to_string(v_known, ', $')
      );
    end if;
  end loop;
  if regexp_replace(filter::text, '"(?:[^"\\]|\\.)*"', '', 'g') ~ '^(strict )?\$[^?]*\?\(' then
    perform messages._invalid(
      format('the filter %s finds values and says neither yes nor no', filter),
      'a filter is a predicate: write exists(...) around it, or $.n < 3'
    );
  end if;
end;
$$;

-- One claim of several queues with a filter for each: what is first in the list goes first, and a
-- queue may be there more than once.
create or replace function messages._claim_each(
  queues text[],
  filters jsonpath[],
  quantity integer,
  lock_timeout interval,
  worker text,
  thorough boolean,
  max_attempts integer[]
)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_left integer := quantity;
  v_count integer;
begin
  perform messages._check_filters(queues, filters);
  perform messages._queue(u.name) from unnest(queues) as u (name);
  if max_attempts is not null then
    perform messages._check_limits(queues, max_attempts);
  end if;
  for v_place in 1 .. cardinality(queues) loop
    return query
    select c.*
    from messages.claim(
      array[queues[v_place]], v_left, lock_timeout, worker, filters[v_place], thorough,
      case when max_attempts is not null then array[max_attempts[v_place]] end
    ) as c;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left = 0;
  end loop;
end;
$$;

create or replace function messages._check_filters(queues text[], filters jsonpath[])
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if queues is null or queues = '{}' or array_position(queues, null) is not null then
    perform messages._invalid('queues must name at least one queue');
  end if;
  if filters is not null and cardinality(filters) <> cardinality(queues) then
    perform messages._invalid(
      format(
        'there are %s filters for %s queues', cardinality(filters), cardinality(queues)
      ),
      'give one for each queue in the list, null for none'
    );
  end if;
  perform messages._check_filter(f.filter)
  from unnest(filters) as f (filter)
  where f.filter is not null;
end;
$$;
