-- Groups: dead messages by the fingerprint of their error, and actions on all that match.
--
-- raises: NQ003 invalid argument

create or replace function notifyq.dead_groups(
  conditions jsonb default '{}',
  quantity integer default 50,
  before_at timestamptz default null,
  before_id bigint default null,
  budget interval default '1 second'
)
  returns setof notifyq.dead_group language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  -- Planned while the archive is empty, a sort of all dead rows is cheaper than one of equal times.
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(conditions, array['dead']);
  v_end timestamptz;
  v_at timestamptz := least(
    before_at, c.until_at - interval '1 microsecond', 'infinity'::timestamptz
  );
  v_id bigint := coalesce(before_id, 9223372036854775807);
  v_slice integer := 1000;
  v_scanned bigint;
  v_some notifyq.dead_group[];
  v_groups notifyq.dead_group[] := array[]::notifyq.dead_group[];
  v_last notifyq.dead_group;
begin
  c.readable := notifyq.readable_names(c.queue);
  perform notifyq.check_quantity(dead_groups.quantity, 2000);
  perform notifyq.check_duration('budget', dead_groups.budget);
  v_end := clock_timestamp() + dead_groups.budget;
  if coalesce(c.key, c.dedup_key, c.worker, c.error, c.fingerprint, c.payload::text) is not null
  then
    perform notifyq.raise_invalid(
      'groups can be restricted by queue, subscriber, type, since and until only',
      'search_archive() takes the fingerprint of a group, and more'
    );
  end if;
  v_last.dead := 0;
  loop
    with scanned as materialized (
      select a.id, a.archived_at, a.queue, a.status, a.type, a.subscriber,
        left(a.details, 1000) as details
      from messages.message_archive as a
      where notifyq.is_dead(a.status, a.cancelled_by) and a.archived_at <= v_at
        and (a.archived_at < v_at or a.id < v_id)
        -- Not `is null or`: that is no index condition.
        and a.archived_at >= coalesce(c.since_at, '-infinity')
        and (c.readable is null or a.queue = any (c.readable))
      order by a.archived_at desc, a.id desc
      limit v_slice
    ), same as (
      -- A fingerprint is the same for all digits but 0, which begins 0x1: other digits become 1.
      -- It costs more than all the rest, and each distinct line gets it once.
      select translate(
          coalesce(split_part(ltrim(l.details, e' \t\r\n'), e'\n', 1), ''), '23456789', '11111111'
        ) as line, l.queue, l.status,
        count(*) as dead, min(l.archived_at) as first_at, max(l.archived_at) as last_at,
        (array_agg(l.id order by l.archived_at desc, l.id desc))[1] as last_id,
        (array_agg(l.details order by l.archived_at desc, l.id desc))[1] as sample
      from scanned as l
      where (c.queue is null or l.queue = c.queue)
        and (c.type is null or l.type = c.type)
        and (c.subscriber is null or l.subscriber = c.subscriber)
        and not exists (select from notifyq.redrive as r where r.archive_id = l.id offset 0)
      group by 1, l.queue, l.status
    )
    select count(*), min(l.archived_at), (array_agg(l.id order by l.archived_at, l.id))[1],
      array(
        select row(
          notifyq.error_fingerprint(s.line), s.dead, s.first_at, s.last_at, s.last_id,
          array[s.queue], array[s.status], s.sample
        )::notifyq.dead_group
        from same as s
      )
    into v_scanned, v_at, v_id, v_some
    from scanned as l;
    v_groups := v_groups || v_some;
    v_last.dead := v_last.dead + v_scanned;
    exit when v_scanned < v_slice;
    -- So many distinct errors would not fit into memory much longer.
    if clock_timestamp() > v_end or cardinality(v_groups) > 50000 then
      v_last.first_at := v_at;
      v_last.last_id := v_id;
      exit;
    end if;
    v_slice := least(v_slice * 2, 20000);
  end loop;
  return query
  select g.fingerprint, sum(g.dead)::bigint, min(g.first_at), max(g.last_at),
    (array_agg(g.last_id order by g.last_at desc, g.last_id desc))[1],
    (array_agg(distinct g.queues[1]))[1:20], array_agg(distinct g.statuses[1]),
    (array_agg(g.sample order by g.last_at desc, g.last_id desc))[1]
  from unnest(v_groups) as g
  group by g.fingerprint
  order by 2 desc, 4 desc, 1
  limit dead_groups.quantity;
  return next v_last;
end;
$$;
comment on function notifyq.dead_groups is
  'Dead messages that were not published again, grouped by the fingerprint of their error, the '
  'largest groups first: how many, first and last time, the id of the last one (last_id) with its '
  'details (sample), queues and statuses. Conditions are queue, subscriber, type, since and until, '
  'as in search_archive(). It scans back from before_at and before_id (null: the latest) for about '
  'budget. The last row has no fingerprint: dead is the number of scanned rows, first_at and '
  'last_id are the position to continue from, null at the end. Raises NQ003.';

-- Actions on all matching dead messages run in steps, each a transaction of its own: one call for a
-- million messages would lock them all until its end, and report no progress.

-- The oldest first: messages keep their order when they are published again.
create or replace function notifyq.find_dead(
  conditions jsonb,
  quantity integer,
  position_at timestamptz,
  position_id bigint,
  budget interval
)
  returns messages.step_report language plpgsql stable
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    conditions, array['dead', 'rejected', 'failed', 'lock_expired']
  );
  v_step messages.step_report;
begin
  perform notifyq.check_quantity(find_dead.quantity, 100000);
  if c.until_at is null then
    perform notifyq.raise_invalid(
      'the condition until is missing',
      'without it, a message that fails again would be published again and again'
    );
  end if;
  c.state := coalesce(c.state, 'dead');
  select count(*) filter (where f.state <> 'more'), 0::bigint,
    max(f.archived_at) filter (where f.state = 'more'), max(f.id) filter (where f.state = 'more'),
    count(*) filter (where f.state = 'more') = 0,
    coalesce(array_agg(f.id) filter (where f.state <> 'more'), '{}'), '{}'::text[]
  into v_step
  from notifyq.search_archive_step(c, quantity, position_at, position_id, budget, true) as f;
  return v_step;
end;
$$;

create or replace function notifyq.count_dead_matching(
  conditions jsonb,
  quantity integer default 10000,
  position_at timestamptz default null,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_step messages.step_report := notifyq.find_dead(
    conditions, quantity, position_at, position_id, budget
  );
begin
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function notifyq.count_dead_matching is
  'How many dead messages dead_retry_matching() or dead_delete_matching() would find with these '
  'conditions: up to quantity, within about budget. is_over: these are all; else continue from '
  'position_at and position_id. Raises NQ003.';

create or replace function messages.dead_retry_matching(
  conditions jsonb,
  quantity integer default 1000,
  position_at timestamptz default null,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_step messages.step_report := notifyq.find_dead(
    conditions, quantity, position_at, position_id, budget
  );
begin
  v_step.ids := notifyq.retry_accepted(array(
    select r.id from notifyq.retryable_message as r where r.id = any (v_step.ids) order by r.id
  ));
  v_step.done := cardinality(v_step.ids)::bigint;
  return v_step;
end;
$$;
comment on function messages.dead_retry_matching is
  'One step of publishing dead messages again, each once as dead_retry() does: the oldest first, '
  'up to quantity that match the conditions, see search_archive(). The condition until is '
  'required. Returns how many were found, how many of them were published (done; the others lost '
  'their queue or subscription, were refused by their queue, which raises a WARNING, or another '
  'session was first) under which ids, and where the next step continues, unless is_over. Raises '
  'NQ003.';

create or replace function messages.dead_delete_matching(
  conditions jsonb,
  quantity integer default 1000,
  position_at timestamptz default null,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_step messages.step_report := notifyq.find_dead(
    conditions, quantity, position_at, position_id, budget
  );
begin
  v_step.done := messages.dead_delete(variadic v_step.ids);
  v_step.ids := '{}';
  return v_step;
end;
$$;
comment on function messages.dead_delete_matching is
  'One step of deleting dead messages permanently, as dead_delete() does: arguments and result as '
  'in dead_retry_matching(). Messages that were published again stay. Raises NQ003.';
