-- Attempts: the history of failed attempts, and the log records of all calls.
--
-- raises: NQ003 invalid argument, NQ008 too large

-- The details of an attempt whose lock expired.
create or replace function notifyq.expiry(worker text)
  returns text language sql immutable
as $$
  select format('lock of %s expired', coalesce(worker, 'an unnamed worker'));
$$;

create or replace function notifyq.check_max_attempts(queues text[], max_attempts integer[])
  returns void language plpgsql
as $$
begin
  if cardinality(max_attempts) is distinct from cardinality(queues) then
    perform notifyq.raise_invalid('max_attempts must have one value for each of queues');
  end if;
  -- Every claim comes here: only invalid values are passed on.
  perform notifyq.check_between('max_attempts', u.n, 1, 1000)
  from unnest(check_max_attempts.max_attempts) as u (n)
  where u.n not between 1 and 1000;
end;
$$;

create or replace function messages.attempts(id bigint)
  returns setof messages.attempt language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  -- A plan made while the partitions were empty would later read all of them.
  set enable_seqscan = off set jit = off
as $$
declare
  v_sees_all boolean := notifyq.sees_all();
begin
  return query
  select a.*
  from messages.attempt as a
  where a.message_id = attempts.id
    and (v_sees_all or notifyq.may_read(a.queue))
  order by a.lock_token;
end;
$$;
comment on function messages.attempts is
  'Attempts of a live or finished message that did not succeed, in order: when each began and '
  'ended, its status, worker and error, and when the next one was due. A successful attempt is '
  'the archived message itself; a released one does not count. Attempts are kept as long as the '
  'archive keeps messages of their day. None of a queue that the caller may not read.';

-- Beside the end of a call: the message is locked under the token, or has been since. Ids that the
-- caller may not consume, and those of messages that are gone, are left out.
create or replace function notifyq.keep_logs(
  ids bigint[],
  lock_tokens bigint[],
  attempts integer[],
  logs json[]
)
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_kept integer;
  v_most integer := (
    select max(octet_length(l.log::text)) from (
      -- An envelope is a third larger than what is in it.
      select coalesce(
        left(e.seal #>> '{$encrypted,data}', -octet_length(e.seal #>> '{$encrypted,data}') / 4),
        u.log::text
      ) as log
      from unnest(logs) as u (log)
      cross join notifyq.envelope_of(u.log -> 0 ->> 'text') as e (seal)
    ) as l
  );
  v_barred text[] := notifyq.barred_queues();
begin
  if v_most > 65536 then
    raise exception using
      errcode = 'NQ008',
      message = format('the log of a call has %s bytes, and 65536 are kept', v_most),
      hint = 'leave records out before';
  end if;
  -- A statement is sent again where its answer was lost: while the first one runs it waits here.
  perform from messages.message as m
  where m.id = any (keep_logs.ids)
    and m.queue <> all (v_barred)
  order by m.id
  for no key update;
  insert into notifyq.attempt_log (message_id, lock_token, attempt, queue, lines)
  select u.id, u.lock_token, u.attempt, m.queue,
    array(
      -- Clocks of workers may be wrong, but no record is from the future.
      select (
        least(greatest(l.created_at, '0001-01-01 00:00:00+00'), clock_timestamp()),
        coalesce(l.level, ''), coalesce(l.logger, ''), coalesce(l.text, '')
      )::notifyq.log_line
      from json_populate_recordset(null::notifyq.log_line, u.log) as l
    )
  from unnest(keep_logs.ids, keep_logs.lock_tokens, keep_logs.attempts, keep_logs.logs)
    as u (id, lock_token, attempt, log)
  cross join lateral (
    select m.queue
    from messages.message as m
    where m.id = u.id and m.lock_token >= u.lock_token
    union all
    select a.queue
    from messages.message_archive as a
    where a.id = u.id and a.lock_token >= u.lock_token
    limit 1
  ) as m
  where u.lock_token > 0
    and u.attempt is not null
    and u.log is not null
    and m.queue <> all (v_barred)
    and (
      not exists (select from messages.queue as q where q.name = m.queue and q.encrypted)
      or json_array_length(u.log) = 1
      and notifyq.is_envelope(notifyq.envelope_of(u.log -> 0 ->> 'text'), m.queue, 'log')
    )
    -- With an offset each lock is looked up.
    and not exists (
      select from notifyq.attempt_log as o
      where o.message_id = u.id and o.lock_token = u.lock_token
      offset 0
    );
  get diagnostics v_kept = row_count;
  return v_kept;
end;
$$;
comment on function notifyq.keep_logs(bigint[], bigint[], integer[], json[]) is
  'Keep the log records of calls of handlers, each a JSON array of objects with created_at, level, '
  'logger and text, of at most 64 KiB; return of how many calls. The first log of a lock counts. '
  'Of an encrypted queue one record is kept, whose text is an envelope of the whole array. Raises '
  'NQ008 for a larger one.';

create or replace function messages.logs(id bigint)
  returns setof messages.log_record language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  -- As in attempts().
  set enable_seqscan = off set jit = off
as $$
declare
  v_sees_all boolean := notifyq.sees_all();
begin
  return query
  select g.attempt, l.level, l.logger, l.text, l.created_at, g.lock_token
  from notifyq.attempt_log as g
  cross join lateral unnest(g.lines) with ordinality
    as l (created_at, level, logger, text, position)
  where g.message_id = logs.id
    and (v_sees_all or notifyq.may_read(g.queue))
  order by g.lock_token, l.position;
end;
$$;
comment on function messages.logs is
  'What the handler of a live or finished message has logged, in order, where its App captures '
  'logs: up to 64 KB of each call, also of those that succeeded. A parked message is called again '
  'under the same number of the attempt, with another lock_token. The time is that of the worker. '
  'Kept as attempts are. None of a queue that the caller may not read.';
