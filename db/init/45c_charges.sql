-- Charges: what the keys of a queue with a rate for each of them have had.
--
-- Far from its rate a key need not be written with each claim: the claims of a queue leave what
-- they handed out in one row each, and the keys pay for many of them at once. That is far for a
-- claim after which every key has a token left, whichever of them it is for: all that is asked for
-- that is how far the fullest key can be ahead. So while something is left to pay, no key is dry.
--
-- owns:    nothing
-- writes:  messages.flow_key, messages.flow_charge
-- calls:   messages._tokens, messages._pay
-- raises:  nothing

-- Whether each key had a token left if any of them paid for so many.
create or replace function messages._is_far(
  queue messages.queue, state messages.flow_state, most integer
)
  returns boolean
  language plpgsql
  volatile
as $$
begin
  return most < messages._tokens(
    state.keys_paid_at, clock_timestamp(), queue.key_rate, queue.key_rate_period,
    queue.key_rate_burst
  );
end;
$$;

-- Let the buckets of the keys pay for what is left to pay: each for its charges one after another,
-- with what ran in between. One that is full again by now has none.
create or replace function messages._book(state messages.flow_state)
  returns messages.flow_state
  language plpgsql
  set enable_seqscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_state messages.flow_state := state;
  v_now timestamptz := clock_timestamp();
  v_last timestamptz;
begin
  if state.booked = state.charged then
    return v_state;
  end if;
  with charges as (
    select u.key, c.charged_at, sum(u.tokens * c.each) over (
      partition by u.key order by c.number desc
    ) as seconds
    from messages.flow_charge as c
    cross join lateral unnest(c.keys, c.tokens) as u (key, tokens)
    where c.queue = _book.state.queue
      and c.number > _book.state.booked
      and c.number <= _book.state.charged
  ),
  paid as materialized (
    select g.key, l.number,
      greatest(l.paid_at + make_interval(secs => g.seconds), g.paid_at) as paid_at
    from (
      select h.key, max(h.seconds) as seconds,
        max(h.charged_at + make_interval(secs => h.seconds)) as paid_at
      from charges as h
      group by h.key
    ) as g
    left join lateral (
      select k.number, k.paid_at
      from messages.flow_key as k
      where k.queue = _book.state.queue
        and k.key = g.key
      order by k.number desc
      limit 1
    ) as l on true
  ),
  changed as (
    update messages.flow_key as k
    set number = k.number + 1, paid_at = p.paid_at
    from paid as p
    where p.paid_at > v_now
      and k.queue = _book.state.queue
      and k.key = p.key
      and k.number = p.number
  ),
  added as (
    insert into messages.flow_key (queue, key, number, paid_at)
    select _book.state.queue, p.key, 0, p.paid_at
    from paid as p
    where p.paid_at > v_now
      and p.number is null
  )
  select max(p.paid_at) into v_last from paid as p;
  delete from messages.flow_charge as c
  where c.queue = _book.state.queue
    and c.number > _book.state.booked
    and c.number <= _book.state.charged;
  v_state.booked := state.charged;
  v_state.booked_paid_at := greatest(state.booked_paid_at, v_last);
  v_state.keys_paid_at := v_state.booked_paid_at;
  return v_state;
end;
$$;

-- Let the keys of messages that were handed out pay for them, so many of each.
create or replace function messages._charge_keys(
  queue messages.queue, state messages.flow_state, keys text[], tokens integer[]
)
  returns messages.flow_state
  language plpgsql
as $$
declare
  v_state messages.flow_state := state;
  v_now timestamptz := clock_timestamp();
  v_most integer := (select max(t.quantity) from unnest(tokens) as t (quantity));
begin
  if v_most is null then
    return v_state;
  end if;
  v_state.charged := state.charged + cardinality(keys);
  v_state.keys_paid_at := messages._pay(
    state.keys_paid_at, v_now, v_most, queue.key_rate, queue.key_rate_period
  );
  insert into messages.flow_charge (queue, number, charged_at, each, keys, tokens)
  values (
    _charge_keys.queue.name, v_state.charged, v_now,
    extract(epoch from queue.key_rate_period)::double precision / queue.key_rate,
    _charge_keys.keys, _charge_keys.tokens
  );
  -- One that pays at once pays for little, and so does one that pays for very much.
  if v_state.charged - v_state.booked > 10000
    or not messages._is_far(queue, v_state, 0)
  then
    v_state := messages._book(v_state);
  end if;
  return v_state;
end;
$$;
