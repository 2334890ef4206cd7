-- Died: what makes a dead message heard, its last attempt known, and what waits for it go on.
--
-- owns:    trigger died of messages.message_archive
-- writes:  messages.attempt; notifies dead_message
-- calls:   messages._notify, messages._compact, messages._settle_dependencies
-- raises:  nothing

create or replace function messages._died()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_dead messages.message_archive;
  v_queue text;
  v_ids bigint[];
  v_named integer := 0;
  v_count integer := 0;
begin
  if exists (select from messages.dependency) then
    perform messages._settle_dependencies(
      array_agg(a.id order by a.id), array_agg(a.status order by a.id)
    )
    from archived as a;
  end if;
  for v_queue, v_ids in
    select a.queue, array_agg(a.id order by a.id)
    from archived as a
    where a.status <> 'success'
    group by a.queue
  loop
    v_count := v_count + cardinality(v_ids);
    perform messages._notify('dead_message', v_queue, messages._compact(v_ids));
  end loop;
  if v_count = 0 then
    return null;
  end if;
  -- Each was somebody's last attempt, but for those that nobody held; and messages.retry() notes
  -- its own, with the error.
  insert into messages.attempt (
    message_id, lock_token, locked_at, ended_at, number, status, queue, handled_by, details
  )
  select a.id, a.lock_token, a.locked_at, a.archived_at, a.attempts, a.status, a.queue,
    a.handled_by, left(a.details, 8000)
  from archived as a
  where a.status <> 'success'
    and a.locked_at is not null
    and concat(a.id, ':', a.lock_token) is distinct from current_setting('notifyq.noted', true);
  -- Ten lines wake somebody up as well as ten thousand, which would fill the log.
  for v_dead in
    select a.* from archived as a where a.status <> 'success' order by a.id limit 10
  loop
    v_named := v_named + 1;
    raise warning 'notifyq: dead message % in queue %: %: %',
      v_dead.id, v_dead.queue, v_dead.status, left(coalesce(v_dead.details, '-'), 200);
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
  execute function messages._died();
