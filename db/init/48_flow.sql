-- Flow: claims of a limited queue take turns, and who waits for a limit is called.
--
-- Each holds the row of the queue in messages.flow until it commits, and every statement after that
-- sees what the claims before it have locked. Queues without limits never come here.
--
-- owns:    nothing
-- writes:  messages.flow; notifies new_message
-- calls:   messages._may, messages._ring, messages._compact
-- raises:  nothing

-- Those of the queues whose claims it is now this transaction's turn to make. Not barred ones: to
-- hold the row of a queue is to stop its other workers.
create or replace function messages._enter(queues text[])
  returns text[]
  language plpgsql
  set enable_seqscan = off
  -- Who claims in a transaction that stays open must not hold up the others for long.
  set lock_timeout = '500ms'
as $$
declare
  v_names text[];
begin
  v_names := array(
    select q.name
    from messages.queue as q
    where q.name = any (_enter.queues)
      and q.is_limited
      and not q.paused
      and messages._may(q.name, 'consume from')
  );
  if cardinality(v_names) = 1 then
    perform from messages.flow as f
    where f.queue = v_names[1]
      and f.part = 'claim'
    for update skip locked;
    if found then
      return v_names;
    end if;
  end if;
  begin
    -- By name, so that of two who want the same queues one waits for the other, and never both.
    perform from messages.flow as f
    where f.queue = any (v_names)
      and f.part = 'claim'
    order by f.queue
    for update;
    return v_names;
  exception
    when lock_not_available then
      return array(
        select f.queue
        from messages.flow as f
        where f.queue = any (v_names)
          and f.part = 'claim'
        order by f.queue
        for update skip locked
      );
  end;
end;
$$;

-- Tokens of a bucket, which is told by one instant: when it is full again. Without a burst it has
-- room for a tenth of a second's worth: workers come that often, and few see much more in a period.
create or replace function messages._tokens(
  paid_at timestamptz, instant timestamptz, rate integer, period interval, burst integer
)
  returns integer
  language plpgsql
  immutable
as $$
declare
  v_each double precision := extract(epoch from period)::double precision / rate;
begin
  -- The policy may have been another one when it was paid for.
  return greatest(least(floor(
    coalesce(burst, greatest(1, ceil(0.1 / v_each)))
    + extract(epoch from instant - greatest(paid_at, instant)) / v_each + 1e-6
  ), 2147483647), -2147483647)::integer;
end;
$$;

create or replace function messages._pay(
  paid_at timestamptz, instant timestamptz, tokens bigint, rate integer, period interval
)
  returns timestamptz
  language plpgsql
  immutable
as $$
begin
  return greatest(paid_at, instant)
    + make_interval(secs => tokens * extract(epoch from period)::double precision / rate);
end;
$$;

-- Remember whether something waits for a lock of the queue to end, so that whoever ends one rings.
create or replace function messages._note_held(queue messages.queue, is_held boolean)
  returns void
  language plpgsql
as $$
declare
  v_flow messages.flow;
  v_is_old boolean;
begin
  select f.* into v_flow
  from messages.flow as f
  where f.queue = _note_held.queue.name
    and f.part = 'claim';
  v_is_old := v_flow.held_at not between clock_timestamp() - interval '1 second'
    and clock_timestamp();
  if v_flow.is_held and not v_is_old or not v_flow.is_held and not is_held then
    return;
  end if;
  update messages.flow as f
  set is_held = _note_held.is_held,
    held_at = clock_timestamp()
  where f.queue = _note_held.queue.name
    and f.part = 'claim';
  if is_held and not v_flow.is_held then
    -- Who ends a lock at this moment has not seen it, and rings for nobody: who is summoned looks
    -- once more when all transactions of this moment are over.
    perform messages._ring(queue, '');
  end if;
end;
$$;

-- Locks of these messages have ended: ring in those of the queues where others wait for that.
create or replace function messages._ring_freed(queues text[], ids bigint[])
  returns void
  language plpgsql
as $$
begin
  perform messages._ring(q, messages._compact(_ring_freed.ids[1:1000]))
  from messages.queue as q
  join messages.flow as f on f.queue = q.name and f.part = 'claim' and f.is_held
  where q.name = any (_ring_freed.queues);
end;
$$;
