-- Archived: what the end of messages triggers: notifications, dependencies, attempts, warnings.

create or replace function notifyq.process_archived()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_dead messages.message_archive;
  v_queue text;
  v_ids bigint[];
  v_awaited bigint[];
  v_is_followed boolean;
  v_is_blocked boolean;
  v_durable bigint[];
  v_is_noted boolean;
  v_named integer := 0;
  v_count integer := 0;
  v_has_failed boolean;
  v_succeeded boolean := true;
begin
  -- One query: this trigger slows down every message.
  select exists (select from notifyq.dependency),
    exists (select from notifyq.limit_turn as f where f.is_blocked),
    array_agg(a.id) filter (where a.root_id is not null),
    bool_or(a.status <> 'success' or a.awaited)
  into v_is_followed, v_is_blocked, v_durable, v_is_noted
  from archived as a;
  if v_is_blocked then
    perform notifyq.notify_freed(array_agg(distinct a.queue), array_agg(a.id)) from archived as a;
  end if;
  if v_is_followed then
    perform notifyq.settle_dependencies(
      array_agg(a.id order by a.id), array_agg(a.status order by a.id),
      array_agg(a.cancelled_by order by a.id)
    )
    from archived as a;
  end if;
  if v_durable is not null then
    perform notifyq.archive_steps(v_durable);
  end if;
  if v_is_noted is not true then
    return null;
  end if;
  for v_queue, v_has_failed, v_ids, v_awaited in
    select a.queue, bool_or(a.status <> 'success'),
      array_agg(a.id order by a.id) filter (where notifyq.is_dead(a.status, a.cancelled_by)),
      array_agg(a.id order by a.id) filter (where a.awaited)
    from archived as a
    where a.status <> 'success'
      or a.awaited
    group by a.queue
  loop
    v_succeeded := v_succeeded and not v_has_failed;
    if v_ids is not null then
      v_count := v_count + cardinality(v_ids);
      perform notifyq.send_notification('dead_message', v_queue, notifyq.compact_ids(v_ids));
    end if;
    if v_awaited is not null then
      perform notifyq.send_notification(
        'finished_message', v_queue, notifyq.compact_ids(v_awaited)
      );
      perform notifyq.note_ends(v_awaited);
    end if;
  end loop;
  if v_succeeded then
    return null;
  end if;
  -- The last attempt of each message; a message that was not claimed had none.
  insert into messages.attempt (
    message_id, lock_token, locked_at, ended_at, number, status, queue, handled_by, details
  )
  select a.id, a.lock_token, a.locked_at, a.archived_at, a.attempts, a.status, a.queue,
    a.handled_by, left(a.details, 8000)
  from archived as a
  where a.status <> 'success'
    and a.locked_at is not null;
  -- Ten lines are warning enough; ten thousand would fill the log.
  for v_dead in
    select a.* from archived as a
    where notifyq.is_dead(a.status, a.cancelled_by)
    order by a.id limit 10
  loop
    v_named := v_named + 1;
    raise warning 'notifyq: dead % % %: %: %',
      case when v_dead.subscriber is null then 'message' else 'event' end, v_dead.id,
      -- The id in the archive, which dead_retry() takes.
      case
        when v_dead.subscriber is null then format('in queue %s', v_dead.queue)
        else format('of subscriber %s in stream %s', v_dead.subscriber, v_dead.queue)
      end,
      v_dead.status, left(
        case when notifyq.envelope_of(v_dead.details) is null then coalesce(v_dead.details, '-')
        else 'encrypted' end, 200
      );
  end loop;
  if v_count > v_named then
    raise warning 'notifyq: % more dead messages in the same statement', v_count - v_named;
  end if;
  return null;
end;
$$;

create or replace trigger process_archived
  after insert on messages.message_archive
  referencing new table as archived
  for each statement
  execute function notifyq.process_archived();
