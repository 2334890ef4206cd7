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

-- No index has all queues by time: every finish would have to maintain it. This finds the span of
-- time before upto that has about as many messages as wanted; it begins at _from.
create or replace function notifyq.search_window(
  queues text[],
  upto timestamptz,
  oldest timestamptz,
  wanted integer,
  inout width interval,
  out _from timestamptz
)
  language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_count integer;
  v_is_cut boolean := false;
begin
  loop
    _from := greatest(upto - width, oldest);
    select count(*)::integer into v_count
    from (
      select
      -- Not `any`: the planner could choose an index with another first column.
      from unnest(queues) as q (name)
      cross join lateral (
        select
        from messages.message_archive as a
        where a.queue = q.name and a.archived_at >= _from and a.archived_at <= upto
        offset 0
      ) as a
      limit wanted + 1
    ) as scanned;
    if v_count > wanted and width > interval '10 microseconds' then
      width := width / 8;
      v_is_cut := true;
    elsif v_count < wanted / 8 and _from > oldest and not v_is_cut then
      width := width * 8;
    else
      return;
    end if;
  end loop;
end;
$$;

-- Finds the keys of finished messages that match the conditions, the latest first; with
-- is_ascending the oldest first, for dead ones only. The archive may be huge: nothing sorts or
-- counts it. An index gives slices in the order of time, the conditions are tried on these, and
-- when budget is used up the next call continues from _at and _id; null: the end.
create or replace function notifyq.search_archive_step(
  c notifyq.search_conditions,
  quantity integer,
  position_at timestamptz,
  position_id bigint,
  budget interval,
  is_ascending boolean,
  out _ids bigint[],
  out _times timestamptz[],
  out _at timestamptz,
  out _id bigint
)
  language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_end timestamptz;
  v_slice integer := case when c.payload is null then 1000 else 100 end;
  v_most integer := case when c.payload is null then 10000 else 500 end;
  v_path text := case
    -- All cancelled ones are rejected.
    when c.state in ('dead', 'failed', 'lock_expired') then 'dead'
    -- Only messages that did not succeed have a subscriber or an error.
    when c.state = 'rejected' or coalesce(c.subscriber, c.error, c.fingerprint) is not null
      and c.state is null then 'failed'
    when c.queue is not null then 'queue' else 'window' end;
  v_low timestamptz := coalesce(c.since_at, '-infinity'::timestamptz);
  v_high timestamptz := coalesce(c.until_at - interval '1 microsecond', clock_timestamp());
  v_after_id bigint := coalesce(
    position_id, case when is_ascending then 0 else 9223372036854775807 end
  );
  v_is_plain boolean := c.payload::text !~ '[.]datetime[(]';
  v_begin text := case
    when c.fingerprint = '(no details)' then ''
    else split_part(split_part(c.fingerprint, '<', 1), ' ', 1) end;
  v_queues text[];
  v_from timestamptz;
  v_width interval := interval '1 hour';
  v_scanned bigint[];
  v_scanned_at timestamptz[];
  v_found bigint[];
  v_found_at timestamptz[];
  v_left integer;
begin
  perform notifyq.check_duration('budget', budget);
  v_end := clock_timestamp() + budget;
  _ids := '{}';
  _times := '{}';
  if is_ascending then
    v_path := 'dead_up';
    v_low := greatest(v_low, position_at);
  else
    v_high := least(v_high, position_at);
  end if;
  if v_path = 'window' then
    v_queues := case
      when c.queue is null then notifyq.archived_queues() else array[c.queue] end;
    if v_queues = '{}' then
      return;
    end if;
    v_low := greatest(v_low, (
      select min(f.archived_at)
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
      select w.width, w._from into v_width, v_from
      from notifyq.search_window(v_queues, v_high, v_low, v_slice, v_width) as w;
    end if;
    v_left := quantity - cardinality(_ids);
    -- One of the branches runs.
    with scanned as materialized (
      (
        select a.* from messages.message_archive as a
        where v_path = 'dead' and notifyq.is_dead(a.status, a.cancelled_by)
          and a.archived_at >= v_from and a.archived_at <= v_high
          and (a.archived_at < v_high or a.id < v_after_id)
        order by a.archived_at desc, a.id desc limit v_slice
      )
      union all
      (
        select a.* from messages.message_archive as a
        where v_path = 'failed' and a.status <> 'success' and a.archived_at >= v_from
          and a.archived_at <= v_high and (a.archived_at < v_high or a.id < v_after_id)
        order by a.archived_at desc, a.id desc limit v_slice
      )
      union all
      (
        select a.* from messages.message_archive as a
        where v_path = 'dead_up' and notifyq.is_dead(a.status, a.cancelled_by)
          and a.archived_at <= v_high
          and a.archived_at >= v_from and (a.archived_at > v_from or a.id > v_after_id)
        order by a.archived_at, a.id limit v_slice
      )
      union all
      (
        select a.* from messages.message_archive as a
        where v_path = 'queue' and a.queue = c.queue and a.archived_at >= v_from
          and a.archived_at <= v_high and (a.archived_at < v_high or a.id < v_after_id)
        order by a.archived_at desc, a.id desc limit v_slice
      )
      union all
      (
        select a.*
        from unnest(v_queues) as q (name)
        cross join lateral (
          select o.* from messages.message_archive as o
          where v_path = 'window' and o.queue = q.name and o.archived_at >= v_from
            and o.archived_at <= v_high and (o.archived_at < v_high or o.id < v_after_id)
          offset 0
        ) as a
        order by a.archived_at desc, a.id desc limit v_slice
      )
    ),
    matching as (
      select l.id, l.archived_at
      from scanned as l
      where (c.queue is null or l.queue = c.queue)
        and (
          c.state is null
          or case c.state
            when 'dead' then not exists (
              select from notifyq.redrive as r where r.archive_id = l.id
            )
            else l.status::text = c.state
          end
        )
        and (c.subscriber is null or l.subscriber = c.subscriber)
        and (c.type is null or l.type = c.type)
        and (c.key is null or l.key = c.key)
        and (c.dedup_key is null or l.dedup_key = c.dedup_key)
        and (c.worker is null or l.handled_by ^@ c.worker)
        and (c.error is null or strpos(lower(l.details), lower(c.error)) > 0)
        -- The text begins like its fingerprint: comparing that first is faster.
        and (
          c.fingerprint is null
          or coalesce(ltrim(l.details, e' \t\r\n\f\v'), '') ^@ v_begin
          and notifyq.error_fingerprint(l.details) = c.fingerprint
        )
        and (
          c.payload is null
          or case when v_is_plain then l.message @@ c.payload
            else notifyq.payload_matches(l.message, c.payload) end
        )
      order by case when is_ascending then l.archived_at end, case when is_ascending then l.id end,
        l.archived_at desc, l.id desc
      limit v_left
    )
    select
      array(select l.id from scanned as l),
      array(select l.archived_at from scanned as l),
      array(select m.id from matching as m),
      array(select m.archived_at from matching as m)
    into v_scanned, v_scanned_at, v_found, v_found_at;
    _ids := _ids || v_found;
    _times := _times || v_found_at;
    if cardinality(v_found) >= v_left then
      _at := _times[cardinality(_times)];
      _id := _ids[cardinality(_ids)];
      return;
    elsif cardinality(v_scanned) = v_slice then
      -- In the order of the branch that ran.
      _at := v_scanned_at[v_slice];
      _id := v_scanned[v_slice];
    elsif v_path = 'window' and v_from > v_low then
      _at := v_from - interval '1 microsecond';
      _id := 9223372036854775807;
    else
      exit;
    end if;
    if clock_timestamp() > v_end then
      return;
    end if;
    v_after_id := _id;
    if is_ascending then
      v_low := _at;
    else
      v_high := _at;
    end if;
    if v_scanned <> '{}' then
      v_slice := least(v_slice * 2, v_most);
    end if;
  end loop;
  _at := null;
  _id := null;
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
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
declare
  v_found record;
  v_more notifyq.found_message;
begin
  perform notifyq.check_quantity(search_archive.quantity, 1000);
  v_found := notifyq.search_archive_step(
    notifyq.parse_conditions(
      conditions, array['success', 'rejected', 'failed', 'lock_expired', 'dead']
    ),
    quantity, before_at, before_id, budget, false
  );
  return query
  select a.id, a.queue, a.status::text, a.created_at, a.available_at, a.locked_at,
    null::timestamptz, a.archived_at, a.priority, a.attempts, a.type, a.key, a.dedup_key,
    a.handled_by, a.subscriber, a.event_id,
    (select r.message_id from notifyq.redrive as r where r.archive_id = a.id),
    left(a.details, 1000), notifyq.shorten_payload(a.message)
  from unnest(v_found._ids, v_found._times) with ordinality as u (id, archived_at, position)
  cross join lateral (
    select o.* from messages.message_archive as o
    where o.id = u.id and o.archived_at = u.archived_at
    -- A barrier: else a plan made while the table was empty would read all of it for each.
    offset 0
  ) as a
  order by u.position;
  if v_found._at is not null then
    v_more.id := v_found._id;
    v_more.archived_at := v_found._at;
    v_more.state := 'more';
    return next v_more;
  end if;
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
