-- Admin: create, alter, pause and drop queues.
--
-- raises: NQ003 invalid argument, NQ009 open transactions, NQ001 queue not found, NQ005 queue not
-- empty, NQ007 no right to the queue

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
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue;
begin
  if name is null then
    perform notifyq.raise_invalid('the name of a queue must not be null');
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
  v_queue.payload_type := notifyq.type_name(payload_type);
  v_queue.payload_schema := notifyq.schema_text(payload_schema);
  perform notifyq.check_policy(v_queue);
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
    perform notifyq.raise_invalid(
      format('%L is a stream', v_queue.name), 'take another name, or drop the stream'
    );
  end if;
  perform notifyq.keep_limit_rows(v_queue);
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

-- Alter queue: change the policy of a queue.

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
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_old messages.queue;
  v_queue messages.queue;
begin
  -- One at a time: of two that have read the queue none could lock the others out.
  lock table notifyq.flow in share update exclusive mode;
  v_old := notifyq.find_queue(name);
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
    v_queue.payload_type := notifyq.type_name(payload_type);
  end if;
  v_queue.payload_schema :=
    notifyq.schema_text(coalesce(payload_schema, v_queue.payload_schema::jsonb));
  perform notifyq.check_policy(v_queue);
  if v_old.concurrency is null and v_queue.concurrency is not null
    or v_old.key_concurrency is null and v_queue.key_concurrency is not null
    or v_queue.ordered and not v_old.ordered
  then
    perform notifyq.await_claims(v_queue.name);
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
  perform notifyq.keep_limit_rows(v_queue);
  if v_queue.durable <> v_old.durable then
    perform notifyq.check_moved(v_queue.name);
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

-- Pause and drop: stop a queue for a while, or for good.

-- What a publisher does where the key is taken: by drop_queue(), or by any role of the database for
-- no reason. The row, which a real drop deletes, can be locked by nobody but the owner.
create or replace function notifyq.await_drop(queue text)
  returns void
  language plpgsql
as $$
begin
  perform notifyq.check_access(queue, 'publish into');
  perform from messages.queue as q where q.name = await_drop.queue for key share;
end;
$$;

create or replace function messages.drop_queue(name text, force boolean default false)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '5s'
as $$
declare
  v_queue messages.queue;
  v_dropped bigint;
  v_awaited bigint[];
begin
  perform notifyq.check_given('force', drop_queue.force is not null);
  -- First, since who fires a schedule holds its row while it publishes.
  perform from messages.schedule as s where s.queue = drop_queue.name order by s.name for update;
  delete from messages.schedule as s where s.queue = drop_queue.name;
  -- Waits for transactions that have published into this queue and are not over, see announce().
  perform pg_advisory_xact_lock(notifyq.publishing_key(name));
  -- And for those that found the key taken, before anything is looked at.
  perform from messages.queue as q where q.name = drop_queue.name for update;
  v_queue := notifyq.find_queue(name);
  if not force and exists (select from messages.message as m where m.queue = v_queue.name) then
    raise exception using
      errcode = 'NQ005',
      message = format('queue %L still has messages', v_queue.name),
      hint = 'finish or cancel them, or drop the queue with force => true: that deletes them';
  end if;
  -- In id order, as all who lock rows do.
  perform from messages.message as m where m.queue = v_queue.name order by m.id for update;
  if exists (select from notifyq.dependency) then
    v_awaited := array(
      select m.id from messages.message as m
      where m.queue = v_queue.name
        and exists (
          select from notifyq.dependency as d where d.after_id = m.id and d.status is null
        )
      order by m.id
    );
  end if;
  delete from messages.message as m where m.queue = v_queue.name;
  get diagnostics v_dropped = row_count;
  if v_awaited <> '{}' then
    -- For those that wait in other queues.
    perform notifyq.resolve_dependencies(
      v_awaited, array_fill('rejected'::messages.message_status, array[cardinality(v_awaited)])
    );
  end if;
  delete from notifyq.dedup as d where d.queue = v_queue.name;
  delete from messages.queue_grant as g where g.queue = v_queue.name;
  delete from notifyq.flow as f where f.queue = v_queue.name;
  delete from notifyq.flow_state as s where s.queue = v_queue.name;
  delete from notifyq.flow_key as k where k.queue = v_queue.name;
  delete from notifyq.flow_charge as c where c.queue = v_queue.name;
  delete from notifyq.flow_room as r where r.queue = v_queue.name;
  delete from messages.share as s where s.queue = v_queue.name;
  delete from messages.queue as q where q.name = v_queue.name;
  if v_queue.capacity is not null then
    perform notifyq.rebuild_capacity_trigger();
  end if;
  if not v_queue.durable then
    delete from notifyq.volatile_room as r where r.queue = v_queue.name;
    delete from notifyq.volatile_count as c where c.queue = v_queue.name;
    perform notifyq.rebuild_unlogged_triggers();
  end if;
  perform notifyq.rebuild_payload_trigger();
  return v_dropped;
exception
  when lock_not_available then
    raise exception using
      errcode = 'NQ009',
      message = format('transactions that use queue %L stay open', drop_queue.name),
      hint = 'nothing was changed: try again, or end them, see pg_locks and pg_stat_activity';
end;
$$;
comment on function messages.drop_queue(text, boolean) is
  'Drop a queue and return how many live messages were deleted with it. A queue that has messages '
  'is dropped with force only, else NQ005. Archived messages stay, its grants and schedules go '
  'too. Raises NQ001 for an unknown queue, and NQ009 where transactions that publish into it, or '
  'have claimed from it, stay open for 5 seconds.';

create or replace function messages.pause_queue(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue := notifyq.find_queue(name);
begin
  update messages.queue as q
  set paused = true
  where q.name = v_queue.name
    and not q.paused;
  return found;
end;
$$;
comment on function messages.pause_queue(text) is
  'Hand out no more messages of a queue; publishing goes on. False: it was paused already.';

create or replace function messages.resume_queue(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue := notifyq.find_queue(name);
begin
  update messages.queue as q
  set paused = false
  where q.name = v_queue.name
    and q.paused;
  if not found then
    return false;
  end if;
  perform notifyq.notify_waiting(notifyq.find_queue(v_queue.name));
  return true;
end;
$$;
comment on function messages.resume_queue(text) is
  'Hand out the messages of a paused queue again. False: it was not paused.';
