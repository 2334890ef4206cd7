-- Search: archived messages by conditions, in bounded steps.
--
-- raises: NQ003 invalid argument

-- All queues of the archive, by one index scan for each. queues_of() is planned anew in each call,
-- which would be most of the cost over all days.
create or replace function notifyq.archived_queues()
  returns text[] language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_queues text[] := array[]::text[];
  v_queue text := '';
begin
  loop
    v_queue := (
      select a.queue from messages.message_archive as a
      where a.queue > v_queue
      order by a.queue
      limit 1
    );
    exit when v_queue is null;
    v_queues := v_queues || v_queue;
  end loop;
  return v_queues;
end;
$$;

-- Finds finished messages that match the conditions, the latest first; with is_ascending the oldest
-- first, only dead ones that were not published again. The archive may be huge: nothing sorts or
-- counts it. Messages come in the order of time by an index, the conditions are tried on each, and
-- when budget is used up, the last row has the state `more` and the position to continue from.
create or replace function notifyq.search_archive_step(
  c notifyq.search_conditions,
  quantity integer,
  position_at timestamptz,
  position_id bigint,
  budget interval,
  is_ascending boolean
)
  returns setof notifyq.found_message language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_path text := case
    when is_ascending then 'dead_up'
    -- All cancelled ones are rejected.
    when c.state in ('dead', 'failed', 'lock_expired') then 'dead'
    -- Only messages that did not succeed have a subscriber or an error.
    when c.state = 'rejected' or coalesce(c.subscriber, c.error, c.fingerprint) is not null
      and c.state is null then 'failed'
    when c.queue is not null then 'queue' else 'window' end;
  v_kind text := v_path;
  v_low timestamptz := greatest(
    c.since_at, case when is_ascending then position_at end, '-infinity'::timestamptz
  );
  v_high timestamptz := least(
    coalesce(c.until_at - interval '1 microsecond', clock_timestamp()),
    case when not is_ascending then position_at end
  );
  v_id bigint := coalesce(position_id, case when is_ascending then 0 else 9223372036854775807 end);
  v_is_dated boolean := c.payload::text ~ '[.]datetime[(]';
  v_queues text[];
  v_from timestamptz;
  v_width interval := interval '1 hour';
  v_most integer := case when c.payload is null then 4000 else 400 end;
  v_count bigint;
  v_scanned bigint := 0::bigint;
  v_left integer := quantity;
  v_end timestamptz;
  v_row record;
  v_more notifyq.found_message;
begin
  perform notifyq.check_duration('budget', budget);
  v_end := clock_timestamp() + budget;
  v_more.state := 'more';
  -- Not by an index of all queues: positions to continue from would be those of foreign messages.
  if c.readable is not null then
    v_path := case when c.queue is null then 'window' else 'queue' end;
  end if;
  if v_path = 'window' then
    v_queues := coalesce(c.readable, notifyq.archived_queues());
    -- From 9999 back, windows would grow beyond the range of instants. A year is for wrong clocks.
    v_high := least(v_high, clock_timestamp() + interval '1 year');
    v_low := greatest(v_low, (
      select coalesce(min(f.archived_at), 'infinity')
      from unnest(v_queues) as q (name)
      cross join lateral (
        select a.archived_at from messages.message_archive as a
        where a.queue = q.name order by a.archived_at limit 1
      ) as f
    ));
  end if;
  while v_low <= v_high loop
    v_from := v_low;
    if v_path = 'window' then
      -- No index has all queues by time: every finish would have to maintain it. This finds a span
      -- of time that has few enough messages to sort.
      v_from := greatest(v_high - v_width, v_low);
      select count(*) into v_count
      from (
        select
        -- Not `any`: the planner could choose an index with another first column.
        from unnest(v_queues) as q (name)
        cross join lateral (
          select
          from messages.message_archive as a
          where a.queue = q.name and a.archived_at between v_from and v_high
          offset 0
        ) as a
        limit v_most + 1
      ) as w;
      if v_count > v_most and v_width > interval '10 microseconds' then
        v_width := v_width / 8;
        continue;
      end if;
    end if;
    for v_row in
      select s.id, s.archived_at, case
          when (c.state is null or c.state = 'dead' or s.status::text = c.state)
            and (
              v_kind = v_path
              or case v_kind
                when 'dead' then notifyq.is_dead(s.status, s.cancelled_by)
                when 'failed' then s.status <> 'success'
                else true
              end
            )
            and (c.subscriber is null or s.subscriber = c.subscriber)
            and notifyq.meets_conditions(
              c, s.queue, s.type, s.key, s.dedup_key, s.handled_by, s.details, s.message, v_is_dated
            )
            and (
              not is_ascending and c.state is distinct from 'dead'
              or not exists (select from notifyq.redrive as r where r.archive_id = s.id offset 0)
            )
          then row(
            s.id, s.queue, s.status, s.created_at, s.available_at, s.locked_at, null,
            s.archived_at, s.priority, s.attempts, s.type, s.key, s.dedup_key, s.handled_by,
            s.subscriber, s.event_id,
            (select r.message_id from notifyq.redrive as r where r.archive_id = s.id),
            left(s.details, 1000), notifyq.shorten_payload(s.message)
          )::notifyq.found_message
        end as found
      -- One of the branches runs. A comparison of rows alone would leave out no partition.
      from (
        (
          select a.* from messages.message_archive as a
          where v_path = 'dead' and notifyq.is_dead(a.status, a.cancelled_by)
            and a.archived_at between v_from and v_high and (a.archived_at, a.id) < (v_high, v_id)
          order by a.archived_at desc, a.id desc
        )
        union all
        (
          select a.* from messages.message_archive as a
          where v_path = 'failed' and a.status <> 'success'
            and a.archived_at between v_from and v_high and (a.archived_at, a.id) < (v_high, v_id)
          order by a.archived_at desc, a.id desc
        )
        union all
        (
          select a.* from messages.message_archive as a
          where v_path = 'dead_up' and notifyq.is_dead(a.status, a.cancelled_by)
            and a.archived_at between v_from and v_high and (a.archived_at, a.id) > (v_from, v_id)
          order by a.archived_at, a.id
        )
        union all
        (
          select a.* from messages.message_archive as a
          where v_path = 'queue' and a.queue = c.queue
            and a.archived_at between v_from and v_high and (a.archived_at, a.id) < (v_high, v_id)
          order by a.archived_at desc, a.id desc
        )
        union all
        (
          select a.*
          from unnest(v_queues) as q (name)
          cross join lateral (
            select o.* from messages.message_archive as o
            where v_path = 'window' and o.queue = q.name
              and o.archived_at between v_from and v_high
              and (o.archived_at, o.id) < (v_high, v_id)
            offset 0
          ) as a
          order by a.archived_at desc, a.id desc
        )
      ) as s
    loop
      if (v_row.found).id is not null then
        return next v_row.found;
        v_left := v_left - 1;
      end if;
      v_scanned := v_scanned + 1;
      if v_left = 0 or v_scanned % 100 = 0 and clock_timestamp() > v_end then
        v_more.id := v_row.id;
        v_more.archived_at := v_row.archived_at;
        return next v_more;
        return;
      end if;
    end loop;
    exit when v_from <= v_low;
    v_high := v_from - interval '1 microsecond';
    v_id := 9223372036854775807;
    if v_count < v_most / 8 then
      v_width := v_width * 8;
    elsif clock_timestamp() > v_end then
      v_more.id := v_id;
      v_more.archived_at := v_high;
      return next v_more;
      return;
    end if;
  end loop;
end;
$$;

create or replace function notifyq.search_archive(
  conditions jsonb default '{}',
  quantity integer default 50,
  before_at timestamptz default null,
  before_id bigint default null,
  budget interval default '500 milliseconds'
)
  returns setof notifyq.found_message language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    conditions, array['success', 'rejected', 'failed', 'lock_expired', 'dead']
  );
begin
  perform notifyq.check_quantity(search_archive.quantity, 1000);
  c.readable := notifyq.readable_names(c.queue);
  return query
  select f.*
  from notifyq.search_archive_step(c, quantity, before_at, before_id, budget, false) as f;
end;
$$;
comment on function notifyq.search_archive is
  'Finished messages that match all conditions, the latest first, before before_at and before_id '
  '(null: the latest): a JSON object of state (success, rejected, failed, lock_expired, or dead: '
  'any of the last three that was not cancelled or published again), queue, subscriber, type, '
  'key, dedup_key, worker (a prefix of its name), error (a part of details), fingerprint, payload '
  '(a JSON path predicate), since and until (of archived_at). With subscriber, error or '
  'fingerprint, only messages that did not succeed are searched, unless state is success. It '
  'scans for about budget: where there may be more, the last row has the state `more`, and '
  'archived_at and id are the position to continue from. Raises NQ003.';
