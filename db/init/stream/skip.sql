-- Skip: what becomes of a subscriber that is further behind than its stream allows.
--
-- What it has not read is passed over, the oldest first, until it is within the bounds again; what
-- was passed over is in the archive, as one dead row with the first id, the last id and the number.

-- How many events come after a batch, counted up to most.
create or replace function notifyq.events_after(last notifyq.batch, most bigint, fresh bigint)
  returns bigint
  language plpgsql
  stable
as $$
declare
  v_next notifyq.batch := last;
  v_count bigint := 0::bigint;
begin
  loop
    v_next := notifyq.next_events(v_next, 1000000, fresh);
    exit when v_next.subscription is null;
    v_count := v_count + (notifyq.count_next_events(v_next, 1000000)).there;
    exit when v_count > most;
  end loop;
  return v_count;
end;
$$;

-- The batches that were handed out and not finished, the oldest first.
create or replace function notifyq.list_open_batches(subscription bigint)
  returns setof notifyq.batch
  language sql
  stable
  set enable_seqscan = off
as $$
  select b.*
  from notifyq.batch as b
  where b.subscription = list_open_batches.subscription
    and b.kind <> 'position'
    and not exists (select from notifyq.batch_end as e where e.batch = b.id)
  order by b.id;
$$;

-- A batch that its reader did not finish is taken from it: finish_batch() says so, once it comes.
create or replace function notifyq.revoke_batch(batch notifyq.batch)
  returns void
  language plpgsql
as $$
begin
  insert into notifyq.batch_end (batch, is_finished) values (batch.id, false);
  -- What was to be seen again still is.
  delete from notifyq.event_retry as r where r.batch = revoke_batch.batch.id and r.due_at is null;
  update notifyq.event_retry as r set batch = null where r.batch = revoke_batch.batch.id;
end;
$$;

-- Pass over up to quantity of the oldest events, but none that was published after until. Returns
-- how many, and puts them into the archive.
create or replace function notifyq.skip_events(
  stream messages.stream,
  subscription messages.subscription,
  quantity bigint,
  until timestamptz,
  reason text,
  fresh bigint
)
  returns bigint
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_batch notifyq.batch;
  v_last notifyq.batch;
  v_old bigint;
  v_first_id bigint;
  v_last_id bigint;
  v_first_at timestamptz;
  v_found record;
  v_skipped bigint := 0::bigint;
begin
  for v_batch in
    select b.* from notifyq.list_open_batches(subscription.id) as b
  loop
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
    select b.* into v_last
    from notifyq.batch as b
    where b.subscription = skip_events.subscription.id
    order by b.previous desc
    limit 1;
    exit when v_skipped >= quantity or notifyq.is_open(v_last);
    v_batch := notifyq.next_events(
      v_last, least(quantity - v_skipped, 5000)::integer, fresh
    );
    exit when v_batch.subscription is null;
    v_old := (
      select coalesce(min(e.place) filter (where e.created_at > until) - 1, count(*))
      from (
        select v.created_at, row_number() over (order by v.id) as place
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

-- Of all streams that have a bound; returns how many events were skipped.
create or replace function notifyq.skip_behind(quantity bigint, fresh bigint default null)
  returns bigint
  language plpgsql
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
    -- Whoever reads at this moment is not stuck; the next run looks again.
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
      select b.* into v_last
      from notifyq.batch as b
      where b.subscription = v_subscription.id
      order by b.previous desc
      limit 1;
      -- Ids are of all streams, so this says at once that most are within their bound.
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
