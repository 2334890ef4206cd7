-- Bounds: instants, durations and numbers that every reader can hold; older rows get them too.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Functions that this version no longer has, or has with another signature or result, in one list.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('_check_type(regtype)'),
        ('_payload_type(text)'),
        ('_read_text(text, regtype)'),
        ('_requeue(messages.message, messages.queue, interval, text)'),
        ('_note_attempt(messages.message, messages.message_status, timestamptz, text, text, text)'),
        ('_attempts_of(messages.message, messages.queue)'),
        ('_expiry(messages.message)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;

-- Captures that cannot work say why.
do $$
begin
  if not exists (
    select from pg_attribute as a
    where a.attrelid = 'messages.capture_report'::regclass and a.attname = 'problem'
  ) then
    alter type messages.capture_report add attribute problem text;
  end if;
end;
$$;

-- What a session has announced is kept where its user cannot set it.
create sequence if not exists messages.announced_first_seq;
create sequence if not exists messages.announced_last_seq;
create sequence if not exists messages.announced_queue_seq;
create sequence if not exists messages.session_key_seq;

-- Lakes: why the last export could not read one, so that retention does not trust it.
alter table messages.lake add column if not exists unreadable text;
comment on column messages.lake.unreadable is
  'Why the last export could not read it; retention waits until one can. Null: it could.';

-- Batches: the ticks between which they lie, and how far behind they are.
alter type messages.batch_report
  add attribute previous_tick bigint,
  add attribute tick bigint,
  add attribute previous_tick_at timestamptz,
  add attribute tick_at timestamptz,
  add attribute lag interval;
