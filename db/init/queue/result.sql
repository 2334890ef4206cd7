-- Result: state of a message, and its result once it is finished.
--
-- A client that waits marks the live row, for which it needs the row lock. So either the finisher
-- comes later, reads the mark and notifies finished_message, or it was first, and the message is in
-- the archive already.
--
-- raises: NQ002 message not found, NQ007 no right to the queue

create or replace function messages.result(id bigint)
  returns messages.message_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_report messages.message_report;
begin
  select
    m.id, m.queue, m.state::text, m.attempts, m.available_at, null::timestamptz, m.details,
    null::jsonb
  into v_report
  from messages.message as m
  where m.id = result.id;
  if not found then
    select
      a.id, a.queue, a.status::text, a.attempts, a.available_at, a.archived_at, a.details, a.result
    into v_report
    from messages.message_archive as a
    where a.id = result.id;
  end if;
  if not found then
    raise exception using
      errcode = 'NQ002',
      message = format('there is no message %s', coalesce(result.id::text, 'null')),
      hint = 'its id is wrong, it was never committed, or the retention of its queue is over';
  end if;
  -- Publishers and consumers of its queue may read it.
  if exists (select from messages.queue_grant as g where g.queue = v_report.queue)
    and not (
      notifyq.is_allowed(v_report.queue, 'publish into') or notifyq.has_role('notifyq_reader')
    )
  then
    perform notifyq.check_access(v_report.queue, 'consume from');
  end if;
  return v_report;
end;
$$;
comment on function messages.result is
  'State of a message: waiting, scheduled or locked, or how it ended (success, rejected, failed, '
  'lock_expired), with details and, after success, the result. Changes nothing. Raises NQ002 for '
  'a message that is unknown or no longer kept, and NQ007 if the caller may neither publish into '
  'its queue nor consume from it.';

create or replace function messages.await_result(id bigint)
  returns messages.message_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  -- Raises before anything is marked, if the caller may not read it.
  v_report messages.message_report := messages.result(id);
  v_state messages.message_state;
begin
  if v_report.archived_at is not null then
    return v_report;
  end if;
  update messages.message as m
  set awaited = true
  where m.id = await_result.id
    and not m.awaited
  returning m.state into v_state;
  if v_state = 'waiting' then
    -- A claim at this moment has skipped the locked row.
    perform notifyq.notify_queue(q, id::text)
    from messages.queue as q
    where q.name = v_report.queue;
  end if;
  return messages.result(id);
end;
$$;
comment on function messages.await_result is
  'As result(); and if the message is not finished, its end notifies the channel finished_message '
  'with the payload <queue>:<ids>. LISTEN first, call this in a transaction of its own, and call '
  'it again after the notification.';
