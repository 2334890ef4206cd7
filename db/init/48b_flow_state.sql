-- Flow state: what the claims of a queue with limits leave to the next.
--
-- owns:    nothing
-- writes:  messages.flow_state
-- calls:   messages._charge_keys, messages._pay, messages._invalid
-- raises:  NQ003 invalid argument

-- The present one; null where the queue has lost its limits meanwhile.
create or replace function messages._read_state(queue text)
  returns messages.flow_state
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_state messages.flow_state;
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform messages._invalid(
      format('queue %L has limits, which hold at READ COMMITTED only', queue),
      'claim and take in a transaction of that isolation level'
    );
  end if;
  select s.* into v_state
  from messages.flow_state as s
  where s.queue = _read_state.queue
  order by s.number desc
  limit 1;
  return v_state;
end;
$$;

-- Know what runs as well as matters: with quantity more, none of the limits may be exceeded. Far
-- from them it is enough how many were handed out since all that is locked was counted; as they
-- come near their ids are kept, and those that are locked no more taken out. new has been claimed
-- ahead, by this transaction: so many of each of these keys, most of one.
create or replace function messages._count_running(
  queue messages.queue, quantity integer, state messages.flow_state, new bigint[], keys text[],
  tokens integer[], most integer
)
  returns messages.flow_state
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state messages.flow_state := state;
  v_now timestamptz := clock_timestamp();
  v_limit integer := least(queue.concurrency, queue.key_concurrency);
  v_is_full boolean :=
    v_now not between state.counted_at and state.counted_at + interval '5 seconds'
    or state.unlisted > 0
    and state.unlisted + cardinality(state.running) + 4 * quantity > v_limit;
  v_first bigint := -9223372036854775807;
  v_last bigint := 9223372036854775807;
  v_others bigint[] := array[]::bigint[];
begin
  if v_limit is null then
    v_state.running := '{}';
    v_state.unlisted := 0;
  elsif v_is_full
    or cardinality(state.running) + quantity > least(
      queue.concurrency, case when new = '{}' then queue.key_concurrency end,
      2 * state.kept + 2000
    )
    or cardinality(state.running) + quantity > queue.key_concurrency
    and most > queue.key_concurrency - state.most
  then
    -- Now and then all that is locked: what was claimed without a limit counts as well. Else what
    -- was handed out at about the same time, which lies close together; the others by their ids.
    if not v_is_full then
      v_last := (select max(r.id) from unnest(state.running) as r (id));
      v_first := v_last - 4 * cardinality(state.running);
      v_others := array(select r.id from unnest(state.running) as r (id) where r.id < v_first);
    end if;
    with held as materialized (
      select l.id, l.key
      from (
        select m.id, m.key
        from messages.message as m
        where m.id between v_first and v_last
          and m.state = 'locked'
          and m.queue = _count_running.queue.name
        union all
        select m.id, m.key
        from messages.message as m
        where m.id = any (v_others)
          -- Not a condition on the state itself, see _archive().
          and (m.state = 'locked') is true
      ) as l
      -- A hash of them, whatever number it thinks that they are.
      where l.id not in (select n.id from unnest(_count_running.new) as n (id))
    )
    select array(select h.id from held as h),
      case when queue.key_concurrency is null then 1000000000 else (
        select coalesce(max(k.quantity), 0)::integer - most
        from (
          select sum(c.quantity) as quantity
          from (
            select h.key, count(*) as quantity from held as h group by h.key
            union all
            select n.key, n.quantity from unnest(keys, tokens) as n (key, quantity)
          ) as c
          where c.key is not null
          group by c.key
        ) as k
      ) end
    into v_state.running, v_state.most;
    if v_is_full then
      v_state.counted_at := v_now;
      v_state.unlisted := 0;
      if cardinality(v_state.running) + 20 * quantity <= v_limit then
        v_state.unlisted := cardinality(v_state.running);
        v_state.running := '{}';
      end if;
    end if;
    v_state.kept := cardinality(v_state.running);
  end if;
  return v_state;
end;
$$;

-- Leave to the next claim what has changed. Without its turn a claim leaves only where to go on,
-- and not even that where another one does so at this moment.
create or replace function messages._keep_state(
  before messages.flow_state, state messages.flow_state, has_turn boolean
)
  returns void
  language plpgsql
  set enable_seqscan = off
as $$
begin
  if state is not distinct from before then
    return;
  end if;
  if not has_turn then
    perform from messages.flow_state as s
    where s.queue = before.queue
      and s.number = before.number
    for update skip locked;
    if not found then
      return;
    end if;
  end if;
  update messages.flow_state as s
  set number = s.number + 1,
    natural_look = state.natural_look,
    paid_at = state.paid_at,
    counted_at = state.counted_at,
    running = state.running,
    unlisted = state.unlisted,
    most = state.most,
    kept = state.kept,
    after_lane = state.after_lane,
    round = state.round,
    had = state.had,
    walk_at = state.walk_at,
    place = state.place,
    charged = state.charged,
    booked = state.booked,
    keys_paid_at = state.keys_paid_at,
    booked_paid_at = state.booked_paid_at,
    -- What is stored apart and stays the same is not written again.
    lanes = case when state.lanes is distinct from before.lanes then state.lanes else s.lanes end
  where s.queue = before.queue
    and s.number = before.number;
end;
$$;

-- Let the queue and the keys of these messages pay for them; most are of one key, as far as that
-- is known.
create or replace function messages._charge(
  queue messages.queue, ids bigint[], state messages.flow_state, most integer,
  keys text[], tokens integer[]
)
  returns messages.flow_state
  language plpgsql
as $$
declare
  v_state messages.flow_state := state;
begin
  if ids = '{}' then
    return v_state;
  end if;
  if state.unlisted + cardinality(state.running) + 20 * cardinality(ids)
    <= least(queue.concurrency, queue.key_concurrency)
  then
    v_state.unlisted := state.unlisted + cardinality(ids);
  elsif queue.concurrency is not null or queue.key_concurrency is not null then
    v_state.running := state.running || ids;
    v_state.most := coalesce(least(state.most + most, 1000000000), 1000000000);
  end if;
  if queue.rate is not null then
    v_state.paid_at := messages._pay(
      state.paid_at, clock_timestamp(), cardinality(ids), queue.rate, queue.rate_period
    );
  end if;
  if queue.key_rate is not null then
    v_state := messages._charge_keys(queue, v_state, keys, tokens);
  end if;
  return v_state;
end;
$$;
