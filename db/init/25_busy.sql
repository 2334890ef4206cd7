-- Busy: which of many queues have something to hand out.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._work_done, messages._rest, messages._ms
-- raises:  nothing

-- Those of the queues (null: of all) in which something waits or is due; the queues as they were
-- given where finding that out was much work lately, and is left to a look into each. Each step
-- goes to the next queue that has an entry, so that those with nothing cost nothing.
create or replace function messages._busy_queues(queues text[], thorough boolean)
  returns text[]
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_place bigint[] := nullif(current_setting('notifyq.look_queues', true), '')::bigint[];
  v_now timestamptz := clock_timestamp();
  v_work bigint := -messages._work_done();
  v_rest bigint;
  v_names text[];
begin
  if not thorough and messages._ms(v_now) between v_place[1] and v_place[1] + v_place[2] then
    return queues;
  end if;
  with recursive waiting as (
    (
      select m.queue
      from messages.message as m
      where m.state = 'waiting'
      order by m.queue
      limit 1
    )
    union all
    select n.queue
    from waiting as w
    cross join lateral (
      select m.queue
      from messages.message as m
      where m.state = 'waiting'
        and m.queue > w.queue
      order by m.queue
      limit 1
    ) as n
  ),
  scheduled as (
    (
      select m.queue, m.available_at
      from messages.message as m
      where m.state = 'scheduled'
      order by m.queue, m.available_at
      limit 1
    )
    union all
    select n.queue, n.available_at
    from scheduled as s
    cross join lateral (
      select m.queue, m.available_at
      from messages.message as m
      where m.state = 'scheduled'
        and m.queue > s.queue
      order by m.queue, m.available_at
      limit 1
    ) as n
  ),
  found as (
    select w.queue from waiting as w
    union
    select s.queue from scheduled as s where s.available_at <= v_now
  )
  select array_agg(f.queue) into v_names
  from found as f
  where _busy_queues.queues is null
    or f.queue = any (_busy_queues.queues);
  v_work := v_work + messages._work_done();
  v_rest := messages._rest(v_work, v_now);
  if v_rest is not null or v_place is not null then
    perform set_config(
      'notifyq.look_queues',
      case when v_rest is null then '' else array[messages._ms(v_now), v_rest]::text end,
      false
    );
  end if;
  return coalesce(v_names, '{}');
end;
$$;
