-- Claim by id: hand one message to who asks for it, as tools do.
--
-- owns:    nothing
-- writes:  messages.message (state, locked_at, lock_expires_at, lock_token, locked_by, attempts,
--          handler_attempts)
-- calls:   messages._barred_queues, messages._check_positive, messages._invalid
-- raises:  NQ003 invalid argument

create or replace function messages.claim_id(
  id bigint,
  lock_timeout interval default null,
  worker text default null
)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_barred text[] := messages._barred_queues();
  v_limited text := (
    select q.name
    from messages.message as m
    join messages.queue as q on q.name = m.queue
    where m.id = claim_id.id
      and q.is_limited
      and m.queue <> all (v_barred)
  );
begin
  perform messages._check_positive('lock_timeout', claim_id.lock_timeout);
  if v_limited is not null then
    perform messages._invalid(
      format('queue %L has limits, so its messages are not claimed by id', v_limited),
      'claim from the queue'
    );
  end if;
  return query
  with picked as materialized (
    select m.id, q.lock_timeout
    from messages.message as m
    join messages.queue as q on q.name = m.queue
    where m.id = claim_id.id
      and m.state <> 'locked'
      and m.available_at <= v_now
      and not q.paused
      and m.queue <> all (v_barred)
    for update of m skip locked
  )
  update messages.message as m
  set state = 'locked',
    locked_at = v_now,
    lock_expires_at = v_now + coalesce(claim_id.lock_timeout, p.lock_timeout),
    lock_token = least(m.lock_token, 9223372036854775806) + 1,
    locked_by = claim_id.worker,
    dedup_key = case when m.dedup_scope is null then m.dedup_key end,
    given_up_key = case
      when m.dedup_scope is not null then coalesce(m.dedup_key, m.given_up_key) end,
    attempts = least(m.attempts, 2147483646) + 1,
    handler_attempts = null
  from picked as p
  where m.id = p.id
  returning m.*;
end;
$$;
comment on function messages.claim_id(bigint, interval, text) is
  'Lock the message with this id and return it; no row if it is locked, not yet due, finished, '
  'its queue is paused, or the caller may not consume from it. For tools: workers claim by queue. '
  'Raises NQ003 for a message of a queue with limits, an order or shares.';
