-- Bounds: durations and instants that all clients and functions can compute with.

-- Each part has its own bound: '5000000 years -1800000000 days' compares as a few years, but
-- overflows when it is added to an instant.
create or replace function notifyq.is_duration(value interval)
  returns boolean language sql immutable parallel safe
as $$
  select abs(extract(year from value)) <= 1000
    and abs(extract(day from value)) <= 366000
    and abs(extract(hour from value)) <= 8784000
    -- 1000 years, with leap days.
    and value between interval '-366000 days' and interval '366000 days';
$$;

-- A measured or summed duration, limited to what every client can hold.
create or replace function notifyq.bounded_interval(seconds double precision)
  returns interval language sql immutable parallel safe
as $$
  select make_interval(secs => least(greatest(seconds, -1e12), 1e12));
$$;

-- The years that dates can have in most languages.
create or replace function notifyq.is_instant(value timestamptz)
  returns boolean language sql immutable parallel safe
as $$
  select value >= '0001-01-01 00:00:00+00'::timestamptz
    and value < '10000-01-01 00:00:00+00'::timestamptz;
$$;
