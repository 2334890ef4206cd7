-- Forget: messages of a key, or with a payload, are deleted from all parts, in steps.
--
-- The parts come one after the other. Live messages are first: one that ends meanwhile is then
-- found in the archive, and one that is still live was counted.
--
-- raises: NQ003 invalid argument

-- Delete archived messages and all that is kept about them, or only count that.
create or replace function notifyq.forget_archived(ids bigint[], dry_run boolean default false)
  returns jsonb language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off set timezone = 'UTC'
as $$
declare
  v_counts jsonb := '{}'::jsonb;
  v_part text;
  v_relation text;
  v_name text;
  v_count bigint;
begin
  if coalesce(ids, '{}') = '{}' then
    return v_counts;
  end if;
  -- First what is found by columns of the archive.
  with sampled as materialized (
    select e.ctid
    from messages.message_archive as a
    cross join notifyq.lake as l
    cross join lateral (values ('hour'), ('day')) as s (span)
    cross join lateral (values (notifyq.error_fingerprint(a.details)), ('(others)')) as f (text)
    join notifyq.rollup_error as e
      on (e.lake, e.span, e.bucket_at, e.queue, e.status, e.fingerprint)
        = (l.id, s.span, date_trunc(s.span, a.archived_at), a.queue, a.status, f.text)
    where a.id = any (ids)
      and a.details is not null
      and e.sample = left(a.details, 1000)
  ),
  blanked as (
    update notifyq.rollup_error as e
    set sample = null
    where not dry_run
      and e.ctid = any (array(select s.ctid from sampled as s))
    returning e.lake
  )
  select case when dry_run then (select count(distinct s.ctid) from sampled as s)
    else (select count(*) from blanked) end
  into v_count;
  v_counts := jsonb_build_object('samples', v_count);
  with known as materialized (
    select d.ctid
    from messages.message_archive as a
    join notifyq.dedup as d on d.queue = a.queue and d.dedup_key = a.dedup_key and d.id = a.id
    where a.id = any (ids)
  ),
  deleted as (
    delete from notifyq.dedup as d
    where not dry_run
      and d.ctid = any (array(select k.ctid from known as k))
    returning d.id
  )
  select case when dry_run then (select count(*) from known)
    else (select count(*) from deleted) end
  into v_count;
  v_counts := v_counts || jsonb_build_object('dedup_keys', v_count);
  for v_part, v_relation, v_name in
    values
      ('archive', 'messages.message_archive', 'id'),
      ('attempts', 'messages.attempt', 'message_id'),
      ('logs', 'notifyq.attempt_log', 'message_id'),
      ('steps', 'notifyq.step_archive', 'message_id'),
      ('steps', 'notifyq.step', 'message_id'),
      ('signals', 'notifyq.signal', 'message_id'),
      ('output', 'notifyq.message_output', 'message_id'),
      ('output', 'notifyq.message_progress', 'message_id')
  loop
    if dry_run then
      execute format(
        'select count(*) from %I.%I as t where t.%I = any (%L)',
        split_part(v_relation, '.', 1), split_part(v_relation, '.', 2), v_name, ids
      ) into v_count;
    else
      execute format(
        'delete from %I.%I as t where t.%I = any (%L)',
        split_part(v_relation, '.', 1), split_part(v_relation, '.', 2), v_name, ids
      );
      get diagnostics v_count = row_count;
    end if;
    v_counts := notifyq.add_counts(v_counts, jsonb_build_object(v_part, v_count));
  end loop;
  if not dry_run then
    delete from notifyq.redrive as r where r.archive_id = any (ids);
  end if;
  return v_counts;
end;
$$;
comment on function notifyq.forget_archived is
  'Delete archived messages with their attempts, logs, steps, signals, output, deduplication keys '
  'and samples of errors; return how many of each part, as JSON. dry_run: only count.';

-- Of messages whose rows are in a lake only. Samples are the texts of single messages.
create or replace function notifyq.forget_samples(
  archived timestamptz[], queues text[], statuses messages.message_status[], details text[]
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off set timezone = 'UTC'
as $$
declare
  v_count bigint;
begin
  update notifyq.rollup_error as e
  set sample = null
  where e.ctid = any (array(
    select o.ctid
    from unnest(archived, queues, statuses, forget_samples.details)
      as a (archived_at, queue, status, details)
    cross join notifyq.lake as l
    cross join lateral (values ('hour'), ('day')) as s (span)
    join notifyq.rollup_error as o
      on (o.lake, o.span, o.bucket_at, o.queue, o.status, o.fingerprint)
        = (
          l.id, s.span, date_trunc(s.span, a.archived_at), a.queue, a.status,
          notifyq.error_fingerprint(a.details)
        )
    where o.sample = left(a.details, 1000)
  ));
  get diagnostics v_count = row_count;
  return v_count;
end;
$$;
comment on function notifyq.forget_samples is
  'Delete samples of errors that are the details of these messages; return how many.';

create or replace function notifyq.forget_live(
  c notifyq.search_conditions,
  live boolean,
  dry_run boolean,
  quantity integer,
  budget interval,
  inout _id bigint,
  out _counts jsonb
)
  returns record language plpgsql
as $$
declare
  v_states text[] := array['waiting', 'scheduled', 'blocked'];
  v_found bigint;
  v_ids bigint[];
begin
  select count(*) filter (where f.state <> 'more'),
    coalesce(array_agg(f.id) filter (where live and f.state = any (v_states)), '{}'),
    max(f.id) filter (where f.state = 'more')
  into v_found, v_ids, _id
  from notifyq.search_live_step(c, quantity, _id, budget) as f;
  if not dry_run then
    v_ids := notifyq.lock_live(v_ids, jsonb_build_object('queue', c.queue), v_states);
    perform notifyq.cancel_all(v_ids, false, false, 'forgotten', null);
  end if;
  _counts := notifyq.forget_archived(v_ids, dry_run) - 'archive' || jsonb_build_object(
    'cancelled', cardinality(v_ids), 'live', v_found - cardinality(v_ids)
  );
end;
$$;

-- Ids of events that a subscriber is about to settle: it would not find them any more.
create or replace function notifyq.open_events(stream bigint)
  returns int8multirange language sql stable
as $$
  select coalesce(
    range_agg(int8range(least(b.after_id, b.last_id), b.last_id, '(]')), '{}'
  )
  from messages.subscription as u
  join notifyq.batch as b on b.subscription = u.id
  where u.stream = open_events.stream
    and b.kind = 'events'
    and not exists (select from notifyq.batch_end as e where e.batch = b.id);
$$;

-- A step is in one segment.
create or replace function notifyq.forget_events(
  c notifyq.search_conditions,
  live boolean,
  dry_run boolean,
  quantity integer,
  budget interval,
  inout _segment bigint,
  inout _id bigint,
  out _counts jsonb
)
  returns record language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_is_dated boolean := c.payload::text ~ '[.]datetime[(]';
  v_end timestamptz := clock_timestamp() + budget;
  v_segment bigint;
  v_stream messages.stream;
  v_open int8multirange;
  v_event bigint;
  v_type text;
  v_key text;
  v_message jsonb;
  v_scanned bigint := 0::bigint;
  v_held bigint := 0::bigint;
  v_ids bigint[] := array[]::bigint[];
begin
  select g.id into v_segment
  from notifyq.segment as g
  join messages.stream as s on s.id = g.stream
  where g.id >= coalesce(_segment, 0)
    and (c.queue is null or s.name = c.queue)
  order by g.id
  limit 1;
  if not found then
    _segment := null;
    return;
  end if;
  if v_segment is distinct from _segment then
    _segment := v_segment;
    _id := 0;
  end if;
  select s.* into v_stream
  from messages.stream as s
  join notifyq.segment as g on g.stream = s.id
  where g.id = _segment;
  v_open := notifyq.open_events(v_stream.id);
  for v_event, v_type, v_key, v_message in execute format(
    'select e.id, e.type, e.key, e.message from notifyq.%I as e where e.id > %L order by e.id',
    notifyq.event_table(_segment), _id
  )
  loop
    if notifyq.meets_conditions(
      c, v_stream.name, v_type, v_key, null, null, null, v_message, v_is_dated
    ) then
      if live and not v_open @> v_event then
        v_ids := array_append(v_ids, v_event);
      else
        v_held := v_held + 1;
      end if;
    end if;
    _id := v_event;
    v_scanned := v_scanned + 1;
    exit when cardinality(v_ids) >= quantity
      or v_scanned % 100 = 0 and clock_timestamp() > v_end;
  end loop;
  if not found or cardinality(v_ids) < quantity and clock_timestamp() <= v_end then
    _segment := _segment + 1;
    _id := 0;
  end if;
  if not dry_run and v_ids <> '{}' then
    execute format(
      'delete from notifyq.%I as e where e.id = any (%L)', notifyq.event_table(v_segment), v_ids
    );
  end if;
  _counts := jsonb_build_object('events', cardinality(v_ids), 'live_events', v_held);
end;
$$;

-- Events that are delivered again have a copy of their own.
create or replace function notifyq.forget_retries(
  c notifyq.search_conditions,
  live boolean,
  dry_run boolean,
  quantity integer,
  budget interval,
  inout _subscription bigint,
  inout _id bigint,
  out _counts jsonb
)
  returns record language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_is_dated boolean := c.payload::text ~ '[.]datetime[(]';
  v_end timestamptz := clock_timestamp() + budget;
  v_retry record;
  v_scanned bigint := 0::bigint;
  v_held bigint := 0::bigint;
  v_deleted bigint := 0::bigint;
begin
  for v_retry in
    select r.subscription, r.event_id, r.batch, r.type, r.key, r.message, s.name as stream
    from notifyq.event_retry as r
    join messages.subscription as u on u.id = r.subscription
    join messages.stream as s on s.id = u.stream
    where (r.subscription, r.event_id) > (coalesce(_subscription, 0), coalesce(_id, 0))
    order by r.subscription, r.event_id
  loop
    _subscription := v_retry.subscription;
    _id := v_retry.event_id;
    v_scanned := v_scanned + 1;
    if notifyq.meets_conditions(
      c, v_retry.stream, v_retry.type, v_retry.key, null, null, null, v_retry.message, v_is_dated
    ) then
      if not live or v_retry.batch is not null then
        v_held := v_held + 1;
      else
        v_deleted := v_deleted + 1;
        delete from notifyq.event_retry as r
        where r.subscription = v_retry.subscription
          and r.event_id = v_retry.event_id
          and r.batch is null
          and not dry_run;
      end if;
    end if;
    if v_deleted >= quantity or v_scanned % 100 = 0 and clock_timestamp() > v_end then
      _counts := jsonb_build_object('events', v_deleted, 'live_events', v_held);
      return;
    end if;
  end loop;
  _subscription := null;
  _counts := jsonb_build_object('events', v_deleted, 'live_events', v_held);
end;
$$;

create or replace function notifyq.count_definitions(c notifyq.search_conditions)
  returns jsonb language sql stable
as $$
  select jsonb_build_object(
    'schedules', (
      select count(*)
      from messages.schedule as s
      where notifyq.meets_conditions(
        c, s.queue, s.type, s.key, null, null, null, s.message,
        c.payload::text ~ '[.]datetime[(]'
      )
    ),
    'settings', (
      select count(*)
      from (
        select h.queue, h.key from messages.share as h
        union all
        select l.queue, l.key from messages.queue_limit as l
      ) as k
      where k.key = c.any_key
        and (c.queue is null or k.queue = c.queue)
    )
  );
$$;

create or replace function messages.forget(
  key text default null,
  filter jsonpath default null,
  queue text default null,
  after jsonb default null,
  live boolean default false,
  dry_run boolean default false,
  quantity integer default 1000,
  budget interval default '1 second',
  out counts jsonb,
  out next jsonb
)
  returns record language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    jsonb_build_object('payload', filter::text, 'queue', queue), null
  );
  v_part text := coalesce(after ->> 'part', 'live');
  v_id bigint := (after ->> 'id')::bigint;
  v_at timestamptz := (after ->> 'at')::timestamptz;
  v_group bigint := (after ->> 'group')::bigint;
  v_ids bigint[];
begin
  if key is null and filter is null then
    perform notifyq.raise_invalid('forget needs a key or a filter', 'all messages would match');
  end if;
  perform notifyq.check_quantity(forget.quantity, 100000),
    notifyq.check_duration('budget', budget),
    notifyq.check_given('live', live is not null),
    notifyq.check_given('dry_run', dry_run is not null);
  c.any_key := key;
  case v_part
    when 'live' then
      select f._counts, f._id into counts, v_id
      from notifyq.forget_live(c, live, dry_run, quantity, budget, v_id) as f;
      next := case when v_id is null then '{"part": "archive"}'
        else jsonb_build_object('part', 'live', 'id', v_id) end;
    when 'archive' then
      -- A clock may have been wrong: all that is archived, also with later times.
      c.until_at := coalesce(v_at, clock_timestamp() + interval '1 year');
      select coalesce(array_agg(f.id) filter (where f.state <> 'more'), '{}'),
        max(f.id) filter (where f.state = 'more'),
        max(f.archived_at) filter (where f.state = 'more')
      into v_ids, v_id, v_at
      from notifyq.search_archive_step(c, quantity, v_at, v_id, budget, false) as f;
      counts := notifyq.forget_archived(v_ids, dry_run);
      next := case when v_id is null then '{"part": "events"}'
        else jsonb_build_object('part', 'archive', 'at', v_at, 'id', v_id) end;
    when 'events' then
      select f._counts, f._segment, f._id into counts, v_group, v_id
      from notifyq.forget_events(c, live, dry_run, quantity, budget, v_group, v_id) as f;
      next := case when v_group is null then '{"part": "retries"}'
        else jsonb_build_object('part', 'events', 'group', v_group, 'id', v_id) end;
    when 'retries' then
      select f._counts, f._subscription, f._id into counts, v_group, v_id
      from notifyq.forget_retries(c, live, dry_run, quantity, budget, v_group, v_id) as f;
      next := case when v_group is null then '{"part": "definitions"}'
        else jsonb_build_object('part', 'retries', 'group', v_group, 'id', v_id) end;
    when 'definitions' then
      counts := notifyq.count_definitions(c);
    else
      perform notifyq.raise_invalid(
        format('there is no part %L', left(v_part, 100)), 'after is the result next of a step'
      );
  end case;
  counts := coalesce(counts, '{}');
end;
$$;
comment on function messages.forget is
  'One step of deleting messages for good whose key or dedup_key is `key`, and whose payload meets '
  'the filter, of one queue or stream (null: all): archived ones with all that is kept about them. '
  'live: cancel those that no worker has, and delete events of streams too; else these are counted '
  'as live and live_events. Schedules, shares and limits of the key are counted only. A step finds '
  'up to quantity, within about budget. Returns counts by part, and as next what after is to be '
  'for the next step; null: all is done. dry_run: only count. Lakes, backups and other databases '
  'keep theirs. Raises NQ003 without key and filter.';

create or replace function notifyq.match_payloads(payloads text[], filter jsonpath)
  returns boolean[] language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    jsonb_build_object('payload', filter::text), null
  );
begin
  return array(
    select coalesce(
      notifyq.meets_conditions(
        c, null, null, null, null, null, null, p.payload::jsonb,
        filter::text ~ '[.]datetime[(]'
      ),
      false
    )
    from unnest(payloads) with ordinality as p (payload, number)
    order by p.number
  );
end;
$$;
comment on function notifyq.match_payloads is
  'For each payload whether it meets the filter, as forget() takes it. Raises NQ003.';
