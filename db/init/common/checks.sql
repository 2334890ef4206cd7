-- Internal: what several functions share. Executable by nobody but the owner.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ009 open transactions

create or replace function notifyq.find_queue(name text)
  returns messages.queue
  language plpgsql
  stable
as $$
declare
  v_queue messages.queue;
begin
  select q.* into v_queue from messages.queue as q where q.name = find_queue.name;
  if not found then
    raise exception using
      errcode = 'NQ001',
      message = format('there is no queue %L', find_queue.name),
      hint = format(
        'create it with `notifyq queues create %s` or select messages.create_queue(%L), or where '
        'it is to be a stream with `notifyq stream create %s` or select messages.create_stream(%L)',
        find_queue.name, find_queue.name, find_queue.name, find_queue.name
      );
  end if;
  return v_queue;
end;
$$;

create or replace function notifyq.raise_invalid(message text, hint text default '')
  returns void
  language plpgsql
as $$
begin
  if hint = '' then
    raise exception using errcode = 'NQ003', message = raise_invalid.message;
  end if;
  raise exception using
    errcode = 'NQ003', message = raise_invalid.message, hint = raise_invalid.hint;
end;
$$;

-- For an argument for which null has no meaning: that would be taken for something else.
create or replace function notifyq.check_given(name text, is_given boolean)
  returns void
  language plpgsql
as $$
begin
  if is_given is not true then
    perform notifyq.raise_invalid(format('%s must not be null', name));
  end if;
end;
$$;

-- For whoever waited in vain for a lock that transactions hold which do what.
create or replace function notifyq.raise_busy(what text)
  returns void
  language plpgsql
as $$
begin
  raise exception using
    errcode = 'NQ009',
    message = format('transactions that %s stay open', what),
    hint = 'nothing was changed: try again, or end them, see pg_locks and pg_stat_activity';
end;
$$;

create or replace function notifyq.check_quantity(quantity bigint, most bigint)
  returns void
  language plpgsql
as $$
begin
  if quantity is null or quantity not between 1 and most then
    perform notifyq.raise_invalid(
      format('quantity must be between 1 and %s, not %s', most, coalesce(quantity::text, 'null'))
    );
  end if;
end;
$$;

create or replace function notifyq.check_attempts(max_attempts integer)
  returns void
  language plpgsql
as $$
begin
  if max_attempts not between 1 and 1000 then
    perform notifyq.raise_invalid(
      format('max_attempts must be between 1 and 1000, not %s', max_attempts)
    );
  end if;
end;
$$;

-- How often a message may be claimed, as whoever has it now goes by. That of a relay is negative: a
-- message's own number is for its handler, who is elsewhere.
create or replace function notifyq.attempts_of(own integer, handlers integer, queues integer)
  returns integer
  language sql
  immutable
as $$
  select case when handlers < 0 then -greatest(handlers, -2147483647)
    else coalesce(own, handlers, queues) end;
$$;

create or replace function notifyq.check_duration(name text, value interval)
  returns void
  language plpgsql
as $$
begin
  if not notifyq.is_duration(value) then
    perform notifyq.raise_invalid(format('%s must be at most 1000 years, not %s', name, value));
  end if;
end;
$$;

create or replace function notifyq.check_positive(name text, value interval)
  returns void
  language plpgsql
as $$
begin
  if value <= interval '0' then
    perform notifyq.raise_invalid(format('%s must be longer than zero, not %s', name, value));
  end if;
  perform notifyq.check_duration(name, value);
end;
$$;

-- Null: it is not given. Where infinity means never, who calls lets it through.
create or replace function notifyq.check_instant(name text, value timestamptz)
  returns void
  language plpgsql
as $$
begin
  if not notifyq.is_instant(value) then
    perform notifyq.raise_invalid(
      format('%s must be between the years 1 and 9999, not %s', name, value)
    );
  end if;
end;
$$;

create or replace function notifyq.check_due(delay interval, available_at timestamptz)
  returns void
  language plpgsql
as $$
begin
  if delay is not null and available_at is not null then
    perform notifyq.raise_invalid('delay and available_at exclude each other', 'give one of them');
  end if;
  perform notifyq.check_duration('delay', delay);
  perform notifyq.check_instant('available_at', nullif(available_at, 'infinity'));
end;
$$;

create or replace function notifyq.publishing_key(queue text)
  returns bigint
  language plpgsql
  immutable
as $$
begin
  -- Advisory keys are shared by the whole database: the seed keeps ours apart from other people's.
  return hashtextextended(queue, 7305427001);
end;
$$;

-- Exponential backoff with equal jitter: half of the delay is fixed, half is random, so that
-- messages that failed together do not come back together.
-- Source: M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015.
create or replace function notifyq.backoff(base interval, most interval, attempts integer)
  returns interval
  language sql
  volatile
as $$
  -- In seconds, as an interval would overflow before it is compared.
  select make_interval(secs => least(
    extract(epoch from base)::double precision * power(2, least(greatest(attempts, 1), 30) - 1),
    extract(epoch from most)::double precision
  ) * (0.5 + random() / 2));
$$;

-- The only gate to the archive: one statement deletes the message under its token and archives what
-- it deleted, so whatever else runs, a message is archived once and by the holder of its lock.
create or replace function notifyq.archive(
  ids bigint[],
  lock_tokens bigint[],
  statuses messages.message_status[],
  details text[] default null,
  results jsonb[] default null,
  state messages.message_state default 'locked'
)
  returns setof bigint
  language plpgsql
  -- An index scan takes an array of keys in their order, so rows are locked in id order, which is
  -- what keeps two settlers of the same messages from a deadlock; a bitmap would take them by page.
  set enable_bitmapscan = off
  set enable_seqscan = off
  -- The rows that are gone are thought to be few: a nested loop would compare each with each.
  set enable_nestloop = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_archived integer;
begin
  return query
  with ending as (
    -- Somebody may name a message twice.
    select distinct on (u.id, u.lock_token) u.id, u.lock_token, u.status, u.details, u.result
    from unnest(
      archive.ids, archive.lock_tokens, archive.statuses, archive.details, archive.results
    ) as u (id, lock_token, status, details, result)
  ),
  gone as (
    delete from only messages.message as m
    where m.id = any (archive.ids)
      -- Not a join, whose order the planner would choose; nor a condition on the state itself, for
      -- which it would read the whole of the partial index on that state.
      and (
        (m.id, m.lock_token, m.state) in (
          select e.id, e.lock_token, archive.state
          from unnest(archive.ids, archive.lock_tokens) as e (id, lock_token)
        )
      ) is true
    returning m.*
  )
  insert into messages.message_archive as a (
    id, created_at, available_at, locked_at, lock_token, priority, attempts, status, queue, type,
    handled_by, dedup_key, message, headers, details, result, key, max_attempts, awaited
  )
  select
    g.id, g.created_at, g.available_at, g.locked_at, g.lock_token, g.priority, g.attempts,
    e.status, g.queue, g.type, g.locked_by, coalesce(g.dedup_key, g.given_up_key), g.message,
    g.headers, e.details, e.result, g.key, g.max_attempts, g.awaited
  from gone as g
  join ending as e on e.id = g.id and e.lock_token = g.lock_token
  returning a.id;
  get diagnostics v_archived = row_count;
  if v_archived < cardinality(archive.ids) and exists (
    select from pg_inherits as i where i.inhparent = 'messages.message'::regclass
  ) then
    return query
    select v.id
    from notifyq.archive_unlogged(ids, lock_tokens, statuses, details, results, state) as v (id);
  end if;
end;
$$;
