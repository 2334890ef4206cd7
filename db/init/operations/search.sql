-- Search: live messages by conditions, and related messages.
--
-- raises: NQ003 invalid argument, NQ001 queue not found

create or replace function notifyq.parse_conditions(conditions jsonb, states text[])
  returns notifyq.search_conditions language plpgsql stable
as $$
declare
  v_known text[] := array[
    'state', 'queue', 'subscriber', 'type', 'key', 'dedup_key', 'worker', 'error', 'fingerprint',
    'payload', 'since', 'until'
  ];
  v_name text;
  v_found notifyq.search_conditions;
begin
  if jsonb_typeof(coalesce(conditions, '{}')) <> 'object' then
    perform notifyq.raise_invalid('conditions must be a JSON object');
  end if;
  select k.name into v_name
  from jsonb_object_keys(coalesce(conditions, '{}')) as k (name)
  where k.name <> all (v_known)
  limit 1;
  if found then
    perform notifyq.raise_invalid(
      format('unknown condition %L', left(v_name, 100)),
      'conditions are ' || array_to_string(v_known, ', ')
    );
  end if;
  begin
    v_found := jsonb_populate_record(
      null::notifyq.search_conditions,
      coalesce(conditions, '{}') || jsonb_build_object(
        'since_at', conditions -> 'since', 'until_at', conditions -> 'until'
      )
    );
  exception
    when data_exception or syntax_error then
      perform notifyq.raise_invalid(
        format('a condition cannot be understood: %s', left(sqlerrm, 300)),
        'since and until are instants, payload is a JSON path like $.amount > 100'
      );
  end;
  if v_found.state <> all (states) then
    perform notifyq.raise_invalid(
      format('there is no state %L', left(v_found.state, 100)),
      'states are ' || array_to_string(states, ', ')
    );
  end if;
  if v_found.payload is not null then
    perform notifyq.check_filter(v_found.payload);
    if regexp_replace(v_found.payload::text, e'(?<!\\$)"(?:[^"\\\\]|\\\\.)*"', '', 'g')
      ~ '[$]"'
    then
      perform notifyq.raise_invalid(
        'the condition payload must not use variables',
        '$ is the payload; other columns have conditions of their own'
      );
    end if;
  end if;
  return v_found;
end;
$$;

-- For paths with .datetime(): the operator @@ does not compare instants with dates.
create or replace function notifyq.payload_matches(message jsonb, path jsonpath)
  returns boolean language sql stable
  set timezone = 'UTC'
as $$
  select jsonb_path_match_tz(message, path, '{}', true);
$$;

-- A page shows short payloads, and fetches the others one by one.
create or replace function notifyq.shorten_payload(message jsonb)
  returns jsonb language sql immutable
as $$
  select case when pg_column_size(message) <= 1000 then message end;
$$;

-- The ids of the candidates, where an index finds that there are few. Null: there are many.
create or replace function notifyq.few_live_ids(c notifyq.search_conditions)
  returns bigint[] language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_most integer := 10000;
  v_ids bigint[];
begin
  if c.queue is not null and c.dedup_key is not null then
    return array(
      select m.id from messages.message as m
      where m.queue = c.queue and m.dedup_key = c.dedup_key
    );
  elsif c.state = 'locked' then
    v_ids := array(
      select m.id from messages.message as m
      where m.state = 'locked' and (c.queue is null or m.queue = c.queue)
      limit v_most + 1
    );
  elsif c.queue is not null then
    v_ids := array(
      (
        select m.id from messages.message as m
        where c.state is distinct from 'scheduled' and c.state is distinct from 'blocked'
          and m.queue = c.queue and m.state = 'waiting'
        limit v_most + 1
      )
      union all
      (
        select m.id from messages.message as m
        where c.state is distinct from 'waiting'
          and m.queue = c.queue and m.state = 'scheduled'
        limit v_most + 1
      )
      union all
      (
        select m.id from messages.message as m
        where c.state is null and m.queue = c.queue and m.state = 'locked'
        limit v_most + 1
      )
    );
  end if;
  return case when cardinality(v_ids) <= v_most then v_ids end;
end;
$$;

create or replace function notifyq.search_live(
  conditions jsonb default '{}',
  quantity integer default 50,
  before_id bigint default null,
  budget interval default '500 milliseconds'
)
  returns setof notifyq.found_message language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
  set enable_mergejoin = off set enable_sort = off set jit = off
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    conditions, array['waiting', 'scheduled', 'blocked', 'locked']
  );
  v_end timestamptz;
  v_is_plain boolean := c.payload::text !~ '[.]datetime[(]';
  v_few bigint[];
  v_before bigint := coalesce(search_live.before_id, 9223372036854775807);
  v_slice integer := case when c.payload is null then 1000 else 100 end;
  v_path text;
  v_scanned bigint;
  v_found bigint[];
  v_last bigint;
  v_ids bigint[] := array[]::bigint[];
  v_more notifyq.found_message;
begin
  perform notifyq.check_quantity(search_live.quantity, 1000);
  perform notifyq.check_duration('budget', search_live.budget);
  v_end := clock_timestamp() + search_live.budget;
  v_few := notifyq.few_live_ids(c);
  v_path := case
    when v_few is not null then 'few' when c.queue is null or c.key is null then 'id' else 'key'
  end;
  loop
    -- One of the branches runs; each reads the newest candidates before v_before by an index.
    with scanned as materialized (
      (
        select m.* from messages.message as m
        where v_path = 'few' and m.id = any (v_few) and m.id < v_before
        order by m.id desc limit v_slice
      )
      union all
      (
        select m.* from messages.message as m
        where v_path = 'key'
          -- Not `=`: the order would be that of the ids alone, which another index has, too.
          and notifyq.key_hash(m.queue, m.key) >= notifyq.key_hash(c.queue, c.key)
          and notifyq.key_hash(m.queue, m.key) <= notifyq.key_hash(c.queue, c.key)
          and m.id < v_before
        order by notifyq.key_hash(m.queue, m.key) desc, m.id desc limit v_slice
      )
      union all
      (
        select m.* from messages.message as m
        where v_path = 'id' and m.id < v_before
        order by m.id desc limit v_slice
      )
    )
    select count(*), min(l.id), array(
        select l.id from scanned as l
        where (c.queue is null or l.queue = c.queue)
          and (
            c.state is null
            or case c.state
              when 'blocked' then l.blockers is not null
              else l.state::text = c.state and l.blockers is null
            end
          )
          and (c.type is null or l.type = c.type)
          and (c.key is null or l.key = c.key)
          and (c.dedup_key is null or l.dedup_key = c.dedup_key)
          and (c.worker is null or l.locked_by ^@ c.worker)
          and (c.since_at is null or l.created_at >= c.since_at)
          and (c.until_at is null or l.created_at < c.until_at)
          and (c.error is null or strpos(lower(l.details), lower(c.error)) > 0)
          and (
            c.fingerprint is null
            or l.details is not null and notifyq.error_fingerprint(l.details) = c.fingerprint
          )
          and (
            c.payload is null
            or case when v_is_plain then l.message @@ c.payload
              else notifyq.payload_matches(l.message, c.payload) end
          )
        order by l.id desc
        limit search_live.quantity - cardinality(v_ids)
      )
    into v_scanned, v_last, v_found
    from scanned as l;
    v_ids := v_ids || v_found;
    if cardinality(v_ids) >= search_live.quantity then
      v_last := v_ids[cardinality(v_ids)];
    end if;
    exit when v_scanned < v_slice or cardinality(v_ids) >= search_live.quantity
      or clock_timestamp() > v_end;
    v_before := v_last;
    v_slice := least(v_slice * 2, case when c.payload is null then 10000 else 500 end);
  end loop;
  return query
  select m.id, m.queue, case when m.blockers is null then m.state::text else 'blocked' end,
    m.created_at, m.available_at, m.locked_at, m.lock_expires_at, null::timestamptz, m.priority,
    m.attempts, m.type, m.key, coalesce(m.dedup_key, m.given_up_key), m.locked_by, null::text,
    null::bigint, null::bigint, left(m.details, 1000), notifyq.shorten_payload(m.message)
  from unnest(v_ids) with ordinality as u (id, position)
  cross join lateral (
    select o.* from messages.message as o where o.id = u.id offset 0
  ) as m
  order by u.position;
  if v_scanned >= v_slice or cardinality(v_ids) >= search_live.quantity then
    v_more.id := v_last;
    v_more.state := 'more';
    return next v_more;
  end if;
end;
$$;
comment on function notifyq.search_live is
  'Live messages that match all conditions, the newest first, before before_id (null: the newest): '
  'a JSON object of state (waiting, scheduled, blocked or locked), queue, type, key, dedup_key, '
  'worker (a prefix of its name), error (a part of details), fingerprint, payload (a JSON path '
  'predicate), since and until (of created_at). It scans for about budget: where there may be '
  'more, the last row has the state `more` and the id to continue before. Raises NQ003.';

create or replace function notifyq.message_state_of(id bigint)
  returns notifyq.relative_report language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_state notifyq.relative_report;
begin
  v_state.id := message_state_of.id;
  select m.queue, case when m.blockers is null then m.state::text else 'blocked' end
  into v_state.queue, v_state.state
  from messages.message as m
  where m.id = message_state_of.id;
  if not found then
    select a.queue, a.status::text, a.archived_at
    into v_state.queue, v_state.state, v_state.happened_at
    from messages.message_archive as a
    where a.id = message_state_of.id
    order by a.archived_at desc
    limit 1;
  end if;
  return v_state;
end;
$$;

create or replace function notifyq.message_relatives(id bigint, quantity integer default 100)
  returns setof notifyq.relative_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_kind text;
  v_id bigint;
  v_at timestamptz;
  v_state notifyq.relative_report;
begin
  perform notifyq.check_quantity(message_relatives.quantity, 10000);
  for v_kind, v_id, v_at in
    (
      select 'after', d.after_id, null::timestamptz
      from notifyq.dependency as d
      where d.message_id = message_relatives.id
      order by d.position limit message_relatives.quantity
    )
    union all
    (
      select 'before', d.message_id, null
      from notifyq.dependency as d
      where d.after_id = message_relatives.id
      order by d.message_id limit message_relatives.quantity
    )
    union all
    (
      select 'retried_as', r.message_id, r.redriven_at
      from notifyq.redrive as r
      where r.archive_id = message_relatives.id
    )
    union all
    (
      select 'retry_of', r.archive_id, r.redriven_at
      from notifyq.redrive as r
      where r.message_id = message_relatives.id
      order by r.archive_id desc limit message_relatives.quantity
    )
  loop
    v_state := notifyq.message_state_of(v_id);
    v_state.kind := v_kind;
    v_state.happened_at := coalesce(v_at, v_state.happened_at);
    return next v_state;
  end loop;
end;
$$;
comment on function notifyq.message_relatives is
  'Messages related to this one, up to quantity of each kind: those it runs after (after), those '
  'that run after it (before), the message it was published again as (retried_as), and the dead '
  'message it was published again from (retry_of). state and queue are null where nothing of it is '
  'kept; happened_at is when it was published again, else when it ended.';

create or replace function messages.run_now(id bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
begin
  update messages.message as m
  set state = 'waiting', available_at = now(), parked_at = null
  where m.id = run_now.id
    and m.state = 'scheduled'
    and m.blockers is null;
  if not found then
    return false;
  end if;
  perform notifyq.notify_messages(array[run_now.id]);
  return true;
end;
$$;
comment on function messages.run_now is
  'Make a scheduled message due now. False: it is not scheduled, or waits for other messages; '
  'unblock() ends that.';
