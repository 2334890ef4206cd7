-- Resolve: what the end of messages means for those that wait for them.
--
-- A chain of any length is resolved at once and not link by link. Rows of messages are locked in
-- id order before anything changes; who is to be cancelled has no other way out, as nobody claims
-- what waits for others.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_archive, messages.dependency
-- calls:   messages._archive, messages._ring, messages._compact
-- raises:  nothing

-- Lock what waits for these messages; tell what is to be cancelled with them, and for which one.
create or replace function messages._lock_dependents(
  ids bigint[],
  statuses messages.message_status[],
  out doomed bigint[],
  out causes bigint[]
)
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  -- Which _archive() has switched off: all that waits for anything would be read.
  set enable_nestloop = on
  set lock_timeout = '200ms'
as $$
declare
  v_waiting bigint[];
  v_locked bigint[];
  v_tries integer := 0;
begin
  loop
    begin
      v_locked := '{}';
      loop
        with recursive doomed (id, cause) as (
          select d.message_id, u.id
          from unnest(_lock_dependents.ids, _lock_dependents.statuses) as u (id, status)
          join messages.dependency as d on d.after_id = u.id
          where u.status <> 'success'
            and d.status is null
            and d.on_failure = 'cancel'
          union
          select d.message_id, o.cause
          from doomed as o
          join messages.dependency as d on d.after_id = o.id
          where d.status is null
            and d.on_failure = 'cancel'
        )
        select coalesce(array_agg(o.id order by o.id), '{}'), array_agg(o.cause order by o.id)
        into _lock_dependents.doomed, _lock_dependents.causes
        from (select d.id, min(d.cause) as cause from doomed as d group by d.id) as o;
        v_waiting := array(
          select distinct d.message_id from messages.dependency as d
          where d.after_id = any (_lock_dependents.ids || _lock_dependents.doomed)
            and d.status is null
          order by d.message_id
        );
        -- What is locked gets nobody any more who waits for it; but meanwhile it may have.
        exit when v_waiting = v_locked;
        perform from messages.message as m
        where m.id = any (v_waiting)
        order by m.id
        for update;
        v_locked := v_waiting;
      end loop;
      exit;
    exception
      -- Those that came later may be older than what is locked: begin again without any, as
      -- whoever holds them may wait for those.
      when lock_not_available then
        v_tries := v_tries + 1;
        -- What the transaction locked before is kept: the server is to find who waits in a ring,
        -- for which one must wait longer than its deadlock_timeout.
        if v_tries >= 10 then
          perform set_config('lock_timeout', '0', true);
        end if;
    end;
  end loop;
end;
$$;

create or replace function messages._resolve(
  ids bigint[],
  statuses messages.message_status[]
)
  returns void
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  -- All rows are found by their ids. Those are thought to be few: a nested loop would compare each
  -- with each.
  set enable_nestloop = off
  set jit = off
as $$
declare
  v_doomed bigint[];
  v_causes bigint[];
  v_due bigint[];
begin
  select l.doomed, l.causes into v_doomed, v_causes
  from messages._lock_dependents(ids, statuses) as l;
  with ended as (
    select u.id, u.status from unnest(ids, statuses) as u (id, status)
    union all
    select u.id, 'rejected' from unnest(v_doomed) as u (id)
  ),
  marked as (
    update messages.dependency as d
    set status = e.status
    from ended as e
    where d.after_id = e.id
      and d.after_id = any (ids || v_doomed)
      and d.status is null
    returning d.message_id, d.available_at, d.delay,
      case when e.status <> 'success' then d.on_failure end as failing
  ),
  counted as (
    select k.message_id, min(k.available_at) as due, min(k.delay) as delay,
      count(*) filter (where k.failing is distinct from 'hold') as ended
    from marked as k
    group by k.message_id
    having bool_and(k.failing is distinct from 'cancel')
  ),
  freed as (
    update messages.message as m
    set blockers = nullif(m.blockers - c.ended, 0),
      -- The trigger `schedule` makes it scheduled where it is not due.
      state = 'waiting',
      available_at = case
        when m.blockers > c.ended then m.available_at
        when c.delay > interval '0' then clock_timestamp() + c.delay
        else greatest(c.due, now()) end
    from counted as c
    where m.id = c.message_id
      and m.id = any (array(select k.message_id from counted as k))
      and m.blockers is not null
    returning m.id, m.state
  )
  select array_agg(f.id order by f.id) into v_due from freed as f where f.state = 'waiting';
  if v_doomed <> '{}' then
    perform messages._archive(
      array_agg(m.id), array_agg(m.lock_token),
      array_agg('rejected'::messages.message_status),
      array_agg(format('cancelled: it was to run after message %s, which died', u.cause)),
      state => 'scheduled'
    )
    from unnest(v_doomed, v_causes) as u (id, cause)
    join messages.message as m on m.id = u.id
    where m.id = any (v_doomed);
  end if;
  perform messages._ring(q, messages._compact(array_agg(m.id)))
  from messages.message as m
  join messages.queue as q on q.name = m.queue
  where m.id = any (v_due[1:1000])
  group by q;
end;
$$;

-- Called by the trigger `died` for all that is archived, while anything waits for anything.
create or replace function messages._settle_dependencies(
  ids bigint[],
  statuses messages.message_status[]
)
  returns void
  language plpgsql
  set enable_seqscan = off
  -- Which those that call _archive() may have switched off, and that holds for the triggers of what
  -- it writes: all that waits for anything would be read in its order.
  set enable_sort = on
  set jit = off
as $$
begin
  if exists (
    select from messages.dependency as d where d.after_id = any (ids) and d.status is null
  ) then
    perform messages._resolve(ids, statuses);
  end if;
  -- A dead message may be published again, and reads the results of others then.
  delete from messages.dependency as d
  where d.message_id = any (
    array(select u.id from unnest(ids, statuses) as u (id, status) where u.status = 'success')
  );
end;
$$;
