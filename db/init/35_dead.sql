-- Dead: what to do about messages that did not succeed.
--
-- owns:    messages.dead_message
-- writes:  messages.message, messages.redrive, messages.message_archive and
--          messages.attempt (dead_delete)
-- calls:   messages._check_quantity, messages._dead_of, messages._redirect,
--          messages._deliver_again, messages._invalid
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ020 stream not found, NQ021
--          subscription not found

create or replace view messages.dead_message as
  select a.*
  from messages.message_archive as a
  where a.status <> 'success';
comment on view messages.dead_message is
  'Archived messages that did not succeed, also those that were published again since.';

create or replace function messages.dead_list(
  queue text default null,
  quantity integer default 100,
  skip integer default 0,
  subscriber text default null
)
  returns setof messages.dead_message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  -- The dead have an index of their own; by that of queues all that succeeded would be read.
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  perform messages._check_quantity(dead_list.quantity, 10000);
  if dead_list.skip < 0 then
    perform messages._invalid(format('skip must not be negative: %s', dead_list.skip));
  end if;
  if dead_list.queue is not null then
    return query
    select d.*
    from messages._dead_of(
      queue, null, subscriber, '-infinity', false, dead_list.quantity, dead_list.skip
    ) as d;
    return;
  end if;
  return query
  select d.*
  from messages.dead_message as d
  where (dead_list.subscriber is null or d.subscriber = dead_list.subscriber)
    -- `offset 0`: one look for each, however few had been published again for the plan.
    and not exists (select from messages.redrive as r where r.archive_id = d.id offset 0)
  order by d.archived_at desc, d.id desc
  limit dead_list.quantity
  offset dead_list.skip;
end;
$$;
comment on function messages.dead_list(text, integer, integer, text) is
  'Dead messages and events that still need attention, the latest first: those published or '
  'delivered again are left out. Of one queue or stream (null: all), of one subscriber (null: '
  'all, and messages of queues).';

create or replace function messages.dead_count(
  queue text default null,
  subscriber text default null
)
  returns bigint
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  -- The dead have an index of their own; by that of queues all that succeeded would be read.
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  -- All that were published again are read once, not looked for one by one.
  set enable_nestloop = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  -- An index has all that is asked for.
  if dead_count.queue is null then
    return (
      select count(*)
      from messages.message_archive as k
      where k.status <> 'success'
        and (dead_count.subscriber is null or k.subscriber = dead_count.subscriber)
        and not exists (select from messages.redrive as r where r.archive_id = k.id)
    );
  end if;
  return (
    select count(*)
    from messages.message_archive as k
    where k.status <> 'success'
      and k.queue = dead_count.queue
      and (dead_count.subscriber is null or k.subscriber = dead_count.subscriber)
      and not exists (select from messages.redrive as r where r.archive_id = k.id offset 0)
  );
end;
$$;
comment on function messages.dead_count(text, text) is
  'How many dead messages and events still need attention, as dead_list() would list them.';

create or replace function messages.dead_retry(variadic ids bigint[])
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_dead bigint[];
  v_again bigint[];
  v_events bigint[];
begin
  -- The number of the transaction comes before its ids, see 24_look.sql.
  perform pg_current_xact_id();
  with dead as materialized (
    select o.*, coalesce(o.event_id, nextval('messages.message_id_seq')) as message_id
    from (
      select d.id, d.queue, d.type, d.priority, d.message, d.headers, d.key, d.max_attempts,
        d.subscriber, d.event_id
      from messages.dead_message as d
      where d.id = any (dead_retry.ids)
        -- Events that were skipped as a whole are in no row that could be handed out.
        and (d.subscriber is null or d.event_id is not null)
        -- `offset 0`: one look for each, however few had been published again for the plan.
        and not exists (select from messages.redrive as r where r.archive_id = d.id offset 0)
      order by d.id
    ) as o
  ),
  -- The primary key lets one of two sessions publish: the other waits for its commit, then skips
  -- the row. In id order, so that two of them with common ids never wait for each other.
  recorded as (
    insert into messages.redrive as r (archive_id, message_id)
    select d.id, d.message_id from dead as d order by d.id
    on conflict on constraint redrive_archive_id_pk do nothing
    returning r.archive_id
  ),
  chosen as materialized (
    select d.*
    from dead as d
    -- Not a join: they are thought to be few, and each would be compared with each.
    where (d.id in (select r.archive_id from recorded as r)) is true
  ),
  -- Without the key: a live message may have it by now, and this one must be published.
  published as (
    insert into messages.message as m
      (id, queue, type, priority, message, headers, key, max_attempts)
      overriding system value
    select
      c.message_id, c.queue, c.type, c.priority, c.message, c.headers, c.key, c.max_attempts
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
    perform messages._deliver_again(v_events);
  end if;
  if exists (select from messages.dependency) then
    perform messages._redirect(v_dead, v_again);
  end if;
  return query select u.id from unnest(v_again) as u (id);
end;
$$;
comment on function messages.dead_retry(bigint[]) is
  'Publish dead messages again and return the new ids: same queue, message, headers, type, key and '
  'priority, due at once, with all attempts and without the dedup_key. Each is published again '
  'once; ids that were, or are not of dead messages, are left out. What is held for one of them '
  'waits for the new message; and one that ran after others waits for those of them that are '
  'published again as well. A dead event is handed out again under its own id, to its subscriber '
  'alone. Raises NQ001 where a queue is gone, NQ020 or NQ021 where a stream or a subscription is; '
  'then nothing is published.';

create or replace function messages.dead_delete(variadic ids bigint[])
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_deleted bigint;
begin
  with deleted as (
    delete from messages.message_archive as a
    where a.id = any (dead_delete.ids)
      and a.status <> 'success'
    returning a.id
  ),
  forgotten as (
    delete from messages.redrive as r
    using deleted as d
    where r.archive_id = d.id
  ),
  erased as (
    delete from messages.attempt as t
    where t.message_id = any (array(select d.id from deleted as d))
  )
  select count(*) into v_deleted from deleted;
  return v_deleted;
end;
$$;
comment on function messages.dead_delete(bigint[]) is
  'Delete dead messages from the archive for good, with the history of their attempts; return how '
  'many were.';
