-- Take and cancel: end messages that nobody holds.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive
-- calls:   messages._archive, messages._queue, messages._stage, messages._check_quantity,
--          messages._check_access, messages._enter, messages._look_flow
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

create or replace function messages.take(queue text, quantity integer default 1)
  returns setof messages.message
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_queue messages.queue := messages._queue(take.queue);
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_taken messages.message[];
begin
  perform messages._check_quantity(take.quantity, 10000);
  if exists (select from messages.queue_grant) then
    perform messages._check_access(v_queue.name, 'consume from');
  end if;
  if v_queue.paused then
    return;
  end if;
  if v_queue.is_limited then
    if messages._enter(array[v_queue.name]) = '{}' then
      return;
    end if;
    v_ids := messages._look_flow(v_queue, take.quantity, null, true);
    v_taken := array(
      select m from messages.message as m where m.id = any (v_ids) order by m.id
    );
  else
    perform messages._stage(v_queue.name, v_now, 10 * take.quantity);
    v_taken := array(
      select m
      from messages.message as m
      where m.queue = v_queue.name
        and m.state = 'waiting'
      order by m.priority desc, m.id
      limit take.quantity
      for update skip locked
    );
  end if;
  perform messages._archive(
    array(select t.id from unnest(v_taken) as t),
    array(select t.lock_token from unnest(v_taken) as t),
    array(select 'success'::messages.message_status from unnest(v_taken)),
    state => 'waiting'
  );
  return query select t.* from unnest(v_taken) as t order by t.priority desc, t.id;
end;
$$;
comment on function messages.take(text, integer) is
  'Take up to quantity (at most 10000) messages out of a queue, archive them as success and return '
  'them, all inside the caller''s transaction: commit makes it so, rollback or a lost connection '
  'puts them back. Does not wait for messages that others hold. Keep the transaction short: it '
  'holds back vacuum, and while it is open nobody else gets anything from a queue with limits, '
  'whose limits hold here as well. Raises NQ001 for an unknown queue, and NQ007 for one from which '
  'the caller may not consume.';

create or replace function messages.cancel(id bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_message messages.message;
begin
  select m.* into v_message
  from messages.message as m
  where m.id = cancel.id
    and m.state <> 'locked'
  for update skip locked;
  return found and exists (
    select from messages._archive(
      array[v_message.id], array[v_message.lock_token],
      array['rejected'::messages.message_status], array['cancelled'],
      state => v_message.state
    )
  );
end;
$$;
comment on function messages.cancel(bigint) is
  'Archive a message that waits or is scheduled as rejected, with details `cancelled`. False: it '
  'is locked by a worker, finished, or unknown; nothing changed.';
