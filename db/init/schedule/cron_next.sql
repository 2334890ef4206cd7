-- Next: the next time of a cron expression in a time zone.
--
-- raises: NQ003 invalid argument

-- A local time, without a zone, is passed as the instant at which a clock in UTC shows it; hence
-- the `set timezone` of these functions.

-- The local time of an instant.
create or replace function notifyq.local_time_at(at timestamptz, timezone text)
  returns timestamptz language plpgsql immutable
  set timezone = 'UTC'
as $$
begin
  return (local_time_at.at at time zone local_time_at.timezone) at time zone 'UTC';
end;
$$;

-- The instants of a local time: none if the clock was set forward over it, two if it was set back.
create or replace function notifyq.instants_of(local timestamptz, timezone text)
  returns timestamptz[] language plpgsql stable
  set timezone = 'UTC'
as $$
declare
  v_near timestamptz := (instants_of.local at time zone 'UTC') at time zone instants_of.timezone;
begin
  -- By the offsets of the day before and the day after.
  return array(
    select distinct i.instant
    from unnest(array[v_near - interval '1 day', v_near + interval '1 day']) as d (day)
    cross join lateral (
      select instants_of.local - (notifyq.local_time_at(d.day, instants_of.timezone) - d.day)
    ) as i (instant)
    where notifyq.local_time_at(i.instant, instants_of.timezone) = instants_of.local
    order by i.instant
  );
end;
$$;

-- The first second after the clock was set, somewhere in the two days around.
create or replace function notifyq.clock_change(around timestamptz, timezone text)
  returns timestamptz language plpgsql stable
  set timezone = 'UTC'
as $$
declare
  v_before timestamptz := date_trunc('second', around) - interval '1 day';
  v_after timestamptz := date_trunc('second', around) + interval '1 day';
  v_offset interval := notifyq.local_time_at(v_before, timezone) - v_before;
  v_middle timestamptz;
begin
  while v_after - v_before > interval '1 second' loop
    v_middle := date_trunc('second', v_before + (v_after - v_before) / 2);
    if notifyq.local_time_at(v_middle, timezone) - v_middle = v_offset then
      v_before := v_middle;
    else
      v_after := v_middle;
    end if;
  end loop;
  return v_after;
end;
$$;

-- The first day from this one on that fits; null: there is none in 50 years.
create or replace function notifyq.next_day(
  day date, days integer[], months integer[], weekdays integer[], must_fit_both boolean
)
  returns date language plpgsql immutable
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
      -- Most often the first day fits.
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

-- The next local time that fits the expression; null as above.
create or replace function notifyq.next_local_time(local timestamptz, fields text[])
  returns timestamptz language plpgsql stable
  set timezone = 'UTC'
as $$
declare
  v_seconds integer[] := notifyq.cron_values('second', fields[1], 0, 59);
  v_minutes integer[] := notifyq.cron_values('minute', fields[2], 0, 59);
  v_hours integer[] := notifyq.cron_values('hour', fields[3], 0, 23);
  v_from timestamptz := date_trunc('second', local) + interval '1 second';
  v_start date := v_from::date;
  v_second integer := extract(second from v_from)::integer;
  v_minute integer := extract(minute from v_from)::integer;
  v_hour integer := extract(hour from v_from)::integer;
  v_found integer;
  v_day date;
begin
  -- From the seconds up: a field without a later value carries over to the next larger one.
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
  v_day := notifyq.next_day(
    v_start,
    notifyq.cron_values('day of the month', fields[4], 1, 31),
    notifyq.cron_values(
      'month', fields[5], 1, 12, '{jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'
    ),
    notifyq.cron_values('day of the week', fields[6], 0, 7, '{sun,mon,tue,wed,thu,fri,sat}'),
    -- As in all crons since Vixie's: a day must fit both fields if one of them begins with a
    -- star, else either of them.
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

-- Wildcard minutes or hours count real time: they come twice if the clock is set back, and not at
-- all in a gap.
create or replace function notifyq.next_wildcard(
  fields text[], timezone text, later_than timestamptz
)
  returns timestamptz language plpgsql stable
as $$
declare
  v_local timestamptz := notifyq.local_time_at(later_than, timezone);
  v_instants timestamptz[] := notifyq.instants_of(date_trunc('second', v_local), timezone);
  v_found timestamptz;
  v_change timestamptz;
  v_again timestamptz;
begin
  loop
    v_again := notifyq.next_local_time(v_local, fields);
    exit when v_again is null;
    select min(i) into v_found
    from unnest(notifyq.instants_of(v_again, timezone)) as i
    where i > later_than;
    exit when v_found is not null;
    -- In a gap: continue where the clock does.
    v_change := notifyq.clock_change(v_again, timezone);
    v_local := notifyq.local_time_at(v_change, timezone) - interval '1 second';
  end loop;
  if v_instants[2] > later_than then
    -- The clock is set back in this hour: its local times come once more.
    v_change := notifyq.clock_change(v_instants[2], timezone);
    v_again := notifyq.next_local_time(
      notifyq.local_time_at(v_change, timezone) - interval '1 second', fields
    );
    select least(v_found, min(i)) into v_found
    from unnest(notifyq.instants_of(v_again, timezone)) as i
    where i >= v_change;
  end if;
  return v_found;
end;
$$;

-- Fixed times come once a day: right after a gap that skips them, and the first time of two.
create or replace function notifyq.next_fixed(fields text[], timezone text, later_than timestamptz)
  returns timestamptz language plpgsql stable
as $$
declare
  v_local timestamptz := notifyq.local_time_at(later_than, timezone);
  v_found timestamptz;
begin
  loop
    v_local := notifyq.next_local_time(v_local, fields);
    exit when v_local is null;
    v_found := coalesce(
      (notifyq.instants_of(v_local, timezone))[1], notifyq.clock_change(v_local, timezone)
    );
    exit when v_found > later_than;
    -- Set back, and shown before: continue with new local times.
    v_local := notifyq.local_time_at(
      notifyq.clock_change(v_found, timezone) - interval '1 second', timezone
    );
  end loop;
  return v_found;
end;
$$;

create or replace function messages.cron_next(
  cron text, timezone text default 'UTC', later_than timestamptz default null
)
  returns timestamptz language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_after timestamptz := coalesce(cron_next.later_than, now());
  v_every bigint := notifyq.cron_every(cron);
  v_fields text[];
  v_next timestamptz;
begin
  perform notifyq.check_instant('later_than', v_after);
  if v_every is not null then
    v_next := to_timestamp((floor(extract(epoch from v_after) / v_every) + 1) * v_every);
    perform notifyq.check_instant('the next instant', v_next);
    return v_next;
  end if;
  v_fields := notifyq.cron_fields(cron);
  begin
    perform notifyq.local_time_at(v_after, timezone);
  exception
    when invalid_parameter_value then
      perform notifyq.check_timezone(timezone);
  end;
  if v_fields[2] like '*%' or v_fields[3] like '*%' then
    v_next := notifyq.next_wildcard(v_fields, timezone, v_after);
  else
    v_next := notifyq.next_fixed(v_fields, timezone, v_after);
  end if;
  if v_next is null then
    perform notifyq.raise_invalid(
      format('%L never runs: no day fits it in 50 years', left(cron, 100)),
      'check its day of the month, month and day of the week'
    );
  end if;
  perform notifyq.check_instant('the next instant', v_next);
  return v_next;
end;
$$;
comment on function messages.cron_next(text, text, timestamptz) is
  'The next time of a cron expression after an instant (null: after now), in a time zone. Five '
  'fields or, with seconds first, six; names, ranges, lists and steps; L, LW, friL and fri#2; '
  '@daily and similar names; @every with an interval, which counts from 1970. If the clock is set '
  'forward, a fixed time in the gap comes right after it; if it is set back, a fixed time comes '
  'once, the first time; * in minutes or hours counts the hours that really pass. Raises NQ003 '
  'for an invalid expression, with the field and the reason.';

-- The last run in the period since..until, and the next one; there was a run at since.
create or replace function notifyq.cron_around(
  cron text, timezone text, since timestamptz, until timestamptz
)
  returns timestamptz[] language plpgsql stable
  set timezone = 'UTC'
as $$
declare
  v_last timestamptz := since;
  v_next timestamptz := messages.cron_next(cron, timezone, since);
  v_found timestamptz;
  v_middle timestamptz;
  -- No run after this instant, up to until.
  v_high timestamptz := until;
  v_step interval := interval '1 second';
begin
  if v_next > until then
    return array[v_last, v_next];
  end if;
  v_next := null;
  -- Back in growing steps until a run is found, ...
  loop
    v_middle := greatest(since, until - v_step);
    v_found := messages.cron_next(cron, timezone, v_middle);
    exit when v_found <= until;
    v_high := v_middle;
    v_next := v_found;
    v_step := v_step * 4;
  end loop;
  v_last := v_found;
  -- ... then bisect.
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
