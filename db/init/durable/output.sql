-- Output: how far a handler is, and what it has to show before its end.
--
-- raises: NQ003 invalid argument, NQ007 no right to the queue, NQ008 too large, NQ011 lock lost

create or replace function messages.progress(
  id bigint,
  lock_token bigint,
  fraction real,
  note text default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
begin
  if (progress.fraction between 0 and 1) is not true then
    perform notifyq.raise_invalid(
      format('fraction must be between 0 and 1, not %s', coalesce(fraction::text, 'null'))
    );
  end if;
  -- An envelope is longer than its text.
  if octet_length(note) > (case when notifyq.envelope_of(note) is null then 1000 else 2500 end)
  then
    perform notifyq.raise_invalid('note must have at most 1000 bytes');
  end if;
  perform notifyq.check_texts(array[progress.id], 'note', array[progress.note])
  where progress.note is not null;
  -- The function of the same name that reads may be called by more roles.
  if not (notifyq.has_role('notifyq_worker') or notifyq.has_role('notifyq_admin')) then
    raise exception using
      errcode = 'NQ007',
      message = format('role %I may not report progress', notifyq.calling_role()),
      hint = 'it needs the rights of notifyq_worker';
  end if;
  if exists (select from messages.queue_grant) then
    id := (notifyq.hide_barred(array[progress.id]))[1];
  end if;
  insert into notifyq.message_progress as p (message_id, fraction, note)
  select m.id, progress.fraction, progress.note
  from messages.message as m
  where m.id = progress.id
    and m.lock_token = progress.lock_token
    and m.state = 'locked'
  on conflict on constraint message_progress_message_id_pk do update
  set fraction = excluded.fraction, note = excluded.note, updated_at = excluded.updated_at
  where p.updated_at <= excluded.updated_at - interval '100 ms'
    or excluded.fraction = 1;
  if not found then
    return false;
  end if;
  perform notifyq.notify_id('message_output', progress.id);
  return true;
end;
$$;
comment on function messages.progress(bigint, bigint, real, text) is
  'Report how far a message is that is locked under lock_token: fraction from 0 to 1, and a note '
  'of at most 1000 bytes. Kept at most once in 100 ms, without WAL, until the message ends. False: '
  'it was not kept, because the last report is too recent or the lock was lost.';

create or replace function messages.progress(id bigint)
  returns setof messages.progress_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
begin
  perform messages.result(progress.id);
  -- A standby cannot read an unlogged table.
  if pg_is_in_recovery() then
    return;
  end if;
  return query
  select p.fraction, p.note, p.updated_at
  from notifyq.message_progress as p
  -- Maintenance deletes that of ended messages later.
  join messages.message as m on m.id = p.message_id
  where p.message_id = progress.id;
end;
$$;
comment on function messages.progress(bigint) is
  'How far the handler of a message was when it last reported; no row if it has not, or the '
  'message ended, or this is a standby. For roles that may see its result. Raises NQ002 for an '
  'unknown message.';

create or replace function messages.emit(id bigint, lock_token bigint, chunk jsonb)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_message messages.message := notifyq.hold_lock(emit.id, emit.lock_token);
  v_number bigint;
begin
  perform notifyq.check_value(v_message.queue, 'chunk', chunk, 'chunk');
  insert into notifyq.message_output (message_id, number, attempt, chunk)
  select v_message.id, 1 + coalesce(max(o.number), 0), v_message.attempts, emit.chunk
  from notifyq.message_output as o
  where o.message_id = v_message.id
  returning number into v_number;
  if v_number = 1 then
    perform notifyq.mark_durable(array[v_message.id]);
  end if;
  perform notifyq.notify_id('message_output', v_message.id);
  return v_number;
end;
$$;
comment on function messages.emit(bigint, bigint, jsonb) is
  'Add a chunk to the output of a message that is locked under lock_token, and notify its readers '
  'on channel message_output; return its number, which rises over all attempts. Kept until a day '
  'after the end of the message. Raises NQ011 if the lock was lost, NQ008 for a chunk that is '
  'larger than max_bytes of the queue, NQ003 for an unlogged queue.';

create or replace function messages.output(id bigint, after bigint default 0)
  returns setof messages.output_chunk language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
begin
  perform messages.result(output.id);
  return query
  select o.number, o.chunk, o.created_at, o.attempt
  from notifyq.message_output as o
  where o.message_id = output.id
    and o.number > coalesce(output.after, 0)
  order by o.number
  limit 10000;
end;
$$;
comment on function messages.output(bigint, bigint) is
  'The chunks that the handler of a message emitted behind number after, up to 10000. LISTEN '
  'message_output first: its payload is the id of the message. For roles that may see its result. '
  'Raises NQ002 for an unknown message.';

create or replace function notifyq.maintain_output(quantity integer)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  delete from notifyq.message_output as o
  where o.ctid = any (array(
    select f.ctid
    from notifyq.message_output as f
    where f.forget_at <= v_now
    order by f.forget_at
    limit quantity
  ));
  delete from notifyq.message_progress as p
  where not exists (select from messages.message as m where m.id = p.message_id);
end;
$$;
