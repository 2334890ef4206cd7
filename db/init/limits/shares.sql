-- Shares: weights of keys, waiting times of rates, and maintenance of token buckets.
--
-- raises: NQ001 queue not found, NQ003 invalid argument

create or replace function messages.set_share(queue text, key text, weight double precision)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue := notifyq.find_queue(set_share.queue);
begin
  if set_share.key is null then
    perform notifyq.raise_invalid('the key of a share must not be null');
  end if;
  if set_share.weight is null then
    delete from messages.share as s where s.queue = v_queue.name and s.key = set_share.key;
    return found;
  end if;
  if set_share.weight not between 0.001 and 1000000 then
    perform notifyq.raise_invalid(
      format('weight must be between 0.001 and 1000000, not %s', set_share.weight),
      'null restores the weight 1'
    );
  end if;
  insert into messages.share as s (queue, key, weight)
  values (v_queue.name, set_share.key, set_share.weight)
  on conflict on constraint share_queue_key_pk do update
  set weight = excluded.weight
  where s.weight <> excluded.weight;
  return found;
end;
$$;
comment on function messages.set_share is
  'Set the weight of a key of a fair queue: while both have messages waiting, weight times as '
  'many are claimed of it as of a key with the weight 1. Keys have the weight 1 by default; null '
  'restores it. False: nothing changed. Raises NQ001 for an unknown queue, and NQ003 for a weight '
  'that is out of range.';

create or replace function messages.queue_shares(queue text default null)
  returns setof messages.share language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  return query
  select s.*
  from messages.share as s
  where (queue_shares.queue is null or s.queue = queue_shares.queue)
    and (v_readable is null or s.queue = any (v_readable))
  order by s.queue, s.weight desc, s.key;
end;
$$;
comment on function messages.queue_shares is
  'Keys of a queue that have another weight than 1 (null: of all queues), the largest first; see '
  'set_share().';

-- How long a bucket will be empty; null if it is not.
create or replace function notifyq.empty_for(
  paid_at timestamptz, instant timestamptz, rate integer, period interval, burst integer
)
  returns interval language plpgsql immutable
as $$
declare
  -- count_tokens() of a bucket that is full now gives its burst.
  v_burst integer := notifyq.count_tokens(instant, instant, rate, period, burst);
begin
  if notifyq.count_tokens(paid_at, instant, rate, period, burst) > 0 then
    return null;
  end if;
  return paid_at - instant - make_interval(
    secs => (v_burst - 1) * extract(epoch from period)::double precision / rate
  );
end;
$$;

create or replace function notifyq.rate_limit_wait(queues text[], since interval default '0')
  returns interval language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_since constant interval := greatest(rate_limit_wait.since, '0');
  v_then timestamptz;
  v_queue messages.queue;
  v_next interval;
begin
  perform notifyq.check_duration('since', rate_limit_wait.since);
  -- At the time of the last claim: it did not find what has become available since.
  v_then := clock_timestamp() - v_since;
  for v_queue in
    select q.*
    from messages.queue as q
    where q.name = any (rate_limit_wait.queues)
      and (q.rate is not null or q.key_rate is not null)
      and not notifyq.is_paused(q)
      and notifyq.is_allowed(q.name, 'consume from')
  loop
    v_next := least(
      coalesce(v_next, v_since + interval '1 day'),
      (
        select notifyq.empty_for(
          s.paid_at, v_then, v_queue.rate, v_queue.rate_period, v_queue.rate_burst
        )
        from notifyq.limit_state as s
        where s.queue = v_queue.name
          and v_queue.rate is not null
        order by s.number desc
        limit 1
      ),
      (
        select min(
          notifyq.empty_for(
            k.paid_at, v_then, coalesce(o.rate, v_queue.key_rate), v_queue.key_rate_period,
            v_queue.key_rate_burst
          )
        )
        from notifyq.limit_key as k
        left join messages.queue_limit as o on v_queue.has_key_limits
          and o.queue = k.queue and o.key = k.key
        where k.queue = v_queue.name
          and v_queue.key_rate is not null
          and k.paid_at > v_then
          and exists (
            select from messages.message as m
            where m.queue = k.queue and m.key = k.key and m.state = 'waiting'
          )
      )
    );
  end loop;
  return v_next - v_since;
end;
$$;
comment on function notifyq.rate_limit_wait is
  'How long the rates of these queues, or of their keys with waiting messages, allow no claim: a '
  'worker that got fewer messages than it wanted polls again after that time. Rates that allow '
  'one already do not count, as a claim finds those messages; since is the time since the last '
  'claim, and rates that became free in it count, with a negative result. At most a day; null if '
  'no queue has a rate.';

-- Delete buckets that are full: without a row a bucket is full. Rows stay for ten seconds, as
-- workers that have just claimed may call rate_limit_wait(). A queue with a running claim is left
-- to the next call.
create or replace function notifyq.sweep_limit_keys(quantity integer)
  returns integer language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_queue text;
  v_state notifyq.limit_state;
  v_swept integer;
  v_all integer := 0;
begin
  for v_queue in
    select f.queue
    from notifyq.limit_turn as f
    where f.part = 'claim'
    order by f.queue
    for update skip locked
  loop
    select s.* into v_state
    from notifyq.limit_state as s
    where s.queue = v_queue
    order by s.number desc
    limit 1;
    perform notifyq.save_limit_state(v_state, notifyq.pay_charges(v_state), true);
    delete from notifyq.limit_key as k
    where k.ctid = any (array(
      select o.ctid
      from notifyq.limit_key as o
      where o.queue = v_queue
        and o.paid_at <= clock_timestamp() - interval '10 seconds'
      limit sweep_limit_keys.quantity
    ));
    get diagnostics v_swept = row_count;
    v_all := v_all + v_swept;
  end loop;
  return v_all;
end;
$$;
