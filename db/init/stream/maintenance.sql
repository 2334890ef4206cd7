-- Maintenance: ticks, old segments, and streams after a restore.

-- Until then a second finish_batch() returns false instead of an error.
create or replace function notifyq.forget_batches(subscription bigint, quantity integer)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_old bigint[] := array(
    select b.id
    from notifyq.batch as b
    left join lateral (
      select d.ended_at from notifyq.batch_end as d where d.batch = b.id offset 0
    ) as e on true
    where b.subscription = forget_batches.subscription
      and b.previous < (
        select max(l.previous)
        from notifyq.batch as l where l.subscription = forget_batches.subscription
      )
      and (b.kind = 'position' or e.ended_at < clock_timestamp() - interval '10 seconds')
    order by b.previous
    limit quantity
  );
begin
  delete from notifyq.batch as b where b.id = any (v_old);
  delete from notifyq.batch_end as e where e.batch = any (v_old);
end;
$$;

create or replace function notifyq.forget_ticks(stream bigint, quantity integer)
  returns void language plpgsql
as $$
begin
  delete from notifyq.tick as t
  where t.stream = forget_ticks.stream
    and t.id = any (array(
      select o.id
      from notifyq.tick as o
      where o.stream = forget_ticks.stream
        and o.created_at < (
          select min(s.opened_at) from notifyq.segment as s where s.stream = forget_ticks.stream
        )
        and o.id < (
          select max(l.id) from notifyq.tick as l where l.stream = forget_ticks.stream
        )
      order by o.id
      limit quantity
    ));
end;
$$;

-- Cut a tick a second at most, and notify subscribers that have events to read.
create or replace function notifyq.tick_idle(stream messages.stream, fresh bigint)
  returns void language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_tick notifyq.tick;
  v_table text := notifyq.event_table(stream.segment);
  v_is_there boolean;
begin
  select t.* into v_tick
  from notifyq.tick as t where t.stream = tick_idle.stream.id order by t.id desc limit 1;
  execute format(
    'select exists (select from notifyq.%I as e where e.id > %L)', v_table, v_tick.high
  )
  into v_is_there;
  if v_is_there and v_tick.created_at < v_now - interval '1 second' then
    perform notifyq.cut_tick(stream, false, fresh);
    v_tick.snapshot := pg_current_snapshot();
  end if;
  if exists (
    select
    from messages.subscription as u
    cross join lateral notifyq.last_batch(u.id) as b
    where u.stream = tick_idle.stream.id
      and (
        v_is_there and notifyq.progress_of(b.upto) < notifyq.progress_of(v_tick.snapshot)
        or exists (
          select from notifyq.event_retry as r
          where r.subscription = u.id
            and r.batch is null
            and r.due_at <= v_now
        )
      )
  ) then
    perform notifyq.notify_stream(stream);
  end if;
end;
$$;

-- Seal closed segments, and truncate those that no subscription needs.
create or replace function notifyq.maintain_segments(stream messages.stream)
  returns void language plpgsql
as $$
declare
  v_segment notifyq.segment;
begin
  for v_segment in
    select s.*
    from notifyq.segment as s
    where s.stream is not distinct from maintain_segments.stream.id
      and s.closed_at is not null
    order by s.closed_at
  loop
    if v_segment.sealed is null then
      perform notifyq.seal_segment(v_segment);
    elsif v_segment.closed_at
      <= clock_timestamp() - coalesce(stream.retention, interval '0')
    then
      exit when exists (
        select
        from messages.subscription as u
        where u.stream = maintain_segments.stream.id
          and notifyq.subscription_needs(u.id, v_segment)
      );
      perform notifyq.free_segment(v_segment);
    end if;
  end loop;
end;
$$;

create or replace function notifyq.maintain_streams(fresh bigint)
  returns void language plpgsql
as $$
declare
  v_stream messages.stream;
begin
  for v_stream in
    select s.* from messages.stream as s order by s.name
    for no key update skip locked
  loop
    perform notifyq.tick_idle(v_stream, fresh);
    perform notifyq.rotate_segment(v_stream);
    perform notifyq.maintain_segments(v_stream);
    perform notifyq.forget_ticks(v_stream.id, 1000);
    perform notifyq.forget_batches(u.id, 10000)
    from messages.subscription as u where u.stream = v_stream.id;
  end loop;
  -- Segments of dropped streams.
  perform notifyq.maintain_segments(null);
end;
$$;

-- After a restore on another server no stored transaction id is valid. Undelivered events go into
-- event_retry of each subscription; all events count as committed long ago.
create or replace function notifyq.adopt_streams()
  returns void language plpgsql
as $$
#variable_conflict use_column
begin
  insert into notifyq.event_retry (
    subscription, event_id, due_at, retries, created_at, type, key, message, headers
  )
  select u.id, e.id, clock_timestamp(), 0, e.created_at, e.type, e.key, e.message, e.headers
  from messages.subscription as u
  join notifyq.segment as s on s.stream = u.stream
  join messages.event as e on e.segment = s.id
  where exists (
    select
    from notifyq.batch as b
    left join notifyq.batch_end as d on d.batch = b.id
    where b.subscription = u.id
      -- Events that were published here have ids of this server, and larger event ids.
      and (not pg_visible_in_snapshot(e.xid, b.seen) or e.id > b.upto_high)
      and case
        when b.previous = (
          select max(l.previous) from notifyq.batch as l where l.subscription = u.id
        ) then not pg_visible_in_snapshot(e.xid, b.upto)
          or e.id > b.upto_high
          or e.id > case when b.kind = 'events' and d.batch is null then b.after_id
            else b.last_id end
        else b.kind = 'events' and d.batch is null and pg_visible_in_snapshot(e.xid, b.upto)
          and e.id > b.after_id and e.id <= b.last_id
      end
  )
  on conflict on constraint event_retry_subscription_event_id_pk do nothing;
  delete from notifyq.event_retry as r where r.due_at is null;
  update notifyq.event_retry as r set batch = null where r.batch is not null;
  update messages.event as e set xid = '3' where e.xid <> '3';
  update notifyq.segment as s
  set sealed = null, waits_for = null, changed_by = null
  where s.closed_at is not null;
  delete from notifyq.tick;
  delete from notifyq.batch_end;
  delete from notifyq.batch;
  perform notifyq.cut_tick(s, false) from messages.stream as s order by s.id;
  perform notifyq.set_position(u.id, notifyq.position_batch(s, 'last'))
  from messages.subscription as u
  join messages.stream as s on s.id = u.stream;
end;
$$;
