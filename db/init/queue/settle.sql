-- Settle: the gate to the archive.

-- The only gate to the archive, see archive_unlogged() for unlogged queues. One statement deletes
-- messages under their tokens and archives the deleted rows: a message is archived once, by the
-- holder of its lock, whatever else runs.
create or replace function notifyq.archive(
  ids bigint[], lock_tokens bigint[], statuses messages.message_status[],
  details text[] default null, results jsonb[] default null,
  state messages.message_state default 'locked', cancelled_by text default null
)
  returns setof bigint language plpgsql
  -- An index scan reads an array of keys in order. Rows are thus locked in id order: otherwise two
  -- settlers of the same messages could deadlock. A bitmap scan would lock them by page.
  set enable_bitmapscan = off set enable_seqscan = off
  -- The planner expects few deleted rows, and a nested loop would compare each with each.
  set enable_nestloop = off set jit = off set plan_cache_mode = force_generic_plan
as $$
declare
  v_archived integer;
  -- How all of them end, if they end alike: then there is nothing to look up for each message.
  v_status messages.message_status;
begin
  if details is null and results is null and array_remove(statuses, statuses[1]) = '{}' then
    v_status := statuses[1];
  end if;
  return query
  with ending as (
    -- A caller may list a message twice.
    select distinct on (u.id, u.lock_token) u.id, u.lock_token, u.status, u.details, u.result
    from unnest(
      archive.ids, archive.lock_tokens, archive.statuses, archive.details, archive.results
    ) as u (id, lock_token, status, details, result)
    where v_status is null
  ),
  gone as (
    delete from only messages.message as m
    where m.id = any (archive.ids)
      -- Not a join, as the planner would choose its order, and no plain condition on the state, as
      -- the planner would read the whole partial index of that state.
      and (
        (m.id, m.lock_token, m.state) in (
          select e.id, e.lock_token, archive.state
          from unnest(archive.ids, archive.lock_tokens) as e (id, lock_token)
        )
      ) is true
    returning m.*
  )
  insert into messages.message_archive as a (
    id, created_at, available_at, locked_at, lock_token, priority, attempts, status, queue, type,
    handled_by, dedup_key, message, headers, details, result, key, max_attempts, awaited,
    root_id, cancelled_by
  )
  select
    g.id, g.created_at, g.available_at, g.locked_at, g.lock_token, g.priority, g.attempts,
    coalesce(v_status, e.status), g.queue, g.type, g.locked_by,
    coalesce(g.dedup_key, g.given_up_key), g.message, g.headers, e.details, e.result, g.key,
    g.max_attempts, g.awaited, g.root_id, archive.cancelled_by
  from gone as g
  left join ending as e on e.id = g.id and e.lock_token = g.lock_token
  returning a.id;
  get diagnostics v_archived = row_count;
  if v_archived < cardinality(archive.ids) and exists (
    select from pg_inherits as i where i.inhparent = 'messages.message'::regclass
  ) then
    return query
    select v.id
    from notifyq.archive_unlogged(
      ids, lock_tokens, statuses, details, results, state, cancelled_by => cancelled_by
    ) as v (id);
  end if;
end;
$$;

-- Archive messages as rejected, in whatever state they are. The caller has locked their rows.
create or replace function notifyq.reject_all(
  given messages.message[], details text, cancelled_by text default null
)
  returns void language plpgsql
as $$
begin
  perform notifyq.archive(
    array_agg(m.id), array_agg(m.lock_token),
    array_agg('rejected'::messages.message_status), array_agg(reject_all.details),
    state => m.state, cancelled_by => reject_all.cancelled_by
  )
  from unnest(given) as m
  group by m.state;
end;
$$;
