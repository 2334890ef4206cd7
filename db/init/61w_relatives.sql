-- Relatives: what a message has to do with others; and make one due that is for later.
--
-- owns:    nothing
-- writes:  messages.message (run_now)
-- calls:   messages._ring, messages._queue, messages._check_quantity
-- raises:  NQ001 queue not found

create or replace function messages._state_of(id bigint)
  returns messages.relative_report
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_state messages.relative_report;
begin
  v_state.id := _state_of.id;
  select m.queue, case when m.blockers is null then m.state::text else 'blocked' end
  into v_state.queue, v_state.state
  from messages.message as m
  where m.id = _state_of.id;
  if not found then
    select a.queue, a.status::text, a.archived_at
    into v_state.queue, v_state.state, v_state.happened_at
    from messages.message_archive as a
    where a.id = _state_of.id
    order by a.archived_at desc
    limit 1;
  end if;
  return v_state;
end;
$$;

create or replace function messages.relatives(id bigint, quantity integer default 100)
  returns setof messages.relative_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_kind text;
  v_id bigint;
  v_at timestamptz;
  v_state messages.relative_report;
begin
  perform messages._check_quantity(relatives.quantity, 10000);
  for v_kind, v_id, v_at in
    (
      select 'after', d.after_id, null::timestamptz
      from messages.dependency as d
      where d.message_id = relatives.id
      order by d.position limit relatives.quantity
    )
    union all
    (
      select 'before', d.message_id, null
      from messages.dependency as d
      where d.after_id = relatives.id
      order by d.message_id limit relatives.quantity
    )
    union all
    (
      select 'retried_as', r.message_id, r.redriven_at
      from messages.redrive as r
      where r.archive_id = relatives.id
    )
    union all
    (
      select 'retry_of', r.archive_id, r.redriven_at
      from messages.redrive as r
      where r.message_id = relatives.id
      order by r.archive_id desc limit relatives.quantity
    )
  loop
    v_state := messages._state_of(v_id);
    v_state.kind := v_kind;
    v_state.happened_at := coalesce(v_at, v_state.happened_at);
    return next v_state;
  end loop;
end;
$$;
comment on function messages.relatives(bigint, integer) is
  'Messages that have to do with this one, up to quantity of each kind: those that it runs after '
  '(after) and that run after it (before), and as which it was published again (retried_as) or '
  'of which dead one it is the repetition (retry_of). state and queue are null where nothing of it '
  'is kept; happened_at is when it was published again, else when it ended.';

create or replace function messages.run_now(id bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_name text;
begin
  update messages.message as m
  set state = 'waiting', available_at = now()
  where m.id = run_now.id
    and m.state = 'scheduled'
    and m.blockers is null
  returning m.queue into v_name;
  if not found then
    return false;
  end if;
  perform messages._ring(messages._queue(v_name), run_now.id::text);
  return true;
end;
$$;
comment on function messages.run_now(bigint) is
  'Make a scheduled message due now. False: it is not scheduled, or waits for others, which '
  'unblock() ends.';
