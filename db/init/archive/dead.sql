-- Dead: messages and events that failed permanently.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ020 stream not found, NQ021 subscription
-- not found

create or replace function notifyq.dead_rows(
  queue text,
  status messages.message_status,
  subscriber text,
  since timestamptz,
  is_redriven boolean,
  -- Null: dead and cancelled ones.
  cancelled boolean,
  quantity integer,
  skip integer
)
  returns setof messages.message_archive language plpgsql stable
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  -- Only the index by queue has the dead rows of a queue in order: no other index may be scanned.
  set enable_incremental_sort = off set jit = off set plan_cache_mode = force_generic_plan
as $$
begin
  -- An index-only scan selects the keys; the rows are read last.
  return query
  select a.*
  from (
    select k.id, k.archived_at
    from messages.message_archive as k
    where k.status <> 'success'
      and k.queue = dead_rows.queue
      and k.archived_at >= dead_rows.since
      and (
        dead_rows.cancelled is null
        or notifyq.is_dead(k.status, k.cancelled_by) <> dead_rows.cancelled
      )
      and (dead_rows.status is null or k.status = dead_rows.status)
      and (dead_rows.subscriber is null or k.subscriber = dead_rows.subscriber)
      -- `offset 0` keeps an index scan for each row. A join would be planned for few redriven
      -- messages, and compare all with each other when there are many.
      and (
        is_redriven
        or not exists (select from notifyq.redrive as r where r.archive_id = k.id offset 0)
      )
    order by k.archived_at desc, k.id desc
    limit dead_rows.quantity
    offset dead_rows.skip
  ) as f
  cross join lateral (
    select k.* from messages.message_archive as k
    where k.id = f.id and k.archived_at = f.archived_at offset 0
  ) as a
  order by f.archived_at desc, f.id desc;
end;
$$;

-- The condition of notifyq.is_dead(), which readers of the view may not call.
create or replace view messages.dead_message as
  select a.*
  from messages.message_archive as a
  where a.status <> 'success'
    and a.cancelled_by is null;
comment on view messages.dead_message is
  'Archived messages that did not succeed, also those that were published again since, without '
  'those that were cancelled.';

-- Rows whose queue or subscription was dropped are left out: they would stop all the others.
create or replace view notifyq.retryable_message as
  select d.*
  from messages.dead_message as d
  where
    case
      when d.subscriber is null then
        exists (select from messages.queue as q where q.name = d.queue)
      -- Events that were skipped as a whole have no event_id, and cannot be delivered again.
      else d.event_id is not null and exists (
        select from messages.stream as s
        join messages.subscription as u on u.stream = s.id
        where s.name = d.queue and u.name = d.subscriber
      )
    end;
comment on view notifyq.retryable_message is
  'Dead messages that have a queue, and dead events that have a subscription, to go back to.';

create or replace function messages.dead_list(
  queue text default null,
  quantity integer default 100,
  skip integer default 0,
  subscriber text default null,
  cancelled boolean default false
)
  returns setof messages.dead_message language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  -- Dead rows have an index of their own; the index by queue would read all that succeeded.
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  perform notifyq.check_quantity(dead_list.quantity, 10000);
  perform notifyq.check_given('cancelled', cancelled is not null);
  if dead_list.skip < 0 then
    perform notifyq.raise_invalid(format('skip must not be negative: %s', dead_list.skip));
  end if;
  if dead_list.queue is not null then
    return query
    select d.*
    from notifyq.dead_rows(
      queue, null, subscriber, '-infinity', false, cancelled, dead_list.quantity,
      dead_list.skip
    ) as d;
    return;
  elsif cancelled then
    return query
    select a.*
    from messages.message_archive as a
    where a.status <> 'success'
      and a.cancelled_by is not null
      and (dead_list.subscriber is null or a.subscriber = dead_list.subscriber)
      and (v_readable is null or a.queue = any (v_readable))
      and not exists (select from notifyq.redrive as r where r.archive_id = a.id offset 0)
    order by a.archived_at desc, a.id desc
    limit dead_list.quantity
    offset dead_list.skip;
    return;
  end if;
  return query
  select d.*
  from messages.dead_message as d
  where (dead_list.subscriber is null or d.subscriber = dead_list.subscriber)
    and (v_readable is null or d.queue = any (v_readable))
    -- `offset 0`: an index scan for each, see dead_rows().
    and not exists (select from notifyq.redrive as r where r.archive_id = d.id offset 0)
  order by d.archived_at desc, d.id desc
  limit dead_list.quantity
  offset dead_list.skip;
end;
$$;
comment on function messages.dead_list is
  'Dead messages and events that still need attention, the latest first, without those published '
  'or delivered again: of one queue or stream (null: all), of one subscriber (null: all, and '
  'messages of queues). cancelled: those that were cancelled, instead.';

create or replace function messages.dead_count(
  queue text default null,
  subscriber text default null,
  cancelled boolean default false
)
  returns bigint language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
  -- Redriven messages are hashed once; a merge join would read all of the archive by id.
  set enable_nestloop = off set enable_mergejoin = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_readable text[] := notifyq.readable_names(queue);
begin
  perform notifyq.check_given('cancelled', cancelled is not null);
  if dead_count.queue is null and not cancelled then
    return (
      select count(*)
      from messages.dead_message as d
      where (dead_count.subscriber is null or d.subscriber = dead_count.subscriber)
        and (v_readable is null or d.queue = any (v_readable))
        and not exists (select from notifyq.redrive as r where r.archive_id = d.id)
    );
  elsif dead_count.queue is null then
    return (
      select count(*)
      from messages.message_archive as k
      where k.status <> 'success'
        and k.cancelled_by is not null
        and (dead_count.subscriber is null or k.subscriber = dead_count.subscriber)
        and (v_readable is null or k.queue = any (v_readable))
        and not exists (select from notifyq.redrive as r where r.archive_id = k.id)
    );
  end if;
  return (
    select count(*)
    from messages.message_archive as k
    where k.status <> 'success'
      and k.queue = dead_count.queue
      and notifyq.is_dead(k.status, k.cancelled_by) <> dead_count.cancelled
      and (dead_count.subscriber is null or k.subscriber = dead_count.subscriber)
      and not exists (select from notifyq.redrive as r where r.archive_id = k.id offset 0)
  );
end;
$$;
comment on function messages.dead_count is
  'How many dead messages and events still need attention, as dead_list() would list them.';

create or replace function messages.dead_retry(variadic ids bigint[])
  returns setof bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  -- No sort: planned while the archive is empty, the index of dead rows is as cheap as that by id.
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_dead bigint[];
  v_again bigint[];
  v_events bigint[];
begin
  perform notifyq.raise_invalid(
    format('stream %L has refused message %s: no subscriber can get it again', d.queue, d.id),
    'publish it again with `notifyq publish` or messages.publish(), in a form that the stream takes'
  )
  from messages.message_archive as d
  where d.id = any (dead_retry.ids)
    and d.subscriber is null
    and exists (select from messages.stream as s where s.name = d.queue offset 0);
  -- The transaction gets its number before its message ids, see queue/find.sql.
  perform pg_current_xact_id();
  with dead as materialized (
    select o.*, coalesce(o.event_id, nextval('messages.message_id_seq')) as message_id
    from (
      select d.id, d.queue, d.type, d.priority, d.message, d.headers, d.key, d.max_attempts,
        d.subscriber, d.event_id, coalesce(d.root_id, d.id) as root_id
      from messages.message_archive as d
      where d.id = any (dead_retry.ids)
        and d.status <> 'success'
        -- Events that were skipped as a whole have no row to deliver again.
        and (d.subscriber is null or d.event_id is not null)
        -- `offset 0`: an index scan for each, see dead_rows().
        and not exists (select from notifyq.redrive as r where r.archive_id = d.id offset 0)
      order by d.id
    ) as o
  ),
  -- The primary key lets one of two sessions publish: the other waits for its commit, then skips
  -- the row. In id order, two sessions with common ids never deadlock.
  recorded as (
    insert into notifyq.redrive as r (archive_id, message_id)
    select d.id, d.message_id from dead as d order by d.id
    on conflict on constraint redrive_archive_id_pk do nothing
    returning r.archive_id
  ),
  chosen as materialized (
    select d.*
    from dead as d
    -- Not a join: the planner expects few rows, and would compare each with each.
    where (d.id in (select r.archive_id from recorded as r)) is true
  ),
  -- Without dedup_key: a live message may have it by now, and this one must be published.
  published as (
    insert into messages.message as m
      (id, queue, type, priority, message, headers, key, max_attempts, root_id)
      overriding system value
    select
      c.message_id, c.queue, c.type, c.priority, c.message, c.headers, c.key, c.max_attempts,
      c.root_id
    from chosen as c
    where c.subscriber is null
    order by c.message_id
  )
  select
    array_agg(c.id order by c.message_id),
    array_agg(c.message_id order by c.message_id),
    array_agg(c.id order by c.id) filter (where c.subscriber is not null)
  into v_dead, v_again, v_events
  from chosen as c;
  if v_events is not null then
    perform notifyq.deliver_again(v_events);
  end if;
  perform notifyq.restore_steps(v_dead, v_again);
  if exists (select from notifyq.dependency) then
    perform notifyq.redirect_dependents(v_dead, v_again);
  end if;
  return query select u.id from unnest(v_again) as u (id);
end;
$$;
comment on function messages.dead_retry is
  'Publish dead messages, and cancelled ones, again and return the new ids: same queue, message, '
  'headers, type, key, priority and recorded steps, due at once, with all attempts and without '
  'the dedup_key. Each is published again once; ids that were, or are not of dead messages, are '
  'left out. Messages that wait for one of them wait for the new message; one that ran after '
  'others waits for those that are published again with it. A dead event is delivered again under '
  'its own id, to its subscriber alone. Raises NQ001 where a queue is gone, NQ020 or NQ021 where '
  'a stream or subscription is, NQ003 for a message that a stream has refused, and the errors of '
  'publish(), and publishes nothing then.';

create or replace function messages.dead_retry_from(id bigint, step text default null)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_number integer := 0;
  v_again bigint;
begin
  if step is not null then
    select s.number into v_number
    from notifyq.step_archive as s
    where s.message_id = dead_retry_from.id
      and s.name = dead_retry_from.step;
    if not found then
      perform notifyq.raise_invalid(
        format('message %s has no recorded step %L', dead_retry_from.id, dead_retry_from.step),
        'messages.steps() lists its steps'
      );
    end if;
  end if;
  v_again := (select r from messages.dead_retry(dead_retry_from.id) as r);
  delete from notifyq.step as s where s.message_id = v_again and s.number >= v_number;
  return v_again;
end;
$$;
comment on function messages.dead_retry_from is
  'As dead_retry() for one message, without this step and all that were recorded after it; step '
  'null: without any. Return the new id; null: the message was published again before, or is not '
  'dead. Raises NQ003 for a step that it has not recorded.';

create or replace function messages.dead_delete(variadic ids bigint[])
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_deleted bigint[];
begin
  with deleted as (
    delete from messages.message_archive as a
    where a.id = any (dead_delete.ids)
      -- `is true`: not by an index of all that is dead.
      and (a.status <> 'success') is true
    returning a.id
  )
  select array_agg(d.id) into v_deleted from deleted as d;
  delete from notifyq.redrive as r where r.archive_id = any (v_deleted);
  delete from messages.attempt as t where t.message_id = any (v_deleted);
  delete from notifyq.attempt_log as l where l.message_id = any (v_deleted);
  delete from notifyq.step_archive as s where s.message_id = any (v_deleted);
  return coalesce(cardinality(v_deleted), 0)::bigint;
end;
$$;
comment on function messages.dead_delete is
  'Delete dead messages, and cancelled ones, permanently, with their attempts, logs and steps; '
  'return how many.';

-- An event stays in its stream for the other subscribers. Its row in the archive has an id of its
-- own, and one event may have several. The caller has locked the batch.
create or replace function notifyq.archive_event(
  stream text,
  subscriber text,
  event_id bigint,
  created_at timestamptz,
  type text,
  key text,
  message jsonb,
  headers jsonb,
  attempts integer,
  details text,
  status messages.message_status
)
  returns bigint language plpgsql
as $$
declare
  v_id bigint := nextval('messages.message_id_seq');
begin
  insert into messages.message_archive (
    id, created_at, available_at, lock_token, priority, attempts, status, queue, type, message,
    headers, details, key, subscriber, event_id
  )
  values (
    v_id, archive_event.created_at, archive_event.created_at, 0, 0, archive_event.attempts,
    archive_event.status, archive_event.stream, archive_event.type,
    coalesce(archive_event.message, 'null'), coalesce(archive_event.headers, '{}'),
    archive_event.details, archive_event.key, archive_event.subscriber, archive_event.event_id
  );
  return v_id;
end;
$$;

-- An event that is in an open batch already is left as it is.
create or replace function notifyq.deliver_again(ids bigint[])
  returns void language plpgsql
as $$
declare
  v_dead messages.message_archive;
  v_subscription messages.subscription;
begin
  for v_dead in
    select a.* from messages.message_archive as a where a.id = any (ids) order by a.id
  loop
    v_subscription := notifyq.find_subscription(v_dead.queue, v_dead.subscriber);
    insert into notifyq.event_retry as r (
      subscription, event_id, due_at, retries, reason, created_at, type, key, message, headers
    )
    values (
      v_subscription.id, v_dead.event_id, clock_timestamp(), v_dead.attempts, v_dead.details,
      v_dead.created_at, v_dead.type, v_dead.key, v_dead.message, v_dead.headers
    )
    on conflict on constraint event_retry_subscription_event_id_pk
    do update set batch = null, due_at = excluded.due_at, retries = excluded.retries,
      reason = excluded.reason
    where r.due_at is null;
  end loop;
  perform notifyq.notify_stream(notifyq.find_stream(d.queue))
  from (
    select distinct a.queue from messages.message_archive as a where a.id = any (ids)
  ) as d;
end;
$$;
