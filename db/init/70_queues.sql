-- Queues: create and change them.
--
-- owns:    nothing
-- writes:  messages.queue
-- calls:   messages._queue, messages._check_positive, messages._invalid
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages._check_policy(queue messages.queue)
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  if octet_length(queue.name) not between 1 and 200
    or queue.name ~ '[:[:cntrl:]]'
    or queue.name <> btrim(queue.name)
  then
    perform messages._invalid(
      format('%L cannot be the name of a queue', queue.name),
      'a name has 1 to 200 bytes, no colon, no control character and no blank at its ends'
    );
  end if;
  perform messages._check_positive('lock_timeout', queue.lock_timeout);
  perform messages._check_positive('retention', queue.retention);
  if queue.max_attempts not between 1 and 1000 then
    perform messages._invalid(
      format('max_attempts must be between 1 and 1000, not %s', queue.max_attempts)
    );
  end if;
  if queue.backoff < interval '0' or queue.backoff_max < queue.backoff then
    perform messages._invalid('backoff must not be negative, nor longer than backoff_max');
  end if;
  if queue.max_bytes not between 4096 and 268435456 then
    perform messages._invalid(
      format('max_bytes must be between 4096 and 268435456, not %s', queue.max_bytes)
    );
  end if;
  if queue.bell not in ('auto', 'always', 'off') then
    perform messages._invalid(format('bell must be auto, always or off, not %s', queue.bell));
  end if;
end;
$$;

create or replace function messages.create_queue(
  name text,
  lock_timeout interval default interval '1 minute',
  max_attempts integer default 1,
  backoff interval default interval '2 seconds',
  backoff_max interval default null,
  bell text default 'auto',
  retention interval default interval '30 days',
  max_bytes integer default 1048576
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
  v_queue.retention := coalesce(retention, interval '30 days');
  v_queue.max_bytes := coalesce(max_bytes, 1048576);
  perform messages._check_policy(v_queue);
  insert into messages.queue (
    name, created_at, lock_timeout, max_attempts, backoff, backoff_max, bell, paused, retention,
    max_bytes
  )
  values (
    v_queue.name, v_queue.created_at, v_queue.lock_timeout, v_queue.max_attempts, v_queue.backoff,
    v_queue.backoff_max, v_queue.bell, v_queue.paused, v_queue.retention, v_queue.max_bytes
  )
  on conflict on constraint queue_name_pk do nothing;
  return found;
end;
$$;
comment on function messages.create_queue(
  text, interval, integer, interval, interval, text, interval, integer
) is
  'Create a queue with its policy; null means the default. False: it existed, and nothing changed. '
  'lock_timeout: how long a claim holds a message. max_attempts: claims that a message may use up. '
  'backoff: delay before the second attempt, doubling up to backoff_max. bell: auto, '
  'always or off. retention: how long the archive keeps its messages. max_bytes: most that a '
  'message and its headers may have, as JSON text.';

create or replace function messages.alter_queue(
  name text,
  lock_timeout interval default null,
  max_attempts integer default null,
  backoff interval default null,
  backoff_max interval default null,
  bell text default null,
  retention interval default null,
  max_bytes integer default null
)
  returns messages.queue
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_queue messages.queue := messages._queue(name);
begin
  v_queue.lock_timeout := coalesce(lock_timeout, v_queue.lock_timeout);
  v_queue.max_attempts := coalesce(max_attempts, v_queue.max_attempts);
  v_queue.backoff := coalesce(backoff, v_queue.backoff);
  v_queue.backoff_max := coalesce(backoff_max, v_queue.backoff_max);
  v_queue.bell := coalesce(bell, v_queue.bell);
  v_queue.retention := coalesce(retention, v_queue.retention);
  v_queue.max_bytes := coalesce(max_bytes, v_queue.max_bytes);
  perform messages._check_policy(v_queue);
  update messages.queue as q
  set lock_timeout = v_queue.lock_timeout,
    max_attempts = v_queue.max_attempts,
    backoff = v_queue.backoff,
    backoff_max = v_queue.backoff_max,
    bell = v_queue.bell,
    retention = v_queue.retention,
    max_bytes = v_queue.max_bytes
  where q.name = v_queue.name;
  return v_queue;
end;
$$;
comment on function messages.alter_queue(
  text, interval, integer, interval, interval, text, interval, integer
) is
  'Change the policy of a queue; null leaves a value as it is. Live messages follow the new policy '
  'from their next claim or settlement on. Returns the queue. Raises NQ001 for an unknown queue.';
