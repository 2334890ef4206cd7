-- Publish staged: the rows of a load become messages and events.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_volatile
-- calls:   messages._check_target, messages._publish_staged_events
-- raises:  what a publication raises

-- One statement for all, so that each queue has one bell.
create or replace function messages._publish_staged(attempts bigint[])
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_targets text[];
  v_with_keys text[];
  v_streams text[];
  v_volatile text[];
  v_plain text[];
  v_queue text;
  v_published bigint := 0::bigint;
  v_rows bigint;
begin
  select array_agg(t.queue order by t.queue),
    array_agg(t.queue order by t.queue) filter (where t.has_keys)
  into v_targets, v_with_keys
  from (
    select r.queue, bool_or(r.dedup_key is not null) as has_keys
    from unnest(_publish_staged.attempts) as u (id)
    join messages.load_row as r on r.attempt = u.id
    group by r.queue
  ) as t;
  perform messages._check_target(u.queue) from unnest(v_targets) as u (queue);
  v_streams := array(
    select s.name from messages.stream as s where s.name = any (v_targets) order by s.name
  );
  v_volatile := array(
    select q.name from messages.queue as q
    where q.name = any (v_targets) and not q.durable and q.name <> all (v_streams)
    order by q.name
  );
  v_plain := array(
    select u.queue from unnest(v_targets) as u (queue)
    where u.queue <> all (v_streams || v_volatile || coalesce(v_with_keys, '{}'))
  );
  foreach v_queue in array v_streams loop
    v_published := v_published + messages._publish_staged_events(v_queue, attempts);
  end loop;
  -- The nested loop gives them in their order, without a sort.
  insert into messages.message as m
    (queue, message, priority, available_at, type, headers, key, max_attempts)
  select
    r.queue, r.message::jsonb, coalesce(r.priority, 0),
    coalesce(
      r.available_at, case when r.delay > 0 then v_now + make_interval(secs => r.delay) end, now()
    ),
    r.type, coalesce(r.headers::jsonb, '{}'), r.key, r.max_attempts
  from unnest(attempts) as u (id)
  cross join lateral (
    select s.* from messages.load_row as s
    where s.attempt = u.id and s.queue = any (v_plain)
    order by s.position
  ) as r
  where v_plain <> '{}';
  get diagnostics v_rows = row_count;
  v_published := v_published + v_rows;
  -- Keys in their order, as everybody takes them.
  insert into messages.message as m
    (queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts)
  select
    r.queue, r.message::jsonb, coalesce(r.priority, 0),
    coalesce(
      r.available_at, case when r.delay > 0 then v_now + make_interval(secs => r.delay) end, now()
    ),
    r.type, coalesce(r.headers::jsonb, '{}'), r.dedup_key, r.key, r.max_attempts
  from unnest(attempts) with ordinality as u (id, number)
  join messages.load_row as r on r.attempt = u.id
  where v_with_keys is not null
    and r.queue = any (v_with_keys)
    and r.queue <> all (v_streams || v_volatile)
  order by r.queue, r.dedup_key, u.number, r.position
  on conflict (queue, dedup_key) where dedup_key is not null do nothing;
  get diagnostics v_rows = row_count;
  v_published := v_published + v_rows;
  insert into messages.message_volatile as m
    (id, queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts)
  select
    nextval('messages.message_id_seq'), o.*
  from (
    select
      r.queue, r.message::jsonb, coalesce(r.priority, 0),
      coalesce(
        r.available_at, case when r.delay > 0 then v_now + make_interval(secs => r.delay) end, now()
      ),
      r.type, coalesce(r.headers::jsonb, '{}'), r.dedup_key, r.key, r.max_attempts
    from unnest(attempts) with ordinality as u (id, number)
    join messages.load_row as r on r.attempt = u.id
    where v_volatile <> '{}'
      and r.queue = any (v_volatile)
    order by r.queue, r.dedup_key, u.number, r.position
  ) as o
  on conflict (queue, dedup_key) where dedup_key is not null do nothing;
  get diagnostics v_rows = row_count;
  return v_published + v_rows;
end;
$$;
