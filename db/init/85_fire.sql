-- Fire: publish what is due by a schedule, once for each of its times.
--
-- owns:    nothing
-- writes:  messages.schedule, messages.message
-- calls:   messages._cron_around, messages._schedule_named, messages._check_quantity
-- raises:  NQ003 invalid argument, NQ017 schedule not found

-- One message for each of these times, by one statement; returns the id of the last.
create or replace function messages._publish_due(schedule messages.schedule, due timestamptz[])
  returns bigint
  language plpgsql
  -- So that a time reads the same whoever fires.
  set timezone = 'UTC'
as $$
declare
  v_id bigint;
begin
  if due = '{}' then
    return null;
  end if;
  with published as (
    -- The token is one that nobody else can give to a new message, see _admit(): a schedule was
    -- allowed to publish when it was defined, and who fires it need not be allowed to.
    insert into messages.message as m
      (queue, message, headers, type, priority, key, max_attempts, available_at, lock_token)
    select
      schedule.queue, schedule.message,
      schedule.headers || jsonb_build_object('schedule', schedule.name, 'due', d.due),
      schedule.type, schedule.priority, schedule.key, schedule.max_attempts,
      -- The transaction may have begun before the time had come; without jitter it has now.
      case when schedule.jitter > interval '0'
        then greatest(now(), d.due + random() * schedule.jitter) else now()
      end,
      1
    from unnest(_publish_due.due) as d (due)
    order by d.due
    returning m.id
  )
  select max(p.id) into v_id from published as p;
  -- None, where they were diverted into message_volatile.
  return coalesce(v_id, currval('messages.message_id_seq'));
end;
$$;

-- What of a schedule is due: which times, whether to leave them out, and when it is due again.
create or replace function messages._fire(schedule messages.schedule, until timestamptz)
  returns integer
  language plpgsql
as $$
declare
  v_around timestamptz[] := messages._cron_around(
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
  while cardinality(v_due) < v_most loop
    v_due := v_time || v_due;
    exit when v_time <= schedule.next_at;
    v_time := (
      messages._cron_around(
        schedule.cron, schedule.timezone, schedule.next_at, v_time - interval '1 second'
      )
    )[1];
  end loop;
  v_id := messages._publish_due(schedule, v_due);
  update messages.schedule as s
  set next_at = v_around[2],
    last_at = case when v_id is null then s.last_at else v_last end,
    last_id = coalesce(v_id, s.last_id),
    skipped_at = case when v_id is null then v_last else s.skipped_at end,
    failed_at = null,
    last_error = null
  where s.name = schedule.name;
  return cardinality(v_due);
end;
$$;

create or replace function messages.fire_schedules(quantity integer default 100)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  -- By the index, from what has been due for longest: nothing else is looked at.
  set enable_seqscan = off
  set enable_bitmapscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_schedule messages.schedule;
  v_error text;
  v_fired integer := 0;
begin
  perform messages._check_quantity(fire_schedules.quantity, 10000);
  -- Whoever locks the row first fires; to all others it has its next time by then.
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
      v_fired := v_fired + messages._fire(v_schedule, v_now);
    exception
      -- One whose queue is gone must not stop the others, nor the upkeep.
      when others then
        get stacked diagnostics v_error = message_text;
        update messages.schedule as s
        set failed_at = v_now, last_error = left(v_error, 1000)
        where s.name = v_schedule.name;
        raise warning 'notifyq: schedule % cannot fire, it is tried again in a minute: %',
          v_schedule.name, v_error;
    end;
    -- The others come with the next call.
    exit when clock_timestamp() > v_now + interval '2 seconds';
  end loop;
  return v_fired;
end;
$$;
comment on function messages.fire_schedules(integer) is
  'Publish what is due by up to quantity schedules; return how many messages. maintain() does it. '
  'A schedule that cannot fire is tried again a minute later, with a WARNING each time.';

create or replace function messages.next_schedule()
  returns interval
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
as $$
declare
  v_next_at timestamptz := (
    select s.next_at
    from messages.schedule as s
    where s.enabled
      -- One that cannot fire is looked at by the upkeep.
      and s.failed_at is null
    order by s.next_at
    limit 1
  );
begin
  return greatest(v_next_at - clock_timestamp(), interval '0');
end;
$$;
comment on function messages.next_schedule() is
  'How long it is until a schedule is due; zero if one is, null if there is none. For whoever '
  'sleeps until then to call fire_schedules().';

create or replace function messages.run_schedule(name text)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_schedule messages.schedule := messages._schedule_named(name);
  v_due timestamptz := date_trunc('second', clock_timestamp());
  v_id bigint;
begin
  v_schedule.jitter := interval '0';
  v_id := messages._publish_due(v_schedule, array[v_due]);
  update messages.schedule as s
  set last_at = v_due, last_id = v_id
  where s.name = v_schedule.name;
  return v_id;
end;
$$;
comment on function messages.run_schedule(text) is
  'Publish the message of a schedule now, also of a disabled one and beside an earlier one; return '
  'its id. The next time stays as it is. Raises NQ017 for an unknown schedule.';
