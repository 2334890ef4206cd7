-- Locks: extend and release.
--
-- raises: NQ003 invalid argument

create or replace function messages.extend_many(
  ids bigint[], lock_tokens bigint[], lock_duration interval default null
)
  returns setof bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  -- As in archive(): rows are locked in id order.
  set enable_bitmapscan = off set enable_seqscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  perform notifyq.check_positive('lock_duration', extend_many.lock_duration);
  if exists (select from messages.queue_grant) then
    ids := notifyq.hide_barred(ids);
  end if;
  return query
  update messages.message as m
  set lock_expires_at = v_now + coalesce(
      extend_many.lock_duration,
      (select q.lock_duration from messages.queue as q where q.name = m.queue)
    )
  where m.id = any (extend_many.ids)
    and (
      (m.id, m.lock_token, m.state) in (
        select g.id, g.lock_token, 'locked'::messages.message_state
        from unnest(extend_many.ids, extend_many.lock_tokens) as g (id, lock_token)
      )
    ) is true
  returning m.id;
end;
$$;
comment on function messages.extend_many is
  'Extend several locks to lock_duration (null: that of the queue) from now; return the ids of '
  'those that were still held.';

create or replace function messages.extend(
  id bigint, lock_token bigint, lock_duration interval default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (
    select from messages.extend_many(array[id], array[lock_token], lock_duration)
  );
end;
$$;
comment on function messages.extend is
  'Extend a lock to lock_duration (null: that of the queue) from now. False: the lock was lost, '
  'and nothing changed.';

create or replace function notifyq.release_locked(
  ids bigint[], lock_tokens bigint[], delay interval
)
  returns setof bigint language plpgsql
  -- As in archive(): rows are locked in id order.
  set enable_bitmapscan = off set enable_seqscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_freed messages.message[];
begin
  perform notifyq.check_duration('delay', release_locked.delay);
  with freed as (
    update messages.message as m
    set state = 'waiting',
      locked_at = null,
      lock_expires_at = null,
      locked_by = null,
      lock_token = least(m.lock_token, 9223372036854775806) + 1,
      attempts = greatest(m.attempts, -2147483647) - 1,
      available_at = case
        when release_locked.delay > interval '0' then clock_timestamp() + release_locked.delay
        else m.available_at end
    where m.id = any (release_locked.ids)
      and (
        (m.id, m.lock_token, m.state) in (
          select g.id, g.lock_token, 'locked'::messages.message_state
          from unnest(release_locked.ids, release_locked.lock_tokens) as g (id, lock_token)
        )
      ) is true
    returning m as row
  )
  select coalesce(array_agg(f.row), '{}') into v_freed from freed as f;
  perform notifyq.notify_queue(q, notifyq.compact_ids(array_agg(f.id)))
  from unnest(v_freed) as f
  join messages.queue as q on q.name = f.queue
  where f.state = 'waiting'
  group by q;
  if release_locked.delay > interval '0' and exists (
    select from notifyq.limit_turn as f where f.is_blocked
  ) then
    perform notifyq.notify_freed(array_agg(distinct f.queue), array_agg(f.id))
    from unnest(v_freed) as f;
  end if;
  return query select f.id from unnest(v_freed) as f order by f.id;
end;
$$;

create or replace function messages.release_many(
  ids bigint[], lock_tokens bigint[], delay interval default null
)
  returns setof bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from messages.queue_grant) then
    ids := notifyq.hide_barred(ids);
  end if;
  return query select r.id from notifyq.release_locked(ids, lock_tokens, delay) as r (id);
end;
$$;
comment on function messages.release_many is
  'Give up the locks of several messages as if they had not been claimed; return the ids that '
  'were still locked under their tokens.';

create or replace function messages.release(
  id bigint, lock_token bigint, delay interval default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (select from messages.release_many(array[id], array[lock_token], delay));
end;
$$;
comment on function messages.release is
  'Give up a lock as if the message had not been claimed: it returns to its old position at once, '
  'or after delay, and the attempt does not count. False: the lock was lost, and nothing changed.';

create or replace function notifyq.release_orphans(worker text, known bigint[])
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_sort = off set jit = off
as $$
declare
  -- Of barred queues no row is locked, either.
  v_barred text[] := notifyq.barred_queues();
  v_orphans messages.message[];
begin
  v_orphans := array(
    select m
    from messages.message as m
    where m.state = 'locked'
      and m.locked_by = release_orphans.worker
      and m.queue <> all (v_barred)
      and m.id <> all (release_orphans.known)
    order by m.id
    for update skip locked
  );
  return (
    select count(*)::integer
    from messages.release_many(
      array(select o.id from unnest(v_orphans) as o),
      array(select o.lock_token from unnest(v_orphans) as o)
    )
  );
end;
$$;
comment on function notifyq.release_orphans is
  'Release messages that are locked in the name of worker and are not in known: a claim whose '
  'answer was lost with the connection. Returns how many. No other worker may have the name.';
