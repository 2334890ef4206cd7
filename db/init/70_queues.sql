-- Queues: create them.
--
-- owns:    nothing
-- writes:  messages.queue
-- calls:   messages._check_policy, messages._keep_flow, messages._invalid, messages._type_name,
--          messages._schema_text
-- raises:  NQ003 invalid argument, NQ009 open transactions

create or replace function messages.create_queue(
  name text,
  lock_timeout interval default interval '1 minute',
  max_attempts integer default 1,
  backoff interval default interval '2 seconds',
  backoff_max interval default null,
  bell text default 'auto',
  retention interval default null,
  max_bytes integer default 1048576,
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
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue;
begin
  if name is null then
    perform messages._invalid('the name of a queue must not be null');
  end if;
  v_queue.name := name;
  v_queue.created_at := clock_timestamp();
  v_queue.lock_timeout := coalesce(lock_timeout, interval '1 minute');
  v_queue.max_attempts := coalesce(max_attempts, 1);
  v_queue.backoff := coalesce(backoff, interval '2 seconds');
  v_queue.backoff_max := coalesce(backoff_max, greatest(v_queue.backoff, interval '5 minutes'));
  v_queue.bell := coalesce(bell, 'auto');
  v_queue.paused := false;
  v_queue.retention := coalesce(
    retention, (select p.retention from messages.archive_policy as p), interval '30 days'
  );
  v_queue.retention_dead := nullif(retention_dead, interval '0');
  v_queue.max_bytes := coalesce(max_bytes, 1048576);
  v_queue.concurrency := nullif(concurrency, 0);
  v_queue.key_concurrency := nullif(key_concurrency, 0);
  v_queue.rate := nullif(rate, 0);
  v_queue.rate_period := coalesce(rate_period, interval '1 second');
  v_queue.rate_burst := nullif(rate_burst, 0);
  v_queue.key_rate := nullif(key_rate, 0);
  v_queue.key_rate_period := coalesce(key_rate_period, interval '1 second');
  v_queue.key_rate_burst := nullif(key_rate_burst, 0);
  v_queue.ordered := coalesce(ordered, false);
  v_queue.fair := coalesce(fair, false);
  v_queue.capacity := nullif(capacity, 0);
  v_queue.overflow := coalesce(overflow, 'reject');
  v_queue.durable := coalesce(durable, true);
  v_queue.payload_type := messages._type_name(payload_type);
  v_queue.payload_schema := messages._schema_text(payload_schema);
  perform messages._check_policy(v_queue);
  insert into messages.queue (
    name, created_at, lock_timeout, max_attempts, backoff, backoff_max, bell, paused, retention,
    max_bytes, concurrency, key_concurrency, rate, rate_period, rate_burst, key_rate,
    key_rate_period, key_rate_burst, ordered, fair, capacity, overflow, durable, payload_type,
    payload_schema, retention_dead
  )
  values (
    v_queue.name, v_queue.created_at, v_queue.lock_timeout, v_queue.max_attempts, v_queue.backoff,
    v_queue.backoff_max, v_queue.bell, v_queue.paused, v_queue.retention, v_queue.max_bytes,
    v_queue.concurrency, v_queue.key_concurrency, v_queue.rate, v_queue.rate_period,
    v_queue.rate_burst, v_queue.key_rate, v_queue.key_rate_period, v_queue.key_rate_burst,
    v_queue.ordered, v_queue.fair, v_queue.capacity, v_queue.overflow, v_queue.durable,
    v_queue.payload_type, v_queue.payload_schema, v_queue.retention_dead
  )
  on conflict on constraint queue_name_pk do nothing
  returning * into v_queue;
  if not found then
    return false;
  end if;
  -- After the insert, which has waited for whoever creates a stream.
  if exists (select from messages.stream as s where s.name = v_queue.name) then
    perform messages._invalid(
      format('%L is a stream', v_queue.name), 'take another name, or drop the stream'
    );
  end if;
  perform messages._keep_flow(v_queue);
  return true;
end;
$$;
comment on function messages.create_queue(
  text, interval, integer, interval, interval, text, interval, integer, integer, integer, integer,
  interval, integer, integer, interval, integer, boolean, boolean, integer, text,
  boolean, regtype, jsonb, interval
) is
  'Create a queue with its policy; null means the default. False: it existed, and nothing changed. '
  'lock_timeout: how long a claim holds a message. max_attempts: claims that a message may use up. '
  'backoff: delay before the second attempt, doubling up to backoff_max. bell: auto, '
  'always or off. retention: how long the archive keeps its messages; retention_dead: those that '
  'did not succeed. max_bytes: most that a '
  'message and its headers may have, as JSON text. concurrency: most that are locked at a time, '
  'key_concurrency: of one key; rate: most handed out in each rate_period, rate_burst: at once '
  '(null: a tenth of a second''s worth), key_rate, key_rate_period, key_rate_burst: of one key; '
  'ordered: a message waits until all earlier ones of its key are archived; fair: keys have equal '
  'shares, or those of set_share(); capacity: most that wait or are scheduled; overflow: beyond '
  'that reject makes publishing fail, drop_oldest archives the oldest as rejected. Without a limit '
  '(null) there is none. durable => false: messages are gone after a crash of the server, and what '
  'succeeds or is dropped is counted, not archived. payload_type: messages are values of it, see '
  'enqueue(); payload_schema: they satisfy this JSON Schema.';
