-- Attempts: the history of failed attempts, and what the end of a message sets off.
--
-- raises: NQ003 invalid argument

-- Why an attempt ended that nobody has ended.
create or replace function notifyq.expiry(worker text)
  returns text
  language sql
  immutable
as $$
  select format('lock of %s expired', coalesce(worker, 'an unnamed worker'));
$$;

create or replace function notifyq.check_limits(queues text[], max_attempts integer[])
  returns void
  language plpgsql
as $$
begin
  if cardinality(max_attempts) is distinct from cardinality(queues) then
    perform notifyq.raise_invalid('max_attempts must have one value for each of queues');
  end if;
  -- With each claim, so that it calls for what is wrong alone.
  perform notifyq.check_attempts(u.n)
  from unnest(check_limits.max_attempts) as u (n)
  where u.n not between 1 and 1000;
end;
$$;

create or replace function messages.attempts(id bigint)
  returns setof messages.attempt
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
  -- A plan made while the partitions were empty would read all of them later on.
  set enable_seqscan = off
  set jit = off
as $$
declare
  -- Who reads may read all; a worker, what it may consume.
  v_barred text[] := case
    when notifyq.has_role('notifyq_reader') then '{}' else notifyq.barred_queues() end;
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

-- Died: what the end of a message sets off, for who waits for it and where it is a dead one.

create or replace function notifyq.process_archived()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_dead messages.message_archive;
  v_queue text;
  v_ids bigint[];
  v_awaited bigint[];
  v_is_followed boolean;
  v_is_held boolean;
  v_named integer := 0;
  v_count integer := 0;
begin
  -- One statement: this is in the way of every message.
  select exists (select from notifyq.dependency),
    exists (select from notifyq.flow as f where f.is_held)
  into v_is_followed, v_is_held;
  if v_is_held then
    perform notifyq.notify_freed(array_agg(distinct a.queue), array_agg(a.id)) from archived as a;
  end if;
  if v_is_followed then
    perform notifyq.settle_dependencies(
      array_agg(a.id order by a.id), array_agg(a.status order by a.id)
    )
    from archived as a;
  end if;
  for v_queue, v_ids, v_awaited in
    select a.queue,
      array_agg(a.id order by a.id) filter (where a.status <> 'success'),
      array_agg(a.id order by a.id) filter (where a.awaited)
    from archived as a
    where a.status <> 'success'
      or a.awaited
    group by a.queue
  loop
    if v_ids is not null then
      v_count := v_count + cardinality(v_ids);
      perform notifyq.send_notification('dead_message', v_queue, notifyq.compact_ids(v_ids));
    end if;
    if v_awaited is not null then
      perform notifyq.send_notification(
        'finished_message', v_queue, notifyq.compact_ids(v_awaited)
      );
    end if;
  end loop;
  if v_count = 0 then
    return null;
  end if;
  -- Each was somebody's last attempt, but for those that nobody held.
  insert into messages.attempt (
    message_id, lock_token, locked_at, ended_at, number, status, queue, handled_by, details
  )
  select a.id, a.lock_token, a.locked_at, a.archived_at, a.attempts, a.status, a.queue,
    a.handled_by, left(a.details, 8000)
  from archived as a
  where a.status <> 'success'
    and a.locked_at is not null;
  -- Ten lines wake somebody up as well as ten thousand, which would fill the log.
  for v_dead in
    select a.* from archived as a where a.status <> 'success' order by a.id limit 10
  loop
    v_named := v_named + 1;
    raise warning 'notifyq: dead % % %: %: %',
      case when v_dead.subscriber is null then 'message' else 'event' end, v_dead.id,
      -- Under the id of the archive, which dead_retry() wants.
      case
        when v_dead.subscriber is null then format('in queue %s', v_dead.queue)
        else format('of subscriber %s in stream %s', v_dead.subscriber, v_dead.queue)
      end,
      v_dead.status, left(coalesce(v_dead.details, '-'), 200);
  end loop;
  if v_count > v_named then
    raise warning 'notifyq: % more dead messages in the same statement', v_count - v_named;
  end if;
  return null;
end;
$$;

create or replace trigger died
  after insert on messages.message_archive
  referencing new table as archived
  for each statement
  execute function notifyq.process_archived();
