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
  v_given jsonb := coalesce(conditions, '{}');
  v_name text;
  v_found notifyq.search_conditions;
begin
  if jsonb_typeof(v_given) <> 'object' then
    perform notifyq.raise_invalid('conditions must be a JSON object');
  end if;
  v_name := (select min(k.name) from jsonb_object_keys(v_given - v_known) as k (name));
  if v_name is not null then
    perform notifyq.raise_invalid(
      format('unknown condition %L', left(v_name, 100)),
      'conditions are ' || array_to_string(v_known, ', ')
    );
  end if;
  begin
    v_found := jsonb_populate_record(
      null::notifyq.search_conditions,
      v_given || jsonb_build_object('since_at', v_given -> 'since', 'until_at', v_given -> 'until')
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

-- For paths with .datetime(): the operator @@ does not compare instants with dates, but is faster.
create or replace function notifyq.payload_matches(message jsonb, path jsonpath)
  returns boolean language sql stable
  set timezone = 'UTC'
as $$
  select jsonb_path_match_tz(message, path, '{}', true);
$$;

-- The conditions that are the same for live and finished messages. The server inlines it.
create or replace function notifyq.meets_conditions(
  c notifyq.search_conditions,
  queue text,
  type text,
  key text,
  dedup_key text,
  worker text,
  details text,
  message jsonb,
  is_dated boolean
)
  returns boolean language sql stable
as $$
  select (c.queue is null or queue = c.queue)
    and (c.readable is null or queue = any (c.readable))
    and (c.type is null or type = c.type)
    and (c.key is null or key = c.key)
    and (c.dedup_key is null or dedup_key = c.dedup_key)
    and (c.any_key is null or key = c.any_key or dedup_key = c.any_key)
    and (c.worker is null or worker ^@ c.worker)
    and (c.error is null or strpos(lower(details), lower(c.error)) > 0)
    -- The text begins like its fingerprint: comparing that first is faster.
    and (
      c.fingerprint is null
      or (
        c.fingerprint = '(no details)'
        or ltrim(details, e' \t\r\n\f\v')
          ^@ split_part(split_part(c.fingerprint, '<', 1), ' ', 1)
      )
      and notifyq.error_fingerprint(details) = c.fingerprint
    )
    and (
      c.payload is null
      or case when is_dated then notifyq.payload_matches(message, c.payload)
        else message @@ c.payload end
    );
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
  v_more bigint[];
begin
  if c.queue is not null and c.dedup_key is not null then
    return array(
      select m.id from messages.message as m
      where m.queue = c.queue and m.dedup_key = c.dedup_key
    );
  elsif c.queue is not null or c.state = 'locked' then
    v_ids := array(
      select m.id from messages.message as m
      where m.queue = c.queue and m.state = 'waiting' and coalesce(c.state, 'waiting') = 'waiting'
      union all
      select m.id from messages.message as m
      where m.queue = c.queue and m.state = 'scheduled'
        and coalesce(c.state, 'blocked') in ('scheduled', 'blocked')
      union all
      select m.id from messages.message as m
      where m.state = 'locked' and (c.queue is null or m.queue = c.queue)
        and coalesce(c.state, 'locked') = 'locked'
      limit v_most + 1
    );
  elsif c.readable is not null then
    v_ids := '{}';
    foreach c.queue in array c.readable loop
      v_more := notifyq.few_live_ids(c);
      if v_more is null then
        return null;
      end if;
      v_ids := v_ids || v_more;
    end loop;
  end if;
  return case when cardinality(v_ids) <= v_most then v_ids end;
end;
$$;

-- Finds live messages that match the conditions, the newest first. When budget is used up, the last
-- row has the state `more` and the id to continue before.
create or replace function notifyq.search_live_step(
  c notifyq.search_conditions, quantity integer, before_id bigint, budget interval
)
  returns setof notifyq.found_message language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_is_dated boolean := c.payload::text ~ '[.]datetime[(]';
  v_few bigint[] := notifyq.few_live_ids(c);
  v_path text := case
    when v_few is not null then 'few' when c.queue is null or c.key is null then 'id' else 'key'
  end;
  v_before bigint := coalesce(search_live_step.before_id, 9223372036854775807);
  v_left integer := search_live_step.quantity;
  v_scanned bigint := 0::bigint;
  v_end timestamptz;
  v_row record;
  v_more notifyq.found_message;
begin
  perform notifyq.check_duration('budget', budget);
  v_end := clock_timestamp() + budget;
  for v_row in
    select s.id, case
        when (
            c.state is null
            or case c.state
              when 'blocked' then s.blockers is not null
              else s.state::text = c.state and s.blockers is null
            end
          )
          and (c.since_at is null or s.created_at >= c.since_at)
          and (c.until_at is null or s.created_at < c.until_at)
          -- (no details) is the fingerprint of dead ones.
          and (c.fingerprint is null or s.details is not null)
          and notifyq.meets_conditions(
            c, s.queue, s.type, s.key, coalesce(s.dedup_key, s.given_up_key), s.locked_by,
            s.details, s.message, v_is_dated
          )
        then row(
          s.id, s.queue, case when s.blockers is null then s.state::text else 'blocked' end,
          s.created_at, s.available_at, s.locked_at, s.lock_expires_at, null, s.priority,
          s.attempts, s.type, s.key, coalesce(s.dedup_key, s.given_up_key), s.locked_by, null,
          null, null, left(s.details, 1000), notifyq.shorten_payload(s.message)
        )::notifyq.found_message
      end as found
    -- One of the branches runs; each has the newest first by an index.
    from (
      (
        select m.* from messages.message as m
        where v_path = 'few' and m.id = any (v_few) and m.id < v_before
        order by m.id desc
      )
      union all
      (
        select m.* from messages.message as m
        where v_path = 'key'
          -- Not `=`: the order would be that of the ids alone, which another index has, too.
          and notifyq.key_hash(m.queue, m.key) >= notifyq.key_hash(c.queue, c.key)
          and notifyq.key_hash(m.queue, m.key) <= notifyq.key_hash(c.queue, c.key)
          and m.id < v_before
        order by notifyq.key_hash(m.queue, m.key) desc, m.id desc
      )
      union all
      (
        select m.* from messages.message as m
        where v_path = 'id' and m.id < v_before
        order by m.id desc
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
      v_more.state := 'more';
      return next v_more;
      return;
    end if;
  end loop;
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
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    conditions, array['waiting', 'scheduled', 'blocked', 'locked']
  );
begin
  perform notifyq.check_quantity(search_live.quantity, 1000);
  c.readable := notifyq.readable_names(c.queue);
  return query select f.* from notifyq.search_live_step(c, quantity, before_id, budget) as f;
end;
$$;
comment on function notifyq.search_live is
  'Live messages that match all conditions, the newest first, before before_id (null: the newest): '
  'a JSON object of state (waiting, scheduled, blocked or locked), queue, type, key, dedup_key, '
  'worker (a prefix of its name), error (a part of details), fingerprint, payload (a JSON path '
  'predicate), since and until (of created_at). It scans for about budget: where there may be '
  'more, the last row has the state `more` and the id to continue before. Raises NQ003.';

create or replace function notifyq.message_relatives(id bigint, quantity integer default 100)
  returns setof notifyq.relative_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_readable text[] := notifyq.readable_names(null);
begin
  perform notifyq.check_quantity(message_relatives.quantity, 10000);
  if coalesce(notifyq.queue_of(id), '') <> all (v_readable) then
    return;
  end if;
  return query
  select o.kind, o.id, s.queue, s.state, coalesce(o.happened_at, s.happened_at)
  from (
    (
      select 'after', d.after_id, null::timestamptz
      from notifyq.dependency as d
      where d.message_id = message_relatives.id
      order by d.position limit message_relatives.quantity
    )
    union all
    (
      select 'before', d.message_id, null
      -- `offset 0`: the index that gives the order has the rows of all messages.
      from (
        select d.* from notifyq.dependency as d where d.after_id = message_relatives.id offset 0
      ) as d
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
      from (
        select r.* from notifyq.redrive as r where r.message_id = message_relatives.id offset 0
      ) as r
      order by r.archive_id desc limit message_relatives.quantity
    )
  ) as o (kind, id, happened_at)
  left join lateral (
    (
      select m.queue, case when m.blockers is null then m.state::text else 'blocked' end as state,
        null::timestamptz as happened_at
      from messages.message as m
      where m.id = o.id
    )
    union all
    (
      select a.queue, a.status::text, a.archived_at
      from messages.message_archive as a
      where a.id = o.id
      order by a.archived_at desc
    )
    limit 1
  ) as s on true
  where v_readable is null or s.queue = any (v_readable);
end;
$$;
comment on function notifyq.message_relatives is
  'Messages related to this one, up to quantity of each kind: those it runs after (after), those '
  'that run after it (before), the message it was published again as (retried_as), and the dead '
  'message it was published again from (retry_of). state and queue are null where nothing of it is '
  'kept; happened_at is when it was published again, else when it ended.';
