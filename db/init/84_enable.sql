-- Enable: list schedules, stop them for a while, and let them go on.
--
-- owns:    nothing
-- writes:  messages.schedule
-- calls:   messages.cron_next
-- raises:  NQ017 schedule not found

-- Locked until the end of the transaction.
create or replace function messages._schedule_named(name text)
  returns messages.schedule
  language plpgsql
as $$
declare
  v_schedule messages.schedule;
begin
  select s.* into v_schedule
  from messages.schedule as s
  where s.name = _schedule_named.name
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
  returns setof messages.schedule
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select s.*
  from messages.schedule as s
  where schedule_info.name is null or s.name = schedule_info.name
  order by s.name;
end;
$$;
comment on function messages.schedule_info(text) is
  'All schedules, or the one of this name: what they publish, when next, and how it went.';

create or replace function messages.enable_schedule(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_schedule messages.schedule := messages._schedule_named(name);
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
comment on function messages.enable_schedule(text) is
  'Let a schedule fire again, from its next time on: what came while it was disabled is not made '
  'up for. False: it was enabled already. Raises NQ017 for an unknown schedule.';

create or replace function messages.disable_schedule(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_schedule messages.schedule := messages._schedule_named(name);
begin
  update messages.schedule as s
  set enabled = false
  where s.name = v_schedule.name
    and s.enabled;
  return found;
end;
$$;
comment on function messages.disable_schedule(text) is
  'Let a schedule fire no more until it is enabled again; redefining it does not. False: it was '
  'disabled already. Raises NQ017 for an unknown schedule.';
