-- Conditions: what a search asks for, out of JSON.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._invalid, messages._check_filter
-- raises:  NQ003 invalid argument

create or replace function messages._conditions(conditions jsonb, states text[])
  returns messages.search_conditions
  language plpgsql
  stable
as $$
declare
  v_known text[] := array[
    'state', 'queue', 'subscriber', 'type', 'key', 'dedup_key', 'worker', 'error', 'fingerprint',
    'payload', 'since', 'until'
  ];
  v_name text;
  v_found messages.search_conditions;
begin
  if jsonb_typeof(coalesce(conditions, '{}')) <> 'object' then
    perform messages._invalid('conditions must be a JSON object');
  end if;
  select k.name into v_name
  from jsonb_object_keys(coalesce(conditions, '{}')) as k (name)
  where k.name <> all (v_known)
  limit 1;
  if found then
    perform messages._invalid(
      format('a search knows no condition %L', left(v_name, 100)),
      'there are ' || array_to_string(v_known, ', ')
    );
  end if;
  begin
    v_found := jsonb_populate_record(
      null::messages.search_conditions,
      coalesce(conditions, '{}') || jsonb_build_object(
        'since_at', conditions -> 'since', 'until_at', conditions -> 'until'
      )
    );
  exception
    when data_exception or syntax_error then
      perform messages._invalid(
        format('a condition cannot be understood: %s', left(sqlerrm, 300)),
        'since and until are instants, payload is a JSON path like $.amount > 100'
      );
  end;
  if v_found.state <> all (states) then
    perform messages._invalid(
      format('there is no state %L to look for here', left(v_found.state, 100)),
      'there are ' || array_to_string(states, ', ')
    );
  end if;
  if v_found.payload is not null then
    perform messages._check_filter(v_found.payload);
    if regexp_replace(v_found.payload::text, '(?<!\$)"(?:[^"\\]|\\.)*"', '', 'g') ~ '\$"' then
      perform messages._invalid(
        'a search knows no variables', '$ is the payload; the rest has conditions of its own'
      );
    end if;
  end if;
  return v_found;
end;
$$;

-- With instants an operator would not do: it compares none of them with dates.
create or replace function messages._payload_matches(message jsonb, path jsonpath)
  returns boolean
  language sql
  stable
  set timezone = 'UTC'
as $$
  select jsonb_path_match_tz(message, path, '{}', true);
$$;

-- A page shows payloads that take no room, and asks for others one by one.
create or replace function messages._short(message jsonb)
  returns jsonb
  language sql
  immutable
as $$
  select case when pg_column_size(message) <= 1000 then message end;
$$;
