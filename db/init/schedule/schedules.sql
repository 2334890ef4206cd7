-- Schedules: define, pause and fire them.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ017 schedule not found

create or replace function notifyq.check_schedule(schedule messages.schedule)
  returns void language plpgsql
as $$
declare
  v_queue messages.queue := notifyq.find_queue(schedule.queue);
  v_bytes integer := octet_length(schedule.message::text) + octet_length(schedule.headers::text);
  v_excess text := coalesce(
    notifyq.limit_error('message', schedule.message),
    notifyq.limit_error('header', schedule.headers)
  );
begin
  perform notifyq.check_readable(array[v_queue.name], 'schedules');
  if octet_length(schedule.name) not between 1 and 200
    or schedule.name ~ '[[:cntrl:]]'
    or schedule.name <> btrim(schedule.name)
  then
    perform notifyq.raise_invalid(
      format('%L cannot be the name of a schedule', left(schedule.name, 200)),
      'a name has 1 to 200 bytes, no control character and no blank at its ends'
    );
  end if;
  if jsonb_typeof(schedule.headers) <> 'object' then
    perform notifyq.raise_invalid('headers must be a JSON object');
  end if;
  -- Leaves room for the headers that each run adds.
  if v_bytes > v_queue.max_bytes - 500 then
    v_excess := format(
      'a message of %s bytes is too long for queue %L', v_bytes, left(v_queue.name, 200)
    );
  elsif octet_length(schedule.type) > 200 or octet_length(schedule.key) > 200 then
    v_excess := 'type and key must not have more than 200 bytes';
  end if;
  if v_excess is not null then
    perform notifyq.raise_invalid(v_excess, 'its messages could not be published');
  end if;
  perform notifyq.check_between('max_attempts', schedule.max_attempts, 1, 1000);
  perform notifyq.check_duration('jitter', schedule.jitter);
  if schedule.jitter not between interval '0' and interval '1 day' then
    perform notifyq.raise_invalid(format('jitter must be up to one day, not %s', schedule.jitter));
  end if;
  perform notifyq.check_choice('overlap', schedule.overlap, '{allow,skip_waiting,skip}');
  perform notifyq.check_choice('when_unserved', schedule.when_unserved, '{publish,skip}');
  perform notifyq.check_between('backfill', schedule.backfill, 0, 100);
  if schedule.grace < interval '0' then
    perform notifyq.raise_invalid('grace must not be negative');
  end if;
  perform notifyq.check_duration('grace', schedule.grace);
end;
$$;

-- The name as pg_timezone_names has it: other zones that PostgreSQL accepts have no daylight
-- saving.
create or replace function notifyq.check_timezone(name text)
  returns text language plpgsql
as $$
declare
  v_name text := (
    select z.name from pg_timezone_names as z
    where lower(z.name) = lower(check_timezone.name) limit 1
  );
begin
  if v_name is null then
    perform notifyq.raise_invalid(
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
  grace interval default interval '5 minutes',
  when_unserved text default 'publish'
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_old messages.schedule;
  v_new messages.schedule;
begin
  if name is null or cron is null then
    perform notifyq.raise_invalid('name and cron of a schedule must not be null');
  end if;
  select s.* into v_old from messages.schedule as s where s.name = schedule.name for update;
  v_new.name := name;
  v_new.created_at := clock_timestamp();
  v_new.enabled := true;
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
  v_new.when_unserved := coalesce(when_unserved, 'publish');
  perform notifyq.check_schedule(v_new);
  v_new.timezone := coalesce(timezone, 'UTC');
  if v_new.timezone is distinct from v_old.timezone then
    v_new.timezone := notifyq.check_timezone(v_new.timezone);
  end if;
  -- A run that is due is not lost to a new payload.
  v_new.next_at := case
    when (v_new.cron, v_new.timezone) = (v_old.cron, v_old.timezone) then v_old.next_at
    else messages.cron_next(v_new.cron, v_new.timezone, clock_timestamp())
  end;
  insert into messages.schedule as s
  select v_new.*
  on conflict on constraint schedule_name_pk do update
  set cron = excluded.cron, timezone = excluded.timezone, queue = excluded.queue,
    message = excluded.message, headers = excluded.headers, type = excluded.type,
    priority = excluded.priority, key = excluded.key, max_attempts = excluded.max_attempts,
    jitter = excluded.jitter, overlap = excluded.overlap, backfill = excluded.backfill,
    grace = excluded.grace, when_unserved = excluded.when_unserved, next_at = excluded.next_at,
    failed_at = null, last_error = null, unserved_at = null
  where (
    s.cron, s.timezone, s.queue, s.message, s.headers, s.type, s.priority, s.key, s.max_attempts,
    s.jitter, s.overlap, s.backfill, s.grace, s.when_unserved
  ) is distinct from (
    excluded.cron, excluded.timezone, excluded.queue, excluded.message, excluded.headers,
    excluded.type, excluded.priority, excluded.key, excluded.max_attempts, excluded.jitter,
    excluded.overlap, excluded.backfill, excluded.grace, excluded.when_unserved
  );
  return found;
end;
$$;
comment on function messages.schedule(
  text, text, text, jsonb, text, text, jsonb, integer, text, integer, interval, text, integer,
  interval, text
) is
  'Publish a message into a queue at recurring times, see cron_next() for cron. Defines the '
  'schedule of this name, or redefines it, which keeps it enabled or disabled. False: nothing has '
  'changed. jitter: each message becomes available up to so much later. overlap: allow, '
  'skip_waiting (skip a run while the last message waits to be claimed) or skip (while it is '
  'live). backfill: how many missed runs at most are made up for. grace: with backfill 0, '
  'how late a run may be and still be published. when_unserved: publish, or skip (skip a run '
  'while messages have waited for a minute in the queue and no worker serves it). Raises NQ001 '
  'for an unknown queue, NQ003 for invalid arguments.';

create or replace function messages.unschedule(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  delete from messages.schedule as s where s.name = unschedule.name;
  return found;
end;
$$;
comment on function messages.unschedule(text) is
  'Remove a schedule; messages that it has published stay. False: there is none of this name.';

create or replace function notifyq.lock_schedule(name text)
  returns messages.schedule language plpgsql
as $$
declare
  v_schedule messages.schedule;
begin
  select s.* into v_schedule
  from messages.schedule as s
  where s.name = lock_schedule.name
  for update;
  if not found then
    raise exception using
      errcode = 'NQ017',
      message = format('there is no schedule %L', left(name, 200)),
      hint = '`notifyq schedules` or messages.schedule_info() lists them';
  end if;
  return v_schedule;
end;
$$;

create or replace function messages.schedule_info(name text default null)
  returns setof messages.schedule language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select s.*
  from messages.schedule as s
  cross join notifyq.readable_names(null) as r (names)
  where (schedule_info.name is null or s.name = schedule_info.name)
    and (r.names is null or s.queue = any (r.names))
  order by s.name;
$$;
comment on function messages.schedule_info(text) is
  'All schedules, or the one of this name: what they publish, the next run, and the last result.';

create or replace function messages.resume_schedule(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule messages.schedule := notifyq.lock_schedule(name);
begin
  update messages.schedule as s
  set enabled = true,
    next_at = messages.cron_next(s.cron, s.timezone, clock_timestamp()),
    failed_at = null,
    last_error = null
  where s.name = v_schedule.name
    and not s.enabled;
  return found;
end;
$$;
comment on function messages.resume_schedule(text) is
  'Let a schedule run again, from its next time on: runs that it missed while it was disabled are '
  'not made up for. False: it was enabled already. Raises NQ017 for an unknown schedule.';

create or replace function messages.pause_schedule(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule messages.schedule := notifyq.lock_schedule(name);
begin
  update messages.schedule as s
  set enabled = false
  where s.name = v_schedule.name
    and s.enabled;
  return found;
end;
$$;
comment on function messages.pause_schedule(text) is
  'Stop a schedule until resume_schedule(); redefining it does not enable it. False: it was '
  'disabled already. Raises NQ017 for an unknown schedule.';

-- Publish one message for each time, in one statement; returns the id of the last.
create or replace function notifyq.publish_due(schedule messages.schedule, due timestamptz[])
  returns bigint language plpgsql
  -- The text of a time must not depend on the session.
  set timezone = 'UTC'
as $$
begin
  -- Only notifyq can give this token to a new message, see admit(): the right to publish was
  -- checked when the schedule was defined, and the session that fires it need not have it.
  insert into messages.message
    (queue, message, headers, type, priority, key, max_attempts, available_at, lock_token)
  select
    schedule.queue, schedule.message,
    schedule.headers || jsonb_build_object('schedule', schedule.name, 'due', d.due),
    schedule.type, schedule.priority, schedule.key, schedule.max_attempts,
    -- now() may be before the due time, if the transaction began earlier; without jitter it is now.
    case when schedule.jitter > interval '0'
      then greatest(now(), d.due + random() * schedule.jitter) else now()
    end,
    1
  from unnest(publish_due.due) as d (due);
  -- Rows that were diverted into message_unlogged would not be returned.
  return case when due <> '{}' then currval('messages.message_id_seq') end;
end;
$$;

-- Publish the runs that are due, or skip them, and set the next run; returns how many.
create or replace function notifyq.fire_schedule(
  schedule messages.schedule,
  until timestamptz,
  is_unserved boolean
)
  returns integer language plpgsql
as $$
declare
  v_around timestamptz[] := notifyq.cron_around(
    schedule.cron, schedule.timezone, schedule.next_at, until
  );
  v_last timestamptz := v_around[1];
  v_most integer := greatest(schedule.backfill, (until - v_last <= schedule.grace)::integer);
  v_due timestamptz[] := array[]::timestamptz[];
  v_time timestamptz := v_last;
  v_id bigint;
begin
  if schedule.overlap <> 'allow' then
    v_most := least(v_most, 1);
    if exists (
      select from messages.message as m
      where m.id = schedule.last_id
        and (schedule.overlap = 'skip' or m.state <> 'locked')
    ) then
      v_most := 0;
    end if;
  end if;
  if is_unserved and schedule.when_unserved = 'skip' then
    v_most := 0;
  end if;
  while cardinality(v_due) < v_most loop
    v_due := v_time || v_due;
    exit when v_time <= schedule.next_at;
    v_time := (
      notifyq.cron_around(
        schedule.cron, schedule.timezone, schedule.next_at, v_time - interval '1 second'
      )
    )[1];
  end loop;
  v_id := notifyq.publish_due(schedule, v_due);
  update messages.schedule as s
  set next_at = v_around[2],
    last_at = case when v_id is null then s.last_at else v_last end,
    last_id = coalesce(v_id, s.last_id),
    skipped_at = case when v_id is null then v_last else s.skipped_at end,
    failed_at = null,
    last_error = null,
    unserved_at = case when is_unserved then coalesce(s.unserved_at, until) end
  where s.name = schedule.name;
  return cardinality(v_due);
end;
$$;

create or replace function notifyq.fire_schedules(
  quantity integer default 100, out fired text[], out unserved text[]
)
  returns record language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  -- In the order of the index: other schedules are not read.
  set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_schedule messages.schedule;
  v_unserved boolean;
  v_without text[];
  v_error text;
begin
  fired := array[]::text[];
  unserved := array[]::text[];
  perform notifyq.check_quantity(fire_schedules.quantity, 10000);
  -- The first session that locks the row fires; others then read its next time.
  for v_schedule in
    select s.*
    from messages.schedule as s
    where s.enabled
      and s.next_at <= v_now
      and (s.failed_at is null or s.failed_at <= v_now - interval '1 minute')
    order by s.next_at
    limit fire_schedules.quantity
    for update skip locked
  loop
    begin
      v_without := coalesce(v_without, notifyq.unserved_queues(array(
        select s.queue from messages.schedule as s where s.enabled and s.next_at <= v_now
      )));
      v_unserved := v_schedule.queue = any (v_without);
      fired := fired
        || array_fill(v_schedule.name, array[notifyq.fire_schedule(v_schedule, v_now, v_unserved)]);
      if v_unserved and v_schedule.unserved_at is null then
        unserved := unserved || format(
          'no worker serves queue %s, where messages wait and schedule %s %s', v_schedule.queue,
          v_schedule.name,
          case v_schedule.when_unserved when 'skip' then 'skips its runs' else 'publishes more' end
        );
        raise warning 'notifyq: %', unserved[cardinality(unserved)];
      end if;
    exception
      -- A schedule whose queue was dropped must stop neither the others nor maintenance.
      when others then
        get stacked diagnostics v_error = message_text;
        update messages.schedule as s
        set failed_at = v_now, last_error = left(v_error, 1000)
        where s.name = v_schedule.name;
        raise warning 'notifyq: schedule % cannot fire, next try in a minute: %',
          v_schedule.name, v_error;
    end;
    -- The next call fires the others.
    exit when clock_timestamp() > v_now + interval '2 seconds';
  end loop;
end;
$$;
comment on function notifyq.fire_schedules(integer) is
  'Publish the due runs of up to quantity schedules. fired: the name of its schedule for each '
  'message. unserved: a sentence for each schedule that finds its queue without a worker, also a '
  'WARNING; once until a run finds a worker. maintain() does it. A schedule that fails is tried '
  'again a minute later, with a WARNING each time.';

create or replace function notifyq.next_schedule()
  returns interval language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return (
    select greatest(s.next_at - clock_timestamp(), interval '0')
    from messages.schedule as s
    where s.enabled
      -- Maintenance tries again one that cannot fire.
      and s.failed_at is null
    order by s.next_at
    limit 1
  );
end;
$$;
comment on function notifyq.next_schedule() is
  'How long until a schedule is due; zero if one is, null if there is none. Workers sleep so long '
  'before fire_schedules().';

create or replace function messages.run_schedule(name text)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_schedule messages.schedule := notifyq.lock_schedule(name);
  v_due timestamptz := date_trunc('second', clock_timestamp());
  v_id bigint;
begin
  v_schedule.jitter := interval '0';
  v_id := notifyq.publish_due(v_schedule, array[v_due]);
  update messages.schedule as s
  set last_at = v_due, last_id = v_id
  where s.name = v_schedule.name;
  return v_id;
end;
$$;
comment on function messages.run_schedule(text) is
  'Publish the message of a schedule now, also of a disabled one and beside an earlier one; '
  'return its id. The next run stays as it is. Raises NQ017 for an unknown schedule.';
