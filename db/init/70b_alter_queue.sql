-- Alter queue: change the policy of a queue.
--
-- owns:    nothing
-- writes:  messages.queue, messages.flow (table lock)
-- calls:   messages._queue, messages._check_policy, messages._keep_flow, messages._await_claims,
--          messages._type_name, messages._schema_text, messages._check_moved
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ005 queue not empty, NQ009 open
--          transactions

create or replace function messages.alter_queue(
  name text,
  lock_timeout interval default null,
  max_attempts integer default null,
  backoff interval default null,
  backoff_max interval default null,
  bell text default null,
  retention interval default null,
  max_bytes integer default null,
  concurrency integer default null,
  key_concurrency integer default null,
  rate integer default null,
  rate_period interval default null,
  rate_burst integer default null,
  key_rate integer default null,
  key_rate_period interval default null,
  key_rate_burst integer default null,
  ordered boolean default null,
  fair boolean default null,
  capacity integer default null,
  overflow text default null,
  durable boolean default null,
  payload_type regtype default null,
  payload_schema jsonb default null,
  retention_dead interval default null
)
  returns messages.queue
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_old messages.queue;
  v_queue messages.queue;
begin
  -- One at a time: of two that have read the queue none could lock the others out.
  lock table messages.flow in share update exclusive mode;
  v_old := messages._queue(name);
  v_queue := v_old;
  v_queue.lock_timeout := coalesce(lock_timeout, v_queue.lock_timeout);
  v_queue.max_attempts := coalesce(max_attempts, v_queue.max_attempts);
  v_queue.backoff := coalesce(backoff, v_queue.backoff);
  v_queue.backoff_max := coalesce(backoff_max, v_queue.backoff_max);
  v_queue.bell := coalesce(bell, v_queue.bell);
  v_queue.retention := coalesce(retention, v_queue.retention);
  v_queue.retention_dead :=
    nullif(coalesce(retention_dead, v_queue.retention_dead), interval '0');
  v_queue.max_bytes := coalesce(max_bytes, v_queue.max_bytes);
  -- No limit is null there, and null is "as it is" here: so 0 takes one away.
  v_queue.concurrency := nullif(coalesce(concurrency, v_queue.concurrency), 0);
  v_queue.key_concurrency := nullif(coalesce(key_concurrency, v_queue.key_concurrency), 0);
  v_queue.rate := nullif(coalesce(rate, v_queue.rate), 0);
  v_queue.rate_period := coalesce(rate_period, v_queue.rate_period);
  v_queue.rate_burst := nullif(coalesce(rate_burst, v_queue.rate_burst), 0);
  v_queue.key_rate := nullif(coalesce(key_rate, v_queue.key_rate), 0);
  v_queue.key_rate_period := coalesce(key_rate_period, v_queue.key_rate_period);
  v_queue.key_rate_burst := nullif(coalesce(key_rate_burst, v_queue.key_rate_burst), 0);
  v_queue.ordered := coalesce(ordered, v_queue.ordered);
  v_queue.fair := coalesce(fair, v_queue.fair);
  v_queue.capacity := nullif(coalesce(capacity, v_queue.capacity), 0);
  v_queue.overflow := coalesce(overflow, v_queue.overflow);
  v_queue.durable := coalesce(durable, v_queue.durable);
  if payload_type is not null then
    v_queue.payload_type := messages._type_name(payload_type);
  end if;
  v_queue.payload_schema :=
    messages._schema_text(coalesce(payload_schema, v_queue.payload_schema::jsonb));
  perform messages._check_policy(v_queue);
  if v_old.concurrency is null and v_queue.concurrency is not null
    or v_old.key_concurrency is null and v_queue.key_concurrency is not null
    or v_queue.ordered and not v_old.ordered
  then
    perform messages._await_claims(v_queue.name);
  end if;
  update messages.queue as q
  set lock_timeout = v_queue.lock_timeout, max_attempts = v_queue.max_attempts,
    backoff = v_queue.backoff, backoff_max = v_queue.backoff_max, bell = v_queue.bell,
    retention = v_queue.retention, max_bytes = v_queue.max_bytes,
    concurrency = v_queue.concurrency, key_concurrency = v_queue.key_concurrency,
    rate = v_queue.rate, rate_period = v_queue.rate_period, rate_burst = v_queue.rate_burst,
    key_rate = v_queue.key_rate, key_rate_period = v_queue.key_rate_period,
    key_rate_burst = v_queue.key_rate_burst, ordered = v_queue.ordered, fair = v_queue.fair,
    capacity = v_queue.capacity, overflow = v_queue.overflow, durable = v_queue.durable,
    payload_type = v_queue.payload_type, payload_schema = v_queue.payload_schema,
    retention_dead = v_queue.retention_dead
  where q.name = v_queue.name
  returning * into v_queue;
  perform messages._keep_flow(v_queue);
  if v_queue.durable <> v_old.durable then
    perform messages._check_moved(v_queue.name);
  end if;
  return v_queue;
end;
$$;
comment on function messages.alter_queue(
  text, interval, integer, interval, interval, text, interval, integer, integer, integer, integer,
  interval, integer, integer, interval, integer, boolean, boolean, integer, text,
  boolean, regtype, jsonb, interval
) is
  'Change the policy of a queue, see create_queue(); null leaves a value as it is, and 0 takes a '
  'limit or retention_dead away, as the type - and the schema {} do. Live messages follow the new '
  'policy from their next claim or settlement on, but for a type or a schema; the archive follows '
  'a retention soon. Returns the queue. Raises NQ001 for an unknown queue, NQ005 where durable '
  'would change and it has messages, and NQ009 where transactions that publish or claim stay open '
  'while it gets or loses a capacity, gets a concurrency or an order, or gets or loses a type, a '
  'schema or durability.';
