-- Cron: read an expression.
--
-- raises: NQ003 invalid argument

-- Raise an error that describes what the field may be.
create or replace function notifyq.raise_invalid_cron(
  field text, term text, lowest integer, highest integer, names text[]
)
  returns void language plpgsql
as $$
begin
  perform notifyq.raise_invalid(
    format('%L cannot be the %s of a cron expression', left(term, 100), field),
    format(
      'give a number from %s to %s%s, a range like %s-%s, * for all, each with a step '
      'like */2, or a list with commas%s',
      lowest, highest,
      case when names <> '{}' then format(' or %s to %s', names[1], names[cardinality(names)])
      else '' end,
      lowest, highest,
      case field
        when 'day of the month' then '; L is the last day, LW the last from Monday to Friday'
        when 'day of the week' then '; friL is the last Friday of the month, fri#2 the second'
        else ''
      end
    )
  );
end;
$$;

-- A number, or the number of a name; null: neither.
create or replace function notifyq.cron_number(word text, lowest integer, names text[])
  returns integer language plpgsql immutable
as $$
begin
  if word ~ '^[0-9]{1,2}$' then
    return word::integer;
  end if;
  return array_position(names, word) + lowest - 1;
end;
$$;

-- The values of one field. Besides the numbers of the field: 32 and 33 are the last day and the
-- last working day of a month; a day of the week has 10 to 50 added for the first to the fifth of
-- the month, and 60 for the last.
create or replace function notifyq.cron_values(
  field text, expression text, lowest integer, highest integer, names text[] default '{}'
)
  returns integer[] language plpgsql
as $$
declare
  v_term text;
  v_parts text[];
  v_first integer;
  v_last integer;
  v_step integer;
  v_values integer[] := array[]::integer[];
begin
  -- Most fields are a star or a number, and each call reads all fields.
  if expression = '*' then
    return (
      '{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,'
      '33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59}'::integer[]
    )[lowest + 1 : least(highest, case field when 'day of the week' then 6 else 59 end) + 1];
  elsif length(expression) < 3 and expression ~ '^[0-9]+$'
    and expression::integer between lowest and highest
    and field <> 'day of the week'
  then
    return array[expression::integer];
  end if;
  foreach v_term in array string_to_array(expression, ',') loop
    -- Captures: first, -last, last, /step, step, which one of the month.
    v_parts := regexp_match(
      v_term, '^([*]|[0-9]{1,2}|[a-z]{3})(-([0-9]{1,2}|[a-z]{3}))?(/([0-9]{1,2}))?(l|#[1-5])?$'
    );
    if field = 'day of the month' and v_term in ('l', 'lw') then
      v_values := v_values || case v_term when 'l' then 32 else 33 end;
      continue;
    end if;
    v_first := case v_parts[1]
      when '*' then lowest else notifyq.cron_number(v_parts[1], lowest, names)
    end;
    v_step := coalesce(v_parts[5]::integer, 1);
    v_last := case
      when v_parts[3] is not null then notifyq.cron_number(v_parts[3], lowest, names)
      when v_parts[1] = '*' or v_parts[5] is not null then highest
      else v_first
    end;
    -- A week may end with Sunday.
    if field = 'day of the week' and v_first > 0 and v_last = 0 then
      v_last := 7;
    end if;
    if (v_first between lowest and highest and v_last between v_first and highest) is not true
      or v_step = 0
      or v_parts[1] = '*' and v_parts[3] is not null
      or v_parts[6] is not null
        and (field <> 'day of the week' or v_parts[1] = '*' or coalesce(v_parts[2], v_parts[4])
          is not null)
    then
      perform notifyq.raise_invalid_cron(field, v_term, lowest, highest, names);
    end if;
    v_values := v_values || case
      when v_parts[6] = 'l' then array[v_first % 7 + 60]
      when v_parts[6] is not null then array[v_first % 7 + right(v_parts[6], 1)::integer * 10]
      when field = 'day of the week' then
        array(select n % 7 from generate_series(v_first, v_last, v_step) as n)
      else array(select n from generate_series(v_first, v_last, v_step) as n)
    end;
  end loop;
  return array(select distinct v from unnest(v_values) as v order by v);
end;
$$;

-- The six fields of an expression, as texts.
create or replace function notifyq.cron_fields(cron text)
  returns text[] language plpgsql
as $$
declare
  v_cron text := lower(btrim(cron, e' \t\r\n'));
  v_fields text[];
begin
  v_cron := case v_cron
    when '@hourly' then '0 * * * *'
    when '@daily' then '0 0 * * *'
    when '@midnight' then '0 0 * * *'
    when '@weekly' then '0 0 * * 0'
    when '@monthly' then '0 0 1 * *'
    when '@yearly' then '0 0 1 1 *'
    when '@annually' then '0 0 1 1 *'
    else v_cron
  end;
  v_fields := regexp_split_to_array(v_cron, '[[:space:]]+');
  if cardinality(v_fields) = 5 then
    v_fields := '0'::text || v_fields;
  end if;
  if (cardinality(v_fields) = 6 and left(v_cron, 1) <> '@') is not true then
    perform notifyq.raise_invalid(
      format('%L is not a cron expression', left(cron, 100)),
      'give minute, hour, day of the month, month and day of the week, as in 30 8 * * mon-fri; '
      'seconds before them; @hourly, @daily, @weekly, @monthly or @yearly; or @every 90s'
    );
  end if;
  return v_fields;
end;
$$;

-- The seconds of `@every`; null: another expression.
create or replace function notifyq.cron_every(cron text)
  returns bigint language plpgsql
as $$
declare
  v_text text := (regexp_match(btrim(cron, e' \t\r\n'), '^@every[[:space:]]+(.+)$', 'i'))[1];
  v_every interval;
begin
  if v_text is null then
    return null;
  end if;
  begin
    v_every := v_text::interval;
  exception
    when data_exception then v_every := null;
  end;
  if (
    extract(epoch from v_every) between 1 and 31536000
    and extract(epoch from v_every) % 1 = 0
    -- Months differ in length.
    and extract(year from v_every) = 0
    and extract(month from v_every) = 0
  ) is not true then
    perform notifyq.raise_invalid(
      format('%L cannot be the interval of @every', left(v_text, 100)),
      'give whole seconds, from one second to 365 days, as in @every 90s or @every 1h30m'
    );
  end if;
  return extract(epoch from v_every)::bigint;
end;
$$;
