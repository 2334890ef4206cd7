-- Take: end messages that are not locked, in the transaction that reads them.
--
-- raises: NQ003 invalid argument, NQ001 queue not found, NQ007 no right to the queue

create or replace function messages.take(queue text, quantity integer default 1)
  returns setof messages.message language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_queue messages.queue := notifyq.find_queue(take.queue);
  v_now timestamptz := clock_timestamp();
  v_ids bigint[];
  v_taken messages.message[];
begin
  perform notifyq.check_quantity(take.quantity, 10000);
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(v_queue.name, 'consume from');
  end if;
  if notifyq.is_paused(v_queue) then
    return;
  end if;
  perform notifyq.expire_due();
  if v_queue.is_limited then
    if notifyq.enter_turn(array[v_queue.name]) = '{}' then
      return;
    end if;
    v_ids := notifyq.find_limited(v_queue, take.quantity, null, true);
    v_taken := array(
      select m
      from messages.message as m
      where m.id = any (v_ids)
      order by m.priority desc, m.id
    );
  elsif v_queue.aging is not null then
    v_ids := notifyq.find_aging(v_queue, take.quantity, null, true);
    v_taken := array(
      select f.row
      from unnest(v_ids) with ordinality as u (id, ordinal)
      cross join lateral (
        select m as row from messages.message as m where m.id = u.id offset 0
      ) as f
      order by u.ordinal
    );
  else
    perform notifyq.stage_queue(v_queue.name, v_now, 10 * take.quantity);
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
  perform notifyq.archive(
    array(select t.id from unnest(v_taken) as t),
    array(select t.lock_token from unnest(v_taken) as t),
    array(select 'success'::messages.message_status from unnest(v_taken)),
    state => 'waiting'
  );
  -- Rows of a function keep their order.
  return query select t.* from unnest(v_taken) as t;
end;
$$;
comment on function messages.take is
  'Take up to quantity (at most 10000) messages out of a queue, archive them as success and '
  'return them, all in the caller''s transaction: a rollback or a lost connection puts them back. '
  'Locked messages are skipped. Keep the transaction short: it holds vacuum back and, of a queue '
  'with limits, which hold here as well, other workers get nothing while it is open. Raises NQ001 '
  'for an unknown queue, and NQ007 for one from which the caller may not consume.';
