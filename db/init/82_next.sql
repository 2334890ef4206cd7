-- Next: when a cron expression fits next, and when it last did.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._next_shown, messages._instants, messages._clock_change, messages._shown,
--          messages._cron_fields, messages._cron_every, messages._invalid, messages._check_instant
-- raises:  NQ003 invalid argument

-- Minutes or hours that begin with a star mean each that really passes: twice where the clock is
-- set back, never where it jumps.
create or replace function messages._next_passing(
  fields text[], timezone text, later_than timestamptz
)
  returns timestamptz
  language plpgsql
  stable
as $$
declare
  v_shown timestamptz := messages._shown(later_than, timezone);
  v_now timestamptz[] := messages._instants(date_trunc('second', v_shown), timezone);
  v_found timestamptz;
  v_change timestamptz;
  v_again timestamptz;
begin
  loop
    v_again := messages._next_shown(v_shown, fields);
    exit when v_again is null;
    select min(i) into v_found
    from unnest(messages._instants(v_again, timezone)) as i
    where i > later_than;
    exit when v_found is not null;
    -- Jumped over: go on where the clock does.
    v_change := messages._clock_change(v_again, timezone);
    v_shown := messages._shown(v_change, timezone) - interval '1 second';
  end loop;
  if v_now[2] > later_than then
    -- What the clock has shown in this hour, it shows once more.
    v_change := messages._clock_change(v_now[2], timezone);
    v_again := messages._next_shown(
      messages._shown(v_change, timezone) - interval '1 second', fields
    );
    select least(v_found, min(i)) into v_found
    from unnest(messages._instants(v_again, timezone)) as i
    where i >= v_change;
  end if;
  return v_found;
end;
$$;

-- Fixed times come once a day: at once after a jump over them, and the first time of two.
create or replace function messages._next_fixed(
  fields text[], timezone text, later_than timestamptz
)
  returns timestamptz
  language plpgsql
  stable
as $$
declare
  v_shown timestamptz := messages._shown(later_than, timezone);
  v_found timestamptz;
begin
  loop
    v_shown := messages._next_shown(v_shown, fields);
    exit when v_shown is null;
    v_found := coalesce(
      (messages._instants(v_shown, timezone))[1], messages._clock_change(v_shown, timezone)
    );
    exit when v_found > later_than;
    -- Set back, and shown before: go on with what is new.
    v_shown := messages._shown(
      messages._clock_change(v_found, timezone) - interval '1 second', timezone
    );
  end loop;
  return v_found;
end;
$$;

create or replace function messages.cron_next(
  cron text,
  timezone text default 'UTC',
  later_than timestamptz default null
)
  returns timestamptz
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_after timestamptz := coalesce(cron_next.later_than, now());
  v_every bigint := messages._cron_every(cron);
  v_fields text[];
  v_next timestamptz;
begin
  perform messages._check_instant('later_than', v_after);
  if v_every is not null then
    v_next := to_timestamp((floor(extract(epoch from v_after) / v_every) + 1) * v_every);
    perform messages._check_instant('the next instant', v_next);
    return v_next;
  end if;
  v_fields := messages._cron_fields(cron);
  begin
    perform messages._shown(v_after, timezone);
  exception
    when invalid_parameter_value then
      perform messages._invalid(
        format('there is no time zone %L', left(timezone, 100)),
        'use a name like Europe/Oslo: pg_timezone_names lists them'
      );
  end;
  if v_fields[2] like '*%' or v_fields[3] like '*%' then
    v_next := messages._next_passing(v_fields, timezone, v_after);
  else
    v_next := messages._next_fixed(v_fields, timezone, v_after);
  end if;
  if v_next is null then
    perform messages._invalid(
      format('%L never comes: no day fits it in 50 years', left(cron, 100)),
      'see its day of the month, month and day of the week'
    );
  end if;
  perform messages._check_instant('the next instant', v_next);
  return v_next;
end;
$$;
comment on function messages.cron_next(text, text, timestamptz) is
  'When a cron expression fits next, after an instant (null: after now), on the clocks of a time '
  'zone. Five fields or, with seconds first, six; names, ranges, lists and steps; L, LW, friL and '
  'fri#2; @daily and the like; @every with an interval, which counts from 1970. Where the clock '
  'jumps, a fixed time that it leaves out comes at once after the jump; where it is set back, a '
  'fixed time comes once, the first time; * in minutes or hours goes by the hours that really '
  'pass. Raises NQ003, which says what of the expression is wrong.';

-- The last time that it fitted, up to an instant and from one on at which it did, and the next.
create or replace function messages._cron_around(
  cron text, timezone text, since timestamptz, until timestamptz
)
  returns timestamptz[]
  language plpgsql
  stable
  set timezone = 'UTC'
as $$
declare
  v_last timestamptz := since;
  v_next timestamptz := messages.cron_next(cron, timezone, since);
  v_found timestamptz;
  v_middle timestamptz;
  -- None is later than this, up to the end.
  v_high timestamptz := until;
  v_step interval := interval '1 second';
begin
  if v_next > until then
    return array[v_last, v_next];
  end if;
  v_next := null;
  -- Back in growing steps to where one is still to come, ...
  loop
    v_middle := greatest(since, until - v_step);
    v_found := messages.cron_next(cron, timezone, v_middle);
    exit when v_found <= until;
    v_high := v_middle;
    v_next := v_found;
    v_step := v_step * 4;
  end loop;
  v_last := v_found;
  -- ... then halving.
  while v_high - v_last >= interval '1 second' loop
    v_middle := v_last + (v_high - v_last) / 2;
    v_found := messages.cron_next(cron, timezone, v_middle);
    if v_found > until then
      v_high := v_middle;
      v_next := v_found;
    else
      v_last := v_found;
    end if;
  end loop;
  return array[v_last, coalesce(v_next, messages.cron_next(cron, timezone, v_last))];
end;
$$;
