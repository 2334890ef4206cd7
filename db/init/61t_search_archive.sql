-- Search archive: finished messages, by what a person knows of them.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity, messages._conditions, messages._search_archive,
--          messages._short
-- raises:  NQ003 invalid argument

create or replace function messages.search_archive(
  conditions jsonb default '{}',
  quantity integer default 50,
  before_at timestamptz default null,
  before_id bigint default null,
  budget interval default '500 milliseconds'
)
  returns setof messages.found_message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
  set jit = off
as $$
declare
  v_found record;
  v_more messages.found_message;
begin
  perform messages._check_quantity(search_archive.quantity, 1000);
  v_found := messages._search_archive(
    messages._conditions(
      conditions, array['success', 'rejected', 'failed', 'lock_expired', 'dead']
    ),
    quantity, before_at, before_id, budget, false
  );
  return query
  select a.id, a.queue, a.status::text, a.created_at, a.available_at, a.locked_at,
    null::timestamptz, a.archived_at, a.priority, a.attempts, a.type, a.key, a.dedup_key,
    a.handled_by, a.subscriber, a.event_id,
    (select r.message_id from messages.redrive as r where r.archive_id = a.id),
    left(a.details, 1000), messages._short(a.message)
  from unnest(v_found._ids, v_found._times) with ordinality as u (id, archived_at, position)
  cross join lateral (
    select o.* from messages.message_archive as o
    where o.id = u.id and o.archived_at = u.archived_at
    -- Kept apart, else a plan made while the table was empty would read all of it for each.
    offset 0
  ) as a
  order by u.position;
  if v_found._at is not null then
    v_more.id := v_found._id;
    v_more.archived_at := v_found._at;
    v_more.state := 'more';
    return next v_more;
  end if;
end;
$$;
comment on function messages.search_archive(
  jsonb, integer, timestamptz, bigint, interval
) is
  'Finished messages for which all conditions hold, the latest first, from before_at and before_id '
  'back (null: the latest there is): a JSON object of state (success, rejected, failed, '
  'lock_expired, or dead: any of the last three that was not published again since), queue, '
  'subscriber, type, key, dedup_key, worker (how its name begins), error (a part of details), '
  'fingerprint, payload (a JSON path predicate), since and until (of archived_at). subscriber, '
  'error and fingerprint are of what did not succeed, unless state says success. It looks no '
  'longer than about budget: where there may be more, the last row has the state `more`, and '
  'archived_at and id are where to go on. Raises NQ003.';
