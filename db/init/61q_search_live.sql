-- Search live: messages that are not finished, by what a person knows of them.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity, messages._conditions, messages._payload_matches,
--          messages._short, messages.error_fingerprint, messages._lane, messages._check_duration
-- raises:  NQ003 invalid argument

-- Where the conditions leave few messages, as an index tells: their ids. Null: there are many.
create or replace function messages._few_live(c messages.search_conditions)
  returns bigint[]
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
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

create or replace function messages.search_live(
  conditions jsonb default '{}',
  quantity integer default 50,
  before_id bigint default null,
  budget interval default '500 milliseconds'
)
  returns setof messages.found_message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
  set jit = off
as $$
declare
  c messages.search_conditions := messages._conditions(
    conditions, array['waiting', 'scheduled', 'blocked', 'locked']
  );
  v_end timestamptz;
  v_is_plain boolean := c.payload::text !~ '\.datetime\(';
  v_few bigint[];
  v_before bigint := coalesce(search_live.before_id, 9223372036854775807);
  v_slice integer := case when c.payload is null then 1000 else 100 end;
  v_path text;
  v_looked bigint;
  v_found bigint[];
  v_last bigint;
  v_ids bigint[] := array[]::bigint[];
  v_more messages.found_message;
begin
  perform messages._check_quantity(search_live.quantity, 1000);
  perform messages._check_duration('budget', search_live.budget);
  v_end := clock_timestamp() + search_live.budget;
  v_few := messages._few_live(c);
  v_path := case
    when v_few is not null then 'few' when c.queue is null or c.key is null then 'id' else 'key'
  end;
  loop
    -- One of the paths runs; each gives the newest of what is left, by an index.
    with looked as materialized (
      (
        select m.* from messages.message as m
        where v_path = 'few' and m.id = any (v_few) and m.id < v_before
        order by m.id desc limit v_slice
      )
      union all
      (
        select m.* from messages.message as m
        where v_path = 'key'
          and messages._lane(m.queue, m.key) = messages._lane(c.queue, c.key)
          and m.id < v_before
        order by m.id desc limit v_slice
      )
      union all
      (
        select m.* from messages.message as m
        where v_path = 'id' and m.id < v_before
        order by m.id desc limit v_slice
      )
    )
    select count(*), min(l.id), array(
        select l.id from looked as l
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
            or l.details is not null and messages.error_fingerprint(l.details) = c.fingerprint
          )
          and (
            c.payload is null
            or case when v_is_plain then l.message @@ c.payload
              else messages._payload_matches(l.message, c.payload) end
          )
        order by l.id desc
        limit search_live.quantity - cardinality(v_ids)
      )
    into v_looked, v_last, v_found
    from looked as l;
    v_ids := v_ids || v_found;
    if cardinality(v_ids) >= search_live.quantity then
      v_last := v_ids[cardinality(v_ids)];
    end if;
    exit when v_looked < v_slice or cardinality(v_ids) >= search_live.quantity
      or clock_timestamp() > v_end;
    v_before := v_last;
    v_slice := least(v_slice * 2, case when c.payload is null then 10000 else 500 end);
  end loop;
  return query
  select m.id, m.queue, case when m.blockers is null then m.state::text else 'blocked' end,
    m.created_at, m.available_at, m.locked_at, m.lock_expires_at, null::timestamptz, m.priority,
    m.attempts, m.type, m.key, coalesce(m.dedup_key, m.given_up_key), m.locked_by, null::text,
    null::bigint, null::bigint, left(m.details, 1000), messages._short(m.message)
  from unnest(v_ids) with ordinality as u (id, position)
  cross join lateral (
    select o.* from messages.message as o where o.id = u.id offset 0
  ) as m
  order by u.position;
  if v_looked >= v_slice or cardinality(v_ids) >= search_live.quantity then
    v_more.id := v_last;
    v_more.state := 'more';
    return next v_more;
  end if;
end;
$$;
comment on function messages.search_live(jsonb, integer, bigint, interval) is
  'Live messages for which all conditions hold, the newest first, from before_id down (null: the '
  'newest there is): a JSON object of state (waiting, scheduled, blocked or locked), queue, type, '
  'key, dedup_key, worker (how its name begins), error (a part of details), fingerprint, payload '
  '(a JSON path predicate), since and until (of created_at). It looks no longer than about budget: '
  'where there may be more, the last row has the state `more` and the id to go on before. Raises '
  'NQ003.';
