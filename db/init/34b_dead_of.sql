-- Dead of: the dead messages of one queue, the latest first.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

create or replace function messages._dead_of(
  queue text,
  status messages.message_status,
  subscriber text,
  since timestamptz,
  is_redriven boolean,
  quantity integer,
  skip integer
)
  returns setof messages.message_archive
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  -- Only the index of this queue has its dead in their order: that of all would be read through.
  set enable_incremental_sort = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  -- The rows are read last: an index has all that decides which ones they are.
  return query
  select a.*
  from (
    select k.id, k.archived_at
    from messages.message_archive as k
    where k.status <> 'success'
      and k.queue = _dead_of.queue
      and k.archived_at >= _dead_of.since
      and (_dead_of.status is null or k.status = _dead_of.status)
      and (_dead_of.subscriber is null or k.subscriber = _dead_of.subscriber)
      -- `offset 0`: one look for each. Joined by a plan from when few were published again, all of
      -- these would be compared with each.
      and (
        is_redriven
        or not exists (select from messages.redrive as r where r.archive_id = k.id offset 0)
      )
    order by k.archived_at desc, k.id desc
    limit _dead_of.quantity
    offset _dead_of.skip
  ) as f
  join messages.message_archive as a on a.id = f.id and a.archived_at = f.archived_at
  order by f.archived_at desc, f.id desc;
end;
$$;
