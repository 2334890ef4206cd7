-- Schedules: define and remove what is published again and again.
--
-- owns:    nothing
-- writes:  messages.schedule
-- calls:   messages.cron_next, messages._queue, messages._invalid, messages._excess,
--          messages._check_attempts, messages._check_duration
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages._check_schedule(schedule messages.schedule)
  returns void
  language plpgsql
as $$
declare
  v_queue messages.queue := messages._queue(schedule.queue);
  v_bytes integer := octet_length(schedule.message::text) + octet_length(schedule.headers::text);
  v_excess text := coalesce(
    messages._excess('message', schedule.message), messages._excess('header', schedule.headers)
  );
begin
  if octet_length(schedule.name) not between 1 and 200
    or schedule.name ~ '[[:cntrl:]]'
    or schedule.name <> btrim(schedule.name)
  then
    perform messages._invalid(
      format('%L cannot be the name of a schedule', left(schedule.name, 200)),
      'a name has 1 to 200 bytes, no control character and no blank at its ends'
    );
  end if;
  if jsonb_typeof(schedule.headers) <> 'object' then
    perform messages._invalid('headers must be a JSON object');
  end if;
  -- Room for what each message says of its schedule.
  if v_bytes > v_queue.max_bytes - 500 then
    v_excess := format(
      'a message of %s bytes is too long for queue %L', v_bytes, left(v_queue.name, 200)
    );
  elsif octet_length(schedule.type) > 200 or octet_length(schedule.key) > 200 then
    v_excess := 'type and key must not have more than 200 bytes';
  end if;
  if v_excess is not null then
    perform messages._invalid(v_excess, 'else its messages could not be published');
  end if;
  perform messages._check_attempts(schedule.max_attempts);
  perform messages._check_duration('jitter', schedule.jitter);
  if schedule.jitter not between interval '0' and interval '1 day' then
    perform messages._invalid(format('jitter must be up to one day, not %s', schedule.jitter));
  end if;
  if schedule.overlap not in ('allow', 'skip_waiting', 'skip') then
    perform messages._invalid(
      format('overlap must be allow, skip_waiting or skip, not %s', schedule.overlap)
    );
  end if;
  if schedule.backfill not between 0 and 100 then
    perform messages._invalid(
      format('backfill must be between 0 and 100, not %s', schedule.backfill)
    );
  end if;
  if schedule.grace < interval '0' then
    perform messages._invalid('grace must not be negative');
  end if;
  perform messages._check_duration('grace', schedule.grace);
end;
$$;

-- The name as pg_timezone_names has it; what else PostgreSQL takes for a zone knows no summer.
create or replace function messages._timezone(name text)
  returns text
  language plpgsql
as $$
declare
  v_name text := (
    select z.name from pg_timezone_names as z where lower(z.name) = lower(_timezone.name) limit 1
  );
begin
  if v_name is null then
    perform messages._invalid(
      format('there is no time zone %L', left(name, 100)),
      'use a name like Europe/Oslo: pg_timezone_names lists them'
    );
  end if;
  return v_name;
end;
$$;

create or replace function messages.schedule(
  name text,
  cron text,
  queue text,
  message jsonb default 'null',
  timezone text default 'UTC',
  type text default null,
  headers jsonb default null,
  priority integer default 0,
  key text default null,
  max_attempts integer default null,
  jitter interval default interval '0',
  overlap text default 'allow',
  backfill integer default 1,
  grace interval default interval '5 minutes'
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_old messages.schedule;
  v_new messages.schedule;
begin
  if name is null or cron is null then
    perform messages._invalid('name and cron of a schedule must not be null');
  end if;
  select s.* into v_old from messages.schedule as s where s.name = schedule.name for update;
  v_new.name := name;
  v_new.cron := btrim(cron, e' \t\r\n');
  v_new.queue := queue;
  v_new.message := coalesce(message, 'null');
  v_new.headers := coalesce(headers, '{}');
  v_new.type := type;
  v_new.priority := coalesce(priority, 0);
  v_new.key := key;
  v_new.max_attempts := max_attempts;
  v_new.jitter := coalesce(jitter, interval '0');
  v_new.overlap := coalesce(overlap, 'allow');
  v_new.backfill := coalesce(backfill, 1);
  v_new.grace := coalesce(grace, interval '5 minutes');
  perform messages._check_schedule(v_new);
  v_new.timezone := coalesce(timezone, 'UTC');
  if v_new.timezone is distinct from v_old.timezone then
    v_new.timezone := messages._timezone(v_new.timezone);
  end if;
  -- A run that is due is not lost to a new payload.
  v_new.next_at := case
    when (v_new.cron, v_new.timezone) = (v_old.cron, v_old.timezone) then v_old.next_at
    else messages.cron_next(v_new.cron, v_new.timezone, clock_timestamp())
  end;
  insert into messages.schedule as s (
    name, cron, timezone, queue, message, headers, type, priority, key, max_attempts, jitter,
    overlap, backfill, grace, next_at
  )
  values (
    v_new.name, v_new.cron, v_new.timezone, v_new.queue, v_new.message, v_new.headers, v_new.type,
    v_new.priority, v_new.key, v_new.max_attempts, v_new.jitter, v_new.overlap, v_new.backfill,
    v_new.grace, v_new.next_at
  )
  on conflict on constraint schedule_name_pk do update
  set cron = excluded.cron, timezone = excluded.timezone, queue = excluded.queue,
    message = excluded.message, headers = excluded.headers, type = excluded.type,
    priority = excluded.priority, key = excluded.key, max_attempts = excluded.max_attempts,
    jitter = excluded.jitter, overlap = excluded.overlap, backfill = excluded.backfill,
    grace = excluded.grace, next_at = excluded.next_at, failed_at = null, last_error = null
  where (
    s.cron, s.timezone, s.queue, s.message, s.headers, s.type, s.priority, s.key, s.max_attempts,
    s.jitter, s.overlap, s.backfill, s.grace
  ) is distinct from (
    excluded.cron, excluded.timezone, excluded.queue, excluded.message, excluded.headers,
    excluded.type, excluded.priority, excluded.key, excluded.max_attempts, excluded.jitter,
    excluded.overlap, excluded.backfill, excluded.grace
  );
  return found;
end;
$$;
comment on function messages.schedule(
  text, text, text, jsonb, text, text, jsonb, integer, text, integer, interval, text, integer,
  interval
) is
  'Publish a message into a queue again and again, see cron_next() for cron. Defines the schedule '
  'of this name, or redefines it: whether it is enabled stays as it is. False: it was so already. '
  'jitter: each becomes available up to so much later. overlap: allow, skip_waiting (leave a run '
  'out while the last waits to be claimed) or skip (while the last is live). backfill: how many '
  'runs at most are made up for after nobody was there to fire them; one that is late by less than '
  'grace was not missed. Raises NQ001 for an unknown queue, NQ003 for what cannot be.';

create or replace function messages.unschedule(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  delete from messages.schedule as s where s.name = unschedule.name;
  return found;
end;
$$;
comment on function messages.unschedule(text) is
  'Remove a schedule; messages that it has published stay. False: there was none of this name.';
