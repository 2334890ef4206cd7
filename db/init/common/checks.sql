-- Checks: arguments that several functions check, and backoff.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ009 open transactions

-- Queues and streams with a similar name, as the beginning of a hint; empty: there is none.
-- Similar: at least half of the pairs of letters are the same.
-- Source: L. R. Dice, Measures of the Amount of Ecologic Association Between Species, 1945.
create or replace function notifyq.near_names(name text)
  returns text language sql stable
as $$
  with pairs as (
    select k.name, array(
      select distinct substr(' ' || lower(k.name) || ' ', i, 2)
      from generate_series(1, length(k.name) + 1) as i
    ) as parts
    from (
      select q.name from messages.queue as q
      union
      select s.name from messages.stream as s
      union
      select near_names.name
    ) as k
    where abs(length(k.name) - length(near_names.name)) <= 3
      and length(k.name) <= 200
  )
  select coalesce(
    'did you mean ' || string_agg(quote_literal(n.name), ' or ' order by n.likeness desc, n.name)
      || '? Or ',
    ''
  )
  from (
    select o.name, c.likeness
    from pairs as g
    join pairs as o on o.name <> g.name
    cross join lateral (
      select 2.0 * count(*) / (cardinality(g.parts) + cardinality(o.parts)) as likeness
      from unnest(o.parts) as p (part)
      where p.part = any (g.parts)
    ) as c
    where g.name = near_names.name
      and c.likeness >= 0.5
    order by c.likeness desc, o.name
    limit 2
  ) as n
$$;

create or replace function notifyq.find_queue(name text)
  returns messages.queue language plpgsql stable
as $$
declare
  v_queue messages.queue;
begin
  select q.* into v_queue from messages.queue as q where q.name = find_queue.name;
  if not found then
    raise exception using
      errcode = 'NQ001',
      message = format('there is no queue %L', find_queue.name),
      hint = case
        when exists (select from messages.stream as s where s.name = find_queue.name)
          then 'it is a stream: use messages.publish(), or insert into messages.stream_event'
        else notifyq.near_names(find_queue.name) || format(
          'create it with `notifyq queues create %1$s` or messages.create_queue(%1$L), or, as a '
          'stream, with `notifyq stream create %1$s` or messages.create_stream(%1$L)',
          find_queue.name
        )
      end;
  end if;
  return v_queue;
end;
$$;

create or replace function notifyq.raise_invalid(message text, hint text default '')
  returns void language plpgsql
as $$
begin
  if hint = '' then
    raise exception using errcode = 'NQ003', message = raise_invalid.message;
  end if;
  raise exception using
    errcode = 'NQ003', message = raise_invalid.message, hint = raise_invalid.hint;
end;
$$;

-- Whether an error with this SQLSTATE concerns the message itself: its size, values, schema or
-- type. The same message fails again, and others may be accepted. errors.REFUSED is this list in
-- Python.
create or replace function notifyq.is_refusal(code text)
  returns boolean language sql immutable
as $$
  select code ~ '^(22|23|54|42804|NQ003|NQ008|NQ030)';
$$;

-- For arguments that must not be null: null would mean something else.
create or replace function notifyq.check_given(name text, is_given boolean)
  returns void language plpgsql
as $$
begin
  if is_given is not true then
    perform notifyq.raise_invalid(format('%s must not be null', name));
  end if;
end;
$$;

-- For a lock timeout; `what` is what the transactions do that hold the lock.
create or replace function notifyq.raise_busy(what text)
  returns void language plpgsql
as $$
begin
  raise exception using
    errcode = 'NQ009',
    message = format('transactions that %s stay open', what),
    hint = 'nothing was changed; try again, or end them, see pg_locks and pg_stat_activity';
end;
$$;

create or replace function notifyq.check_quantity(
  quantity bigint, most bigint, name text default 'quantity'
)
  returns void language plpgsql
as $$
begin
  if quantity is null or quantity not between 1 and most then
    perform notifyq.raise_invalid(
      format('%s must be between 1 and %s, not %s', name, most, coalesce(quantity::text, 'null'))
    );
  end if;
end;
$$;

-- Null passes this check and the next ones: the argument was not given.
create or replace function notifyq.check_between(
  name text, value bigint, lowest bigint, highest bigint
)
  returns void language plpgsql
as $$
begin
  if value not between lowest and highest then
    perform notifyq.raise_invalid(
      format('%s must be between %s and %s, not %s', name, lowest, highest, value)
    );
  end if;
end;
$$;

create or replace function notifyq.check_choice(name text, value text, choices text[])
  returns void language plpgsql
as $$
begin
  if value <> all (choices) then
    perform notifyq.raise_invalid(format(
      '%s must be %s, not %s',
      name, regexp_replace(array_to_string(choices, ', '), ', ([^,]*)$', e' or \\1'), value
    ));
  end if;
end;
$$;

-- How often a message may be claimed, given the numbers of the message, its handler and its queue.
-- That of a relay is negative and comes first: the message's number is for its handler elsewhere.
create or replace function notifyq.attempts_of(own integer, handlers integer, queues integer)
  returns integer language sql immutable
as $$
  select case when handlers < 0 then -greatest(handlers, -2147483647)
    else coalesce(own, handlers, queues) end;
$$;

create or replace function notifyq.check_duration(name text, value interval)
  returns void language plpgsql
as $$
begin
  if not notifyq.is_duration(value) then
    perform notifyq.raise_invalid(format('%s must be at most 1000 years, not %s', name, value));
  end if;
end;
$$;

create or replace function notifyq.check_positive(name text, value interval)
  returns void language plpgsql
as $$
begin
  if value <= interval '0' then
    perform notifyq.raise_invalid(format('%s must be longer than zero, not %s', name, value));
  end if;
  perform notifyq.check_duration(name, value);
end;
$$;

-- Where infinity means never, the caller replaces it.
create or replace function notifyq.check_instant(name text, value timestamptz)
  returns void language plpgsql
as $$
begin
  if not notifyq.is_instant(value) then
    perform notifyq.raise_invalid(
      format('%s must be between the years 1 and 9999, not %s', name, value)
    );
  end if;
end;
$$;

-- The name of what only its users know: a step, a signal, a load.
create or replace function notifyq.check_length(what text, name text, most integer default 200)
  returns void language plpgsql
as $$
begin
  if (octet_length(name) between 1 and most) is not true then
    perform notifyq.raise_invalid(format(
      'the name of a %s has 1 to %s bytes, not %s', what, most, coalesce(octet_length(name), 0)
    ));
  end if;
end;
$$;

-- When a message is due that is published now.
create or replace function notifyq.due_at(delay interval, available_at timestamptz)
  returns timestamptz language plpgsql
as $$
begin
  if delay is not null and available_at is not null then
    perform notifyq.raise_invalid('delay and available_at exclude each other', 'give one of them');
  end if;
  perform notifyq.check_duration('delay', delay),
    notifyq.check_instant('available_at', nullif(available_at, 'infinity'));
  return coalesce(
    available_at,
    -- Not for a delay of zero: the clock is past now(), so the message would be scheduled.
    case when delay > interval '0' then clock_timestamp() + delay end,
    now()
  );
end;
$$;

create or replace function notifyq.publishing_key(queue text)
  returns bigint language sql immutable
as $$
  -- All programs in a database share the advisory keys: the seed separates these from others.
  select hashtextextended(queue, 7305427001);
$$;

-- Exponential backoff with equal jitter: half of the delay is fixed, half is random, else messages
-- that failed together would come back together.
-- Source: M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
create or replace function notifyq.backoff(base interval, most interval, attempts integer)
  returns interval language sql volatile
as $$
  -- In seconds: an interval would overflow before it is compared.
  select make_interval(secs => least(
    extract(epoch from base)::double precision * power(2, least(greatest(attempts, 1), 30) - 1),
    extract(epoch from most)::double precision
  ) * (0.5 + random() / 2));
$$;

-- Whether an archived message is dead: it did not succeed, and nobody cancelled it. Everything that
-- lists, counts, groups or reports dead messages calls this, or reads the view dead_message. The
-- planner puts the condition in place of the call: the partial indexes serve it.
create or replace function notifyq.is_dead(status messages.message_status, cancelled_by text)
  returns boolean language sql immutable
as $$
  select status <> 'success' and cancelled_by is null;
$$;
