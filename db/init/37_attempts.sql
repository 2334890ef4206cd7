-- Attempts: the history of the attempts of a message that did not succeed.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._invalid, messages._check_attempts, messages._has_role, messages._barred_queues
-- raises:  NQ003 invalid argument

-- Why an attempt ended that nobody has ended.
create or replace function messages._expiry(worker text)
  returns text
  language sql
  immutable
as $$
  select format('lock of %s expired', coalesce(worker, 'an unnamed worker'));
$$;

create or replace function messages._check_limits(queues text[], max_attempts integer[])
  returns void
  language plpgsql
as $$
begin
  if cardinality(max_attempts) is distinct from cardinality(queues) then
    perform messages._invalid('max_attempts must have one value for each of queues');
  end if;
  -- With each claim, so that it calls for what is wrong alone.
  perform messages._check_attempts(u.n)
  from unnest(_check_limits.max_attempts) as u (n)
  where u.n not between 1 and 1000;
end;
$$;

create or replace function messages.attempts(id bigint)
  returns setof messages.attempt
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  -- A plan made while the partitions were empty would read all of them later on.
  set enable_seqscan = off
  set jit = off
as $$
declare
  -- Who reads may read all; a worker, what it may consume.
  v_barred text[] := case
    when messages._has_role('notifyq_reader') then '{}' else messages._barred_queues() end;
begin
  return query
  select a.*
  from messages.attempt as a
  where a.message_id = attempts.id
    and a.queue <> all (v_barred)
  order by a.lock_token;
end;
$$;
comment on function messages.attempts(bigint) is
  'The attempts of a message, live or finished, that did not succeed, the first one first: when '
  'each began and ended, how, by which worker, with which error, and when the next one was due. An '
  'attempt that succeeds is the archived message itself; one that was released does not count. '
  'They are kept for as long as the archive keeps messages of their day. A worker gets none of a '
  'queue from which it may not consume.';
