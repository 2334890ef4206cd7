-- Strays: messages whose queue is gone.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive
-- calls:   messages._archive
-- raises:  nothing

-- Publishers that stay silent do not ask the registry, so a queue that is dropped while a worker
-- attends it can be published into until that worker has noticed.
create or replace function messages._reject_strays(quantity bigint)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_queue text := '';
  v_strays messages.message[];
  v_rejected integer := 0;
begin
  loop
    -- From one queue to the next in the indexes, however many messages each has.
    v_queue := least(
      (
        select m.queue from messages.message as m
        where m.state = 'waiting' and m.queue > v_queue order by m.queue limit 1
      ),
      (
        select m.queue from messages.message as m
        where m.state = 'scheduled' and m.queue > v_queue order by m.queue limit 1
      )
    );
    exit when v_queue is null;
    continue when exists (select from messages.queue as q where q.name = v_queue);
    v_strays := array(
      select m
      from messages.message as m
      where m.queue = v_queue
        and m.state <> 'locked'
        and m.id = any (
          array(
            select w.id from messages.message as w
            where w.state = 'waiting' and w.queue = v_queue limit _reject_strays.quantity
          ) || array(
            select w.id from messages.message as w
            where w.state = 'scheduled' and w.queue = v_queue limit _reject_strays.quantity
          )
        )
      order by m.id
      for update skip locked
    );
    v_rejected := v_rejected + cardinality(v_strays);
    perform messages._archive(
      array_agg(s.id), array_agg(s.lock_token),
      array_agg('rejected'::messages.message_status),
      array_agg(format('there is no queue %L any more', left(s.queue, 200))),
      state => s.state
    )
    from unnest(v_strays) as s
    group by s.state;
  end loop;
  return v_rejected;
end;
$$;
