-- Policy: options of a queue, their checks, and what depends on them.
--
-- raises: NQ003 invalid argument, NQ009 open transactions

-- A queue with default options: the defaults of the columns, and the retention of the archive.
create or replace function notifyq.default_queue(name text)
  returns messages.queue language sql stable
as $$
  select jsonb_populate_record(null::messages.queue, jsonb_build_object(
    'name', name, 'lock_duration', '1 minute', 'max_attempts', 1, 'backoff', '2 seconds',
    'backoff_max', '5 minutes', 'notify', 'auto', 'paused', false, 'retention',
    coalesce((select p.retention from messages.archive_policy as p), '30 days'),
    'max_bytes', 1048576, 'rate_period', '1 second', 'key_rate_period', '1 second',
    'ordered', false, 'fair', false, 'overflow', 'reject', 'durable', true, 'encrypted', false
  ));
$$;

-- A queue with some options changed, checked. Null leaves an option as it is; 0 stands for no
-- limit, no retention_dead and no aging, the type - for no type and the schema {} for no schema.
create or replace function notifyq.set_options(queue messages.queue, options jsonb)
  returns messages.queue language plpgsql
as $$
declare
  v_queue messages.queue := jsonb_populate_record(queue, jsonb_strip_nulls(options));
begin
  v_queue.concurrency := nullif(v_queue.concurrency, 0);
  v_queue.key_concurrency := nullif(v_queue.key_concurrency, 0);
  v_queue.rate := nullif(v_queue.rate, 0);
  v_queue.rate_burst := nullif(v_queue.rate_burst, 0);
  v_queue.key_rate := nullif(v_queue.key_rate, 0);
  v_queue.key_rate_burst := nullif(v_queue.key_rate_burst, 0);
  v_queue.capacity := nullif(v_queue.capacity, 0);
  v_queue.retention_dead := nullif(v_queue.retention_dead, interval '0');
  v_queue.aging := nullif(v_queue.aging, interval '0');
  v_queue.payload_type := nullif(v_queue.payload_type, '-');
  v_queue.payload_schema := notifyq.schema_text(v_queue.payload_schema::jsonb);
  perform notifyq.check_policy(v_queue);
  return v_queue;
end;
$$;

-- Save the options of a queue, and update what depends on them.
create or replace function notifyq.save_options(queue messages.queue)
  returns messages.queue language plpgsql
as $$
declare
  v_queue messages.queue;
begin
  update messages.queue as q
  set lock_duration = queue.lock_duration, max_attempts = queue.max_attempts,
    backoff = queue.backoff, backoff_max = queue.backoff_max, notify = queue.notify,
    retention = queue.retention, retention_dead = queue.retention_dead,
    max_bytes = queue.max_bytes, concurrency = queue.concurrency,
    key_concurrency = queue.key_concurrency, rate = queue.rate, rate_period = queue.rate_period,
    rate_burst = queue.rate_burst, key_rate = queue.key_rate,
    key_rate_period = queue.key_rate_period, key_rate_burst = queue.key_rate_burst,
    ordered = queue.ordered, fair = queue.fair, capacity = queue.capacity,
    overflow = queue.overflow, durable = queue.durable, payload_type = queue.payload_type,
    payload_schema = queue.payload_schema, aging = queue.aging, encrypted = queue.encrypted
  where q.name = save_options.queue.name
  returning * into v_queue;
  perform notifyq.keep_limit_rows(v_queue);
  return v_queue;
end;
$$;

-- The name of a queue, a stream or a subscriber.
create or replace function notifyq.check_name(kind text, name text)
  returns void language plpgsql
as $$
begin
  if name is null
    or octet_length(name) not between 1 and 200
    or name ~ '[:[:cntrl:]]'
    or name <> btrim(name)
  then
    perform notifyq.raise_invalid(
      format('%L cannot be the name of a %s', name, kind),
      'a name has 1 to 200 bytes, no colon, no control character and no blank at its ends'
    );
  end if;
end;
$$;

-- The state of a bucket is an instant, and its tokens are integers: both must stay in range.
create or replace function notifyq.check_rate(
  name text, rate integer, period interval, burst integer
)
  returns void language plpgsql
as $$
declare
  v_seconds double precision := extract(epoch from period)::double precision;
begin
  if rate > 1e9 * v_seconds then
    perform notifyq.raise_invalid(
      format('%s must not be more than 1000000000 a second: %s in %s', name, rate, period)
    );
  end if;
  if burst * v_seconds > 31557600000.0 * rate then
    perform notifyq.raise_invalid(
      format('%s_burst must not take more than 1000 years to refill: %s', name, burst)
    );
  end if;
end;
$$;

create or replace function notifyq.check_policy(queue messages.queue)
  returns void language plpgsql
as $$
begin
  perform notifyq.check_name('queue', queue.name);
  perform notifyq.check_positive('lock_duration', queue.lock_duration);
  perform notifyq.check_positive('retention', queue.retention);
  perform notifyq.check_positive('retention_dead', queue.retention_dead);
  perform notifyq.check_between('max_attempts', queue.max_attempts, 1, 1000);
  perform notifyq.check_duration('backoff', queue.backoff);
  perform notifyq.check_duration('backoff_max', queue.backoff_max);
  if queue.backoff < interval '0' or queue.backoff_max < queue.backoff then
    perform notifyq.raise_invalid('backoff must not be negative, nor longer than backoff_max');
  end if;
  perform notifyq.check_between('max_bytes', queue.max_bytes, 4096, 268435456);
  perform notifyq.check_choice('notify', queue.notify, '{auto,always,off}');
  perform notifyq.check_choice('overflow', queue.overflow, '{reject,drop_oldest}');
  -- The caller has replaced 0, which means no limit.
  perform notifyq.check_between(l.name, l.value, 0, 1000000000)
  from (
    values ('concurrency', queue.concurrency), ('key_concurrency', queue.key_concurrency),
      ('rate', queue.rate), ('rate_burst', queue.rate_burst), ('key_rate', queue.key_rate),
      ('key_rate_burst', queue.key_rate_burst), ('capacity', queue.capacity)
  ) as l (name, value);
  perform notifyq.check_positive('rate_period', queue.rate_period);
  perform notifyq.check_positive('key_rate_period', queue.key_rate_period);
  perform notifyq.check_rate('rate', queue.rate, queue.rate_period, queue.rate_burst);
  perform notifyq.check_rate(
    'key_rate', queue.key_rate, queue.key_rate_period, queue.key_rate_burst
  );
  perform notifyq.check_positive('aging', queue.aging);
  if queue.aging is not null and (
    queue.ordered or queue.fair
    or num_nonnulls(queue.concurrency, queue.key_concurrency, queue.rate, queue.key_rate) > 0
  ) then
    perform notifyq.raise_invalid(
      'aging excludes concurrency, key_concurrency, rate, key_rate, ordered and fair',
      'the order of such a queue follows its limits: remove them, or aging'
    );
  end if;
  perform notifyq.check_payload_policy(
    queue.payload_type, queue.payload_schema::jsonb, queue.encrypted
  );
end;
$$;

-- Wait for claims that have read the queue without a limit, and let none begin until it has the
-- limit: all that they have locked is then counted. A claim holds a lock of the table to its end.
create or replace function notifyq.await_claims(queue text)
  returns void language plpgsql
  -- Later claims wait as well, so this must not take long.
  set lock_timeout = '2s'
as $$
begin
  lock table messages.queue in access exclusive mode;
  update notifyq.limit_state as s
  set counted_at = '-infinity'
  where s.queue = await_claims.queue;
exception
  when lock_not_available then
    perform notifyq.raise_busy('publish or claim');
end;
$$;

-- Keep the rows that claims and publishers of a queue share while it has limits.
create or replace function notifyq.keep_limit_rows(queue messages.queue)
  returns void language plpgsql
as $$
declare
  v_name constant text := queue.name;
  v_parts constant text[] := array_remove(array[
    case when queue.is_limited then 'claim' end, case when queue.capacity > 0 then 'publish' end
  ], null);
begin
  delete from notifyq.limit_turn as t where t.queue = v_name and t.part <> all (v_parts);
  insert into notifyq.limit_turn (queue, part)
  select v_name, p.part from unnest(v_parts) as p (part)
  on conflict on constraint limit_turn_queue_part_pk do nothing;
  if queue.is_limited then
    insert into notifyq.limit_state (queue, number)
    select v_name, 0
    where not exists (select from notifyq.limit_state as s where s.queue = v_name);
  else
    delete from notifyq.limit_state as s where s.queue = v_name;
    delete from notifyq.limit_key as k where k.queue = v_name;
    delete from notifyq.limit_charge as c where c.queue = v_name;
  end if;
  if queue.capacity is null then
    delete from notifyq.limit_room as r where r.queue = v_name;
  else
    update notifyq.limit_room as r set number = r.number + 1, room = 0 where r.queue = v_name;
    if not found then
      insert into notifyq.limit_room (queue, number, room) values (v_name, 0, 0);
    end if;
  end if;
  -- Its capacity may have changed: the messages are counted again.
  delete from notifyq.unlogged_room as r where r.queue = v_name;
  perform notifyq.rebuild_queue_triggers();
  -- Messages that the old options held back may be free now.
  perform notifyq.notify_waiting(queue);
end;
$$;
