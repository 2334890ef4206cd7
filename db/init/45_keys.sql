-- Keys: what they may have, and what waits without one.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._tokens, messages._matches
-- raises:  nothing

-- For each key: how many more messages it may have beside those that run and those that are given
-- just now. What is not booked is not known here: before its turn a claim may be told too much.
create or replace function messages._key_rooms(
  queue messages.queue, keys text[], running bigint[], given bigint[],
  out _key text, out _room integer
)
  returns setof record
  language plpgsql
  set enable_seqscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return query
  with held as (
    select m.key, count(*)::integer as every,
      (count(*) filter (where m.id = any (_key_rooms.given)))::integer as new
    from messages.message as m
    where m.id = any (
      case when queue.key_concurrency is null then _key_rooms.given
        else _key_rooms.running || _key_rooms.given end
    )
    group by m.key
  )
  select k.key,
    least(
      case when queue.ordered then 1 else 2147483647 end,
      queue.key_concurrency - coalesce(h.every, 0),
      case when queue.key_rate is not null then
        messages._tokens(
          coalesce(f.paid_at, '-infinity'), v_now, queue.key_rate, queue.key_rate_period,
          queue.key_rate_burst
        ) - coalesce(h.new, 0)
      end
    )
  from unnest(_key_rooms.keys) as k (key)
  left join held as h on h.key = k.key
  left join lateral (
    select l.paid_at
    from messages.flow_key as l
    where queue.key_rate is not null
      and l.queue = _key_rooms.queue.name
      and l.key = k.key
    order by l.number desc
    limit 1
  ) as f on true;
end;
$$;

-- Whether each of these keys may have so many messages. Only after _book().
create or replace function messages._have_room(
  queue messages.queue, keys text[], quantities integer[]
)
  returns boolean
  language plpgsql
as $$
begin
  return not exists (
    select from messages._key_rooms(queue, keys, '{}', '{}') as r
    join unnest(keys, quantities) as k (key, quantity) on k.key = r._key
    where k.quantity > r._room
  );
end;
$$;

-- Of the next 1000 messages of a queue behind a place, those without a key: they are in no index of
-- their own, as all messages of queues without limits would have to be in it. _place is where to go
-- on; null: from the start.
create or replace function messages._keyless(
  queue text, quantity integer, filter jsonpath, place bigint[],
  out _ids bigint[], out _place bigint[]
)
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_at_once constant integer := 1000;
  v_seen bigint;
  v_last bigint[];
begin
  with seen as materialized (
    (
      select m.id, m.priority, case when m.key is null then _keyless.filter is null
        or messages._matches(m, _keyless.filter) else false end as fits
      from messages.message as m
      where m.queue = _keyless.queue
        and m.state = 'waiting'
        and m.priority = _keyless.place[1]
        and m.id > _keyless.place[2]
      order by m.priority desc, m.id
      limit v_at_once
    )
    union all
    (
      select m.id, m.priority, case when m.key is null then _keyless.filter is null
        or messages._matches(m, _keyless.filter) else false end
      from messages.message as m
      where m.queue = _keyless.queue
        and m.state = 'waiting'
        and m.priority < coalesce(_keyless.place[1], 2147483648)
      order by m.priority desc, m.id
      limit v_at_once
    )
    limit v_at_once
  )
  select array(select s.id from seen as s where s.fits limit _keyless.quantity + 1),
    (select count(*) from seen as s),
    (select array[s.priority, s.id] from seen as s order by s.priority, s.id desc limit 1)
  into _ids, v_seen, v_last;
  _place := case when cardinality(_ids) > quantity then place
    when v_seen = v_at_once then v_last end;
  _ids := _ids[:quantity];
end;
$$;
