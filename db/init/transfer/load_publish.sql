-- Publish: the rows of a load become messages, in bounded steps.
--
-- raises: NQ003 invalid argument, NQ036 rows are missing, and the errors of publish()

-- The number of staged rows, which must be as expected: load_row is empty after a crash.
create or replace function notifyq.check_staged(load text, attempts bigint[], counts bigint[])
  returns bigint language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_found bigint;
  v_expected bigint := (
    select coalesce(sum(u.n), 0)::bigint from unnest(counts) as u (n)
  );
begin
  if cardinality(attempts) is distinct from cardinality(counts)
    or cardinality(attempts) <> (select count(distinct u.id) from unnest(attempts) as u (id))
  then
    perform notifyq.raise_invalid(
      'attempts must be different numbers, with a count for each in counts'
    );
  end if;
  v_found := (
    select coalesce(sum(f.n), 0)::bigint
    from unnest(attempts, counts) as u (id, expected)
    join notifyq.load_attempt as t on t.id = u.id and t.load = check_staged.load
    cross join lateral (
      select count(*) as n from notifyq.load_row as r where r.attempt = u.id
    ) as f
    where f.n = u.expected
  );
  if v_found <> v_expected then
    raise exception using
      errcode = 'NQ036',
      message = format(
        'load %L has staged %s rows, and only %s exist', load, v_expected, v_found
      ),
      hint = 'the server has crashed, or attempts were dropped: stage the rows again';
  end if;
  return v_found;
end;
$$;

-- In the order of the attempts; consecutive rows with equal options are one publication.
create or replace function notifyq.publish_staged_events(stream text, attempts bigint[])
  returns bigint language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_attempt bigint;
  v_last bigint;
  v_to bigint;
  v_run record;
  v_published bigint := 0::bigint;
begin
  foreach v_attempt in array attempts loop
    v_last := -1;
    loop
      v_to := (
        select max(c.position)
        from (
          select r.position from notifyq.load_row as r
          where r.attempt = v_attempt and r.position > v_last
          order by r.position
          limit 10000
        ) as c
      );
      exit when v_to is null;
      for v_run in
        select array_agg(s.message::jsonb order by s.position) as messages,
          array_agg(s.key order by s.position) as keys, min(s.type) as type,
          min(s.headers) as headers,
          bool_or(
            s.priority <> 0 or s.available_at > now() or s.delay > 0 or s.dedup_key is not null
            or s.max_attempts is not null
          ) as is_more
        from (
          select c.*, sum(c.is_first) over (order by c.position) as number
          from (
            select r.*,
              ((r.type, r.headers) is distinct from (
                lag(r.type) over along, lag(r.headers) over along
              ))::integer as is_first
            from notifyq.load_row as r
            where r.attempt = v_attempt
              and r.position > v_last
              and r.position <= v_to
              and r.queue = publish_staged_events.stream
            window along as (order by r.position)
          ) as c
        ) as s
        group by s.number
        order by s.number
      loop
        perform notifyq.check_event_options(0, v_run.is_more, false, null) where v_run.is_more;
        v_published := v_published + cardinality(
          notifyq.publish_events(
            stream, v_run.messages, v_run.keys, v_run.type, v_run.headers::jsonb
          )
        );
      end loop;
      v_last := v_to;
    end loop;
  end loop;
  return v_published;
end;
$$;

-- One statement for all rows, so that each queue gets one notification.
create or replace function notifyq.publish_staged(attempts bigint[])
  returns bigint language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
  set enable_mergejoin = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_targets text[];
  v_streams text[];
  v_unlogged text[];
  v_with_keys text[];
  v_plain text[];
  v_queue text;
  v_published bigint := 0::bigint;
  v_rows bigint;
begin
  select array_agg(t.queue order by t.queue),
    coalesce(array_agg(t.queue order by t.queue) filter (where q.name is null), '{}'),
    array_agg(t.queue) filter (where not q.durable),
    array_agg(t.queue) filter (where q.durable and t.has_keys),
    array_agg(t.queue) filter (where q.durable and not t.has_keys)
  into v_targets, v_streams, v_unlogged, v_with_keys, v_plain
  from (
    select r.queue, bool_or(r.dedup_key is not null) as has_keys
    from unnest(publish_staged.attempts) as u (id)
    join notifyq.load_row as r on r.attempt = u.id
    group by r.queue
  ) as t
  left join messages.queue as q on q.name = t.queue;
  perform notifyq.check_target(u.queue) from unnest(v_targets) as u (queue);
  foreach v_queue in array v_streams loop
    v_published := v_published + notifyq.publish_staged_events(v_queue, attempts);
  end loop;
  -- The nested loop returns them in order, without a sort.
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
    select s.* from notifyq.load_row as s
    where s.attempt = u.id and s.queue = any (v_plain)
    order by s.position
  ) as r
  where v_plain is not null;
  get diagnostics v_rows = row_count;
  v_published := v_published + v_rows;
  -- Dedup keys in order, as all publishers lock them.
  insert into messages.message as m
    (queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts)
  select
    r.queue, r.message::jsonb, coalesce(r.priority, 0),
    coalesce(
      r.available_at, case when r.delay > 0 then v_now + make_interval(secs => r.delay) end, now()
    ),
    r.type, coalesce(r.headers::jsonb, '{}'), r.dedup_key, r.key, r.max_attempts
  from unnest(attempts) with ordinality as u (id, number)
  join notifyq.load_row as r on r.attempt = u.id
  where v_with_keys is not null
    and r.queue = any (v_with_keys)
  order by r.queue, r.dedup_key, u.number, r.position
  on conflict (queue, dedup_key) where dedup_key is not null do nothing;
  get diagnostics v_rows = row_count;
  v_published := v_published + v_rows;
  insert into notifyq.message_unlogged as m
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
    join notifyq.load_row as r on r.attempt = u.id
    where v_unlogged is not null
      and r.queue = any (v_unlogged)
    order by r.queue, r.dedup_key, u.number, r.position
  ) as o
  on conflict (queue, dedup_key) where dedup_key is not null do nothing;
  get diagnostics v_rows = row_count;
  return v_published + v_rows;
end;
$$;
