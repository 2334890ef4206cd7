-- Attempts: the history of failed attempts.
--
-- raises: NQ003 invalid argument

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
  v_barred text[] := notifyq.unreadable_queues();
begin
  return query
  select a.*
  from messages.attempt as a
  where a.message_id = attempts.id
    and a.queue <> all (v_barred)
  order by a.lock_token;
end;
$$;
comment on function messages.attempts is
  'Attempts of a live or finished message that did not succeed, in order: when each began and '
  'ended, its status, worker and error, and when the next one was due. A successful attempt is '
  'the archived message itself; a released one does not count. Attempts are kept as long as the '
  'archive keeps messages of their day. A worker gets none of a queue from which it may not '
  'consume.';
