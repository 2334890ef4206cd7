-- Clock: the next time that a cron expression means, in a time zone with all its changes.
--
-- What a clock shows, without a zone, goes from function to function as the instant at which a
-- clock in UTC shows it; hence the `set timezone` of these functions.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._cron_fields, messages._cron_values, messages._cron_every, messages._invalid
-- raises:  NQ003 invalid argument

-- What a clock of the zone shows at an instant.
create or replace function messages._shown(at timestamptz, timezone text)
  returns timestamptz
  language plpgsql
  immutable
  set timezone = 'UTC'
as $$
begin
  return (_shown.at at time zone _shown.timezone) at time zone 'UTC';
end;
$$;

-- The instants at which a clock of the zone shows this: none where it was set forward over it, two
-- where it was set back.
create or replace function messages._instants(shown timestamptz, timezone text)
  returns timestamptz[]
  language plpgsql
  stable
  set timezone = 'UTC'
as $$
declare
  v_near timestamptz := (_instants.shown at time zone 'UTC') at time zone _instants.timezone;
begin
  -- By the difference to UTC of the day before and that of the day after.
  return array(
    select distinct i.instant
    from unnest(array[v_near - interval '1 day', v_near + interval '1 day']) as d (day)
    cross join lateral (
      select _instants.shown - (messages._shown(d.day, _instants.timezone) - d.day)
    ) as i (instant)
    where messages._shown(i.instant, _instants.timezone) = _instants.shown
    order by i.instant
  );
end;
$$;

-- The first second after the clocks of the zone were set, somewhere in the two days around.
create or replace function messages._clock_change(around timestamptz, timezone text)
  returns timestamptz
  language plpgsql
  stable
  set timezone = 'UTC'
as $$
declare
  v_before timestamptz := date_trunc('second', around) - interval '1 day';
  v_after timestamptz := date_trunc('second', around) + interval '1 day';
  v_offset interval := messages._shown(v_before, timezone) - v_before;
  v_middle timestamptz;
begin
  while v_after - v_before > interval '1 second' loop
    v_middle := date_trunc('second', v_before + (v_after - v_before) / 2);
    if messages._shown(v_middle, timezone) - v_middle = v_offset then
      v_before := v_middle;
    else
      v_after := v_middle;
    end if;
  end loop;
  return v_after;
end;
$$;

-- The first day from this one on that fits; null: there is none in 50 years.
create or replace function messages._next_day(
  day date, days integer[], months integer[], weekdays integer[], must_fit_both boolean
)
  returns date
  language plpgsql
  immutable
as $$
declare
  v_first date := day;
  v_last date;
  v_found date;
  v_fits_day boolean;
  v_fits_weekday boolean;
begin
  for i in 0..600 loop
    v_last := (date_trunc('month', v_first::timestamp) + interval '1 month - 1 day')::date;
    if extract(month from v_first) = any (months) then
      -- Most often it is the first one that is looked at.
      v_fits_day := extract(day from v_first) = any (days);
      v_fits_weekday := extract(dow from v_first) = any (weekdays);
      if v_fits_day and v_fits_weekday
        or not must_fit_both and (v_fits_day or v_fits_weekday)
      then
        return v_first;
      end if;
      select min(d.day) into v_found
      from (
        select v_first + n, extract(day from v_first)::integer + n,
          extract(dow from v_first + n)::integer
        from generate_series(0, v_last - v_first) as n
      ) as d (day, number, weekday)
      cross join lateral (
        select
          d.number = any (days)
            or d.day = v_last and 32 = any (days)
            or 33 = any (days) and d.day = v_last - case extract(dow from v_last)
              when 6 then 1 when 0 then 2 else 0
            end,
          d.weekday = any (weekdays)
            or d.weekday + (d.number + 6) / 7 * 10 = any (weekdays)
            or d.weekday + 60 = any (weekdays) and d.day + 7 > v_last
      ) as fits (day, weekday)
      where fits.day and fits.weekday
        or not must_fit_both and (fits.day or fits.weekday);
      if v_found is not null then
        return v_found;
      end if;
    end if;
    v_first := v_last + 1;
  end loop;
  return null;
end;
$$;

-- What a clock shows when the expression fits next, after it has shown this; null as above.
create or replace function messages._next_shown(shown timestamptz, fields text[])
  returns timestamptz
  language plpgsql
  stable
  set timezone = 'UTC'
as $$
declare
  v_seconds integer[] := messages._cron_values('second', fields[1], 0, 59);
  v_minutes integer[] := messages._cron_values('minute', fields[2], 0, 59);
  v_hours integer[] := messages._cron_values('hour', fields[3], 0, 23);
  v_from timestamptz := date_trunc('second', shown) + interval '1 second';
  v_start date := v_from::date;
  v_second integer := extract(second from v_from)::integer;
  v_minute integer := extract(minute from v_from)::integer;
  v_hour integer := extract(hour from v_from)::integer;
  v_found integer;
  v_day date;
begin
  -- From the seconds up: what is too late for one field is left to the next of the greater one.
  v_found := (select min(v) from unnest(v_seconds) as v where v >= v_second);
  v_second := coalesce(v_found, v_seconds[1]);
  v_minute := v_minute + (v_found is null)::integer;
  v_found := (select min(v) from unnest(v_minutes) as v where v >= v_minute);
  v_second := case when v_found = v_minute then v_second else v_seconds[1] end;
  v_minute := coalesce(v_found, v_minutes[1]);
  v_hour := v_hour + (v_found is null)::integer;
  v_found := (select min(v) from unnest(v_hours) as v where v >= v_hour);
  if v_found is distinct from v_hour then
    v_second := v_seconds[1];
    v_minute := v_minutes[1];
  end if;
  v_start := v_start + (v_found is null)::integer;
  v_day := messages._next_day(
    v_start,
    messages._cron_values('day of the month', fields[4], 1, 31),
    messages._cron_values(
      'month', fields[5], 1, 12, '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'
    ),
    messages._cron_values('day of the week', fields[6], 0, 7, '{sun,mon,tue,wed,thu,fri,sat}'),
    -- As in all crons since Vixie's: a day must fit both fields if one of them begins with a star,
    -- else it is enough to fit either.
    fields[4] like '*%' or fields[6] like '*%'
  );
  if v_day > v_start then
    v_found := null;
  end if;
  if v_found is null then
    v_found := v_hours[1];
    v_minute := v_minutes[1];
    v_second := v_seconds[1];
  end if;
  return v_day::timestamptz
    + make_interval(hours => v_found, mins => v_minute, secs => v_second);
end;
$$;
