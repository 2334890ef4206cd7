-- Keys: which messages of a queue to hand out where limits, order or shares go by their keys.
--
-- First the messages in their order, as long as most of them may be had. Then, where others are in
-- their way, key by key: from one key to the next in an index, however much waits of each.
--
-- owns:    nothing
-- writes:  messages.message (row locks), messages.flow_key
-- calls:   messages._look, messages._stage, messages._tokens, messages._pay
-- raises:  nothing

-- Keys of which something waits, up to quantity of them, from one on and not past another. Ordered
-- as the index of what waits is: the other one has what is locked and scheduled as well.
create or replace function messages._waiting_keys(
  queue text, first text, last text, quantity integer
)
  returns text[]
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  return array(
    with recursive waiting as (
      (
        select m.key
        from messages.message as m
        where m.queue = _waiting_keys.queue
          and m.state = 'waiting'
          and m.key >= _waiting_keys.first
        order by m.key, m.priority desc, m.id
        limit 1
      )
      union all
      select n.key
      from waiting as w
      cross join lateral (
        select m.key
        from messages.message as m
        where m.queue = _waiting_keys.queue
          and m.state = 'waiting'
          and m.key > w.key
        order by m.key, m.priority desc, m.id
        limit 1
      ) as n
      where _waiting_keys.last is null or w.key < _waiting_keys.last
    )
    select w.key from waiting as w limit _waiting_keys.quantity
  );
end;
$$;

-- For each key: how many more messages it may have, its turn among the shares, and its weight.
-- given are those that are handed out just now; running are the others.
create or replace function messages._key_rooms(
  queue messages.queue,
  keys text[],
  running bigint[],
  given bigint[],
  floor double precision,
  out _key text,
  out _room integer,
  out _turn double precision,
  out _weight double precision
)
  returns setof record
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  return query
  with held as (
    select m.key, count(*)::integer as all_of_it,
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
      queue.key_concurrency - coalesce(h.all_of_it, 0),
      case when queue.key_rate is not null then
        messages._tokens(
          coalesce(f.paid_at, '-infinity'), v_now, queue.key_rate, queue.key_rate_period,
          queue.key_rate_burst
        ) - coalesce(h.new, 0)
      end
    ),
    greatest(f.turn, _key_rooms.floor) + coalesce(h.new, 0) / coalesce(s.weight, 1),
    coalesce(s.weight, 1)
  from unnest(_key_rooms.keys) as k (key)
  left join held as h on h.key = k.key
  left join messages.share as s on s.queue = _key_rooms.queue.name and s.key = k.key
  left join lateral (
    select l.turn, l.paid_at
    from messages.flow_key as l
    where l.queue = _key_rooms.queue.name
      and l.key = k.key
    order by l.number desc
    limit 1
  ) as f on true;
end;
$$;

-- Write down what the keys of these messages have had.
create or replace function messages._charge_keys(
  queue messages.queue,
  ids bigint[],
  floor double precision
)
  returns double precision
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_keys text[];
  v_counts bigint[];
  v_first double precision;
begin
  select array_agg(g.key order by g.key), array_agg(g.quantity order by g.key)
  into v_keys, v_counts
  from (
    select m.key, count(*) as quantity
    from messages.message as m
    where m.id = any (_charge_keys.ids) and m.key is not null
    group by m.key
  ) as g;
  if v_keys is null then
    return floor;
  end if;
  with known as materialized (
    select g.key, g.quantity, l.number, greatest(l.turn, _charge_keys.floor) as turn,
      coalesce(s.weight, 1) as weight, coalesce(l.paid_at, '-infinity') as paid_at
    from unnest(v_keys, v_counts) as g (key, quantity)
    left join messages.share as s on s.queue = _charge_keys.queue.name and s.key = g.key
    left join lateral (
      select k.number, k.turn, k.paid_at
      from messages.flow_key as k
      where k.queue = _charge_keys.queue.name
        and k.key = g.key
      order by k.number desc
      limit 1
    ) as l on true
  ),
  charged as materialized (
    select n.key, n.number,
      case when queue.fair then n.turn + n.quantity / n.weight else 0 end as turn,
      case when queue.key_rate is null then n.paid_at
        else messages._pay(
          n.paid_at, v_now, n.quantity, queue.key_rate, queue.key_rate_period
        ) end as paid_at
    from known as n
  ),
  changed as (
    update messages.flow_key as k
    set number = k.number + 1, turn = c.turn, paid_at = c.paid_at
    from charged as c
    where k.queue = _charge_keys.queue.name
      and k.key = c.key
      and k.number = c.number
  ),
  added as (
    insert into messages.flow_key (queue, key, number, turn, paid_at)
    select _charge_keys.queue.name, c.key, 0, c.turn, c.paid_at
    from charged as c
    where c.number is null
  )
  select min(n.turn) into v_first from known as n;
  return case when queue.fair then greatest(floor, v_first) else 0 end;
end;
$$;
