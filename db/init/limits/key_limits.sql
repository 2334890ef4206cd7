-- Key limits: limits of single keys instead of those that a queue has for each key.
--
-- raises: NQ001 queue not found, NQ003 invalid argument

create or replace function messages.set_limit(
  queue text, key text, concurrency integer default null, rate integer default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue := notifyq.find_queue(set_limit.queue);
  v_is_changed boolean;
begin
  if set_limit.key is null then
    perform notifyq.raise_invalid('the key of a limit must not be null');
  end if;
  perform notifyq.check_between('concurrency', set_limit.concurrency, 1, 1000000000);
  perform notifyq.check_between('rate', set_limit.rate, 1, 1000000000);
  -- Two calls at once: the later one must see the rows of the other to set has_key_limits.
  select q.* into v_queue
  from messages.queue as q
  where q.name = v_queue.name
  for no key update;
  if set_limit.concurrency is not null and v_queue.key_concurrency is null
    or set_limit.rate is not null and v_queue.key_rate is null
  then
    perform notifyq.raise_invalid(
      format(
        'queue %L has no %s, so key %L cannot have another one', v_queue.name,
        case when set_limit.concurrency is not null and v_queue.key_concurrency is null
          then 'key_concurrency' else 'key_rate' end,
        set_limit.key
      ),
      'set one for all keys with alter_queue(), 1000000000 if they need no limit'
    );
  end if;
  perform notifyq.check_rate(
    'rate', set_limit.rate, v_queue.key_rate_period, v_queue.key_rate_burst
  );
  if coalesce(set_limit.concurrency, set_limit.rate) is null then
    delete from messages.queue_limit as l
    where l.queue = v_queue.name and l.key = set_limit.key;
    v_is_changed := found;
  else
    insert into messages.queue_limit as l (queue, key, concurrency, rate)
    values (v_queue.name, set_limit.key, set_limit.concurrency, set_limit.rate)
    on conflict on constraint queue_limit_queue_key_pk do update
    set concurrency = excluded.concurrency, rate = excluded.rate
    where (l.concurrency, l.rate) is distinct from (excluded.concurrency, excluded.rate);
    v_is_changed := found;
  end if;
  if v_is_changed then
    update messages.queue as q
    set has_key_limits = not q.has_key_limits
    where q.name = v_queue.name
      and q.has_key_limits <> exists (
        select from messages.queue_limit as l where l.queue = q.name
      );
    -- Messages that the old limit held back may be free now.
    perform notifyq.notify_waiting(v_queue);
  end if;
  return v_is_changed;
end;
$$;
comment on function messages.set_limit is
  'Give one key of a queue another concurrency than key_concurrency, and another rate than '
  'key_rate, in the same period and with the same burst; null is the limit of the queue, and null '
  'for both removes the limits of the key. False: nothing changed. Raises NQ001 for an unknown '
  'queue, and NQ003 for a limit that is out of range or that the queue does not have for all keys.';

create or replace function messages.queue_limits(queue text default null)
  returns setof messages.queue_limit language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  return query
  select l.*
  from messages.queue_limit as l
  where (queue_limits.queue is null or l.queue = queue_limits.queue)
    and (v_readable is null or l.queue = any (v_readable))
  order by l.queue, l.key;
end;
$$;
comment on function messages.queue_limits is
  'Keys of a queue that have limits of their own (null: of all queues); see set_limit().';

-- The queue with the least key_concurrency of any key. Claims compare it with upper bounds: what it
-- allows every key may have. Only room_of_keys() reads the limits of single keys.
create or replace function notifyq.with_least_limit(queue messages.queue)
  returns messages.queue language plpgsql stable
as $$
begin
  if queue.has_key_limits and queue.key_concurrency is not null then
    queue.key_concurrency := least(
      queue.key_concurrency,
      (
        select min(l.concurrency)
        from messages.queue_limit as l
        where l.queue = with_least_limit.queue.name
      )
    );
  end if;
  return queue;
end;
$$;
