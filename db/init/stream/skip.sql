-- Skip: move a subscriber forward that is further behind than its stream allows.
--
-- The oldest events are skipped until the subscriber is within the limits again. One dead row in
-- the archive records the first id, the last id and the number of them.

-- How many events follow a batch; the count ends above most.
create or replace function notifyq.events_after(last notifyq.batch, most bigint, fresh bigint)
  returns bigint language plpgsql stable
as $$
declare
  v_next notifyq.batch := last;
  v_count bigint := 0::bigint;
begin
  loop
    v_next := notifyq.next_events(v_next, 1000000, fresh);
    exit when v_next.subscription is null;
    v_count := v_count + (notifyq.count_next_events(v_next, 1000000)).events;
    exit when v_count > most;
  end loop;
  return v_count;
end;
$$;

-- Skip up to quantity of the oldest events, but none that was published after until. Returns how
-- many were skipped.
create or replace function notifyq.skip_events(
  stream messages.stream,
  subscription messages.subscription,
  quantity bigint,
  until timestamptz,
  reason text,
  fresh bigint
)
  returns bigint language plpgsql
  set enable_seqscan = off
as $$
declare
  v_batch notifyq.batch;
  v_last notifyq.batch;
  v_old bigint;
  v_found record;
  v_first_id bigint;
  v_last_id bigint;
  v_first_at timestamptz;
  v_skipped bigint := 0::bigint;
begin
  for v_batch in
    select b.* from notifyq.list_open_batches(subscription.id) as b
  loop
    perform from notifyq.batch as b where b.id = v_batch.id for no key update skip locked;
    -- Its reader settles it now, or has finished it since the list was read.
    continue when not found or not notifyq.is_open(v_batch);
    if v_batch.kind = 'events' then
      select count(*) as number, min(e.id) as first, max(e.id) as last,
        min(e.created_at) as first_at, max(e.created_at) as last_at
      into v_found
      from notifyq.read_events(v_batch) as e;
      exit when v_skipped >= quantity or v_found.last_at > until;
      v_skipped := v_skipped + v_found.number;
      v_first_id := least(v_first_id, v_found.first);
      v_last_id := greatest(v_last_id, v_found.last);
      v_first_at := least(v_first_at, v_found.first_at);
    end if;
    perform notifyq.revoke_batch(v_batch);
  end loop;
  loop
    v_last := notifyq.last_batch(subscription.id);
    exit when v_skipped >= quantity or notifyq.is_open(v_last);
    v_batch := notifyq.next_events(
      v_last, least(quantity - v_skipped, 5000)::integer, fresh
    );
    exit when v_batch.subscription is null;
    v_old := (
      select coalesce(min(e.ordinal) filter (where e.created_at > until) - 1, count(*))
      from (
        select v.created_at, row_number() over (order by v.id) as ordinal
        from notifyq.read_events(v_batch) as v
      ) as e
    );
    exit when v_old = 0;
    v_batch := notifyq.next_events(v_last, v_old::integer, fresh);
    select count(*) as number, min(e.id) as first, max(e.id) as last,
      min(e.created_at) as first_at
    into v_found
    from notifyq.read_events(v_batch) as e;
    insert into notifyq.batch_end (batch, is_finished)
    values (notifyq.add_batch(v_batch, v_last.id, null), false);
    v_skipped := v_skipped + v_found.number;
    v_first_id := least(v_first_id, v_found.first);
    v_last_id := greatest(v_last_id, v_found.last);
    v_first_at := least(v_first_at, v_found.first_at);
  end loop;
  if v_skipped > 0 then
    perform notifyq.archive_event(
      stream.name, subscription.name, null, v_first_at, null, null,
      jsonb_build_object('first', v_first_id, 'last', v_last_id, 'count', v_skipped), '{}', 0,
      format(
        'skipped %s events, ids %s to %s, of subscriber %s: %s', v_skipped, v_first_id, v_last_id,
        subscription.name, reason
      ),
      'rejected'
    );
  end if;
  return v_skipped;
end;
$$;

-- For all streams with a limit; returns how many events were skipped.
create or replace function notifyq.skip_behind(quantity bigint, fresh bigint default null)
  returns bigint language plpgsql
as $$
declare
  v_stream messages.stream;
  v_subscription messages.subscription;
  v_last notifyq.batch;
  v_open bigint;
  v_excess bigint;
  v_skipped bigint := 0::bigint;
begin
  for v_stream in
    select s.*
    from messages.stream as s
    where s.max_lag is not null or s.max_events is not null
    order by s.id
  loop
    -- A subscriber that reads now is not stuck; the next run checks it again.
    for v_subscription in
      select u.* from messages.subscription as u
      where u.stream = v_stream.id
      order by u.id
      for no key update skip locked
    loop
      if v_stream.max_lag is not null then
        v_skipped := v_skipped + notifyq.skip_events(
          v_stream, v_subscription, quantity, clock_timestamp() - v_stream.max_lag,
          format('more than %s behind', v_stream.max_lag), fresh
        );
      end if;
      v_last := notifyq.last_batch(v_subscription.id);
      -- Ids are shared by all streams: the difference is an upper bound.
      continue when v_stream.max_events is null
        or notifyq.last_event_id() - (
          select min(b.after_id) from (
            select o.after_id from notifyq.list_open_batches(v_subscription.id) as o
            union all select v_last.last_id
          ) as b
        ) <= v_stream.max_events;
      v_open := (
        select count(*)
        from notifyq.list_open_batches(v_subscription.id) as b
        cross join lateral notifyq.read_events(b) as e
        where b.kind = 'events'
      );
      v_excess := v_open - v_stream.max_events
        + notifyq.events_after(v_last, v_stream.max_events + quantity, fresh);
      if v_excess > 0 then
        v_skipped := v_skipped + notifyq.skip_events(
          v_stream, v_subscription, least(v_excess, quantity), 'infinity',
          format('more than %s events behind', v_stream.max_events), fresh
        );
      end if;
    end loop;
  end loop;
  return v_skipped;
end;
$$;
