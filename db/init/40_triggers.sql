-- Triggers: what makes a plain insert a full publish, and a dead message heard.
--
-- owns:    the triggers of messages.message and messages.message_archive
-- writes:  messages.message (state of scheduled rows); notifies new_message and dead_message
-- calls:   messages._queue, messages._ring, messages._compact, messages._notify,
--          messages._publishing_key, messages._invalid
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages._schedule()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  -- No client could read such a date. Infinity is none: it means never.
  if new.available_at >= '10000-01-01' and isfinite(new.available_at) then
    perform messages._invalid(
      format('available_at must be before the year 10000, not %s', new.available_at),
      'use infinity for never'
    );
  end if;
  new.state := 'scheduled';
  return new;
end;
$$;

-- The condition is evaluated without a call, so rows that are due at once pay next to nothing.
create or replace trigger schedule
  before insert or update of available_at on messages.message
  for each row
  when (new.available_at > now() and new.state = 'waiting')
  execute function messages._schedule();

create or replace function messages._published()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_name text;
  v_queue messages.queue;
  v_first bigint;
  v_last bigint;
  v_waiting bigint;
begin
  for v_name, v_waiting, v_first, v_last in
    select p.queue,
      count(*) filter (where p.state = 'waiting'),
      min(p.id) filter (where p.state = 'waiting'),
      max(p.id) filter (where p.state = 'waiting')
    from published as p
    group by p.queue
    order by p.queue
  loop
    -- Held to the end of the transaction, before the registry is read: drop_queue() waits for it,
    -- else it could miss messages that are not committed yet and leave them without a queue.
    perform pg_advisory_xact_lock_shared(messages._publishing_key(v_name));
    v_queue := messages._queue(v_name);
    if v_last - v_first + 1 = v_waiting then
      perform messages._ring(
        v_queue,
        case when v_first = v_last then v_first::text else format('%s-%s', v_first, v_last) end
      );
    elsif v_waiting > 0 then
      -- Other sessions published in between. 1000 ids say as much as a million.
      perform messages._ring(v_queue, messages._compact(array(
        select p.id
        from published as p
        where p.queue = v_name
          and p.state = 'waiting'
        order by p.id
        limit 1000
      )));
    end if;
  end loop;
  return null;
end;
$$;

create or replace trigger published
  after insert on messages.message
  referencing new table as published
  for each statement
  execute function messages._published();

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
