-- Policy: what a queue may be like, and what is kept for one with limits.
--
-- raises: NQ003 invalid argument, NQ009 open transactions

-- A name of a queue, a stream or a subscriber.
create or replace function notifyq.check_name(kind text, name text)
  returns void
  language plpgsql
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

-- A bucket is told by an instant, and its tokens are counted in integers: both must have room.
create or replace function notifyq.check_rate(
  name text, rate integer, period interval, burst integer
)
  returns void
  language plpgsql
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
  returns void
  language plpgsql
as $$
declare
  v_most integer;
begin
  perform notifyq.check_name('queue', queue.name);
  perform notifyq.check_positive('lock_timeout', queue.lock_timeout);
  perform notifyq.check_positive('retention', queue.retention);
  perform notifyq.check_positive('retention_dead', queue.retention_dead);
  perform notifyq.check_attempts(queue.max_attempts);
  perform notifyq.check_duration('backoff', queue.backoff);
  perform notifyq.check_duration('backoff_max', queue.backoff_max);
  if queue.backoff < interval '0' or queue.backoff_max < queue.backoff then
    perform notifyq.raise_invalid('backoff must not be negative, nor longer than backoff_max');
  end if;
  if queue.max_bytes not between 4096 and 268435456 then
    perform notifyq.raise_invalid(
      format('max_bytes must be between 4096 and 268435456, not %s', queue.max_bytes)
    );
  end if;
  if queue.bell not in ('auto', 'always', 'off') then
    perform notifyq.raise_invalid(format('bell must be auto, always or off, not %s', queue.bell));
  end if;
  if least(
    queue.concurrency, queue.key_concurrency, queue.rate, queue.rate_burst, queue.key_rate,
    queue.key_rate_burst, queue.capacity
  ) < 0 then
    perform notifyq.raise_invalid(
      'concurrency, rates, bursts and capacity must not be negative', '0 stands for no limit'
    );
  end if;
  v_most := greatest(
    queue.concurrency, queue.key_concurrency, queue.rate, queue.rate_burst, queue.key_rate,
    queue.key_rate_burst, queue.capacity
  );
  if v_most > 1000000000 then
    perform notifyq.raise_invalid(
      format(
        'concurrency, rates, bursts and capacity must not be more than 1000000000: %s', v_most
      ),
      '0 stands for no limit'
    );
  end if;
  perform notifyq.check_positive('rate_period', queue.rate_period);
  perform notifyq.check_positive('key_rate_period', queue.key_rate_period);
  perform notifyq.check_rate('rate', queue.rate, queue.rate_period, queue.rate_burst);
  perform notifyq.check_rate(
    'key_rate', queue.key_rate, queue.key_rate_period, queue.key_rate_burst
  );
  if queue.overflow not in ('reject', 'drop_oldest') then
    perform notifyq.raise_invalid(
      format('overflow must be reject or drop_oldest, not %s', queue.overflow)
    );
  end if;
  perform notifyq.check_payload_policy(queue.payload_type, queue.payload_schema::jsonb);
end;
$$;

-- Wait for the claims that have seen the queue without a limit, and let none begin until it has
-- one: then all that they have locked is counted. Each holds a lock of the table until its end.
create or replace function notifyq.await_claims(queue text)
  returns void
  language plpgsql
  -- Whoever comes meanwhile waits as well.
  set lock_timeout = '2s'
as $$
begin
  lock table messages.queue in access exclusive mode;
  update notifyq.flow_state as s
  set counted_at = '-infinity'
  where s.queue = await_claims.queue;
exception
  when lock_not_available then
    perform notifyq.raise_busy('publish or claim');
end;
$$;

-- What claims and publishers of a queue share is there while it has limits, and only then.
create or replace function notifyq.keep_limit_rows(queue messages.queue)
  returns void
  language plpgsql
as $$
begin
  if queue.is_limited then
    insert into notifyq.flow (queue, part) values (keep_limit_rows.queue.name, 'claim')
    on conflict on constraint flow_queue_part_pk do nothing;
    insert into notifyq.flow_state (queue, number)
    select keep_limit_rows.queue.name, 0
    where not exists (
      select from notifyq.flow_state as s where s.queue = keep_limit_rows.queue.name
    );
  else
    delete from notifyq.flow as f
    where f.queue = keep_limit_rows.queue.name
      and f.part = 'claim';
    delete from notifyq.flow_state as s where s.queue = keep_limit_rows.queue.name;
    delete from notifyq.flow_key as k where k.queue = keep_limit_rows.queue.name;
    delete from notifyq.flow_charge as c where c.queue = keep_limit_rows.queue.name;
  end if;
  if queue.capacity is not null then
    insert into notifyq.flow (queue, part) values (keep_limit_rows.queue.name, 'publish')
    on conflict on constraint flow_queue_part_pk do nothing;
    update notifyq.flow_room as r
    set number = r.number + 1, room = 0
    where r.queue = keep_limit_rows.queue.name;
    if not found then
      insert into notifyq.flow_room (queue, number, room) values (keep_limit_rows.queue.name, 0, 0);
    end if;
  else
    delete from notifyq.flow as f
    where f.queue = keep_limit_rows.queue.name
      and f.part = 'publish';
    delete from notifyq.flow_room as r where r.queue = keep_limit_rows.queue.name;
  end if;
  perform notifyq.rebuild_capacity_trigger();
  perform notifyq.rebuild_unlogged_triggers();
  perform notifyq.rebuild_payload_trigger();
  -- What is in the way of a message now may not be so any more.
  perform notifyq.notify_waiting(queue);
end;
$$;
