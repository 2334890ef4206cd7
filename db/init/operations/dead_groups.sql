-- Groups: dead messages by the fingerprint of their error, and actions on all that match.
--
-- raises: NQ003 invalid argument

-- One slice of the dead messages, grouped. Each distinct line gets its fingerprint once: that costs
-- more than all the rest.
create or replace function notifyq.group_dead(
  c notifyq.search_conditions,
  upto timestamptz,
  upto_id bigint,
  slice integer,
  out _groups notifyq.dead_group[],
  out _scanned bigint,
  out _at timestamptz,
  out _id bigint
)
  language plpgsql stable
  -- Planned while the archive is empty, a sort of all dead rows is cheaper than one of equal times.
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  with scanned as materialized (
    select a.id, a.archived_at, a.queue, a.status, a.type, a.subscriber,
      left(a.details, 1000) as details
    from messages.message_archive as a
    where notifyq.is_dead(a.status, a.cancelled_by) and a.archived_at <= upto
      and (a.archived_at < upto or a.id < upto_id)
      -- Not `is null or`: that is no index condition.
      and a.archived_at >= coalesce(c.since_at, '-infinity')
    order by a.archived_at desc, a.id desc
    limit slice
  ), wanted as (
    select l.id, l.archived_at, l.queue, l.status, l.details
    from scanned as l
    where (c.queue is null or l.queue = c.queue)
      and (c.type is null or l.type = c.type)
      and (c.subscriber is null or l.subscriber = c.subscriber)
      and not exists (select from notifyq.redrive as r where r.archive_id = l.id offset 0)
  ), same as materialized (
    -- A fingerprint is the same for all digits but 0, which begins 0x1: other digits become 1.
    select translate(
        coalesce(split_part(ltrim(w.details, e' \t\r\n'), e'\n', 1), ''), '23456789', '11111111'
      ) as line, w.queue, w.status,
      count(*) as dead, min(w.archived_at) as first_at, max(w.archived_at) as last_at,
      (array_agg(w.id order by w.archived_at desc, w.id desc))[1] as last_id,
      (array_agg(w.details order by w.archived_at desc, w.id desc))[1] as sample
    from wanted as w
    group by 1, w.queue, w.status
  ), lines as materialized (
    select d.line, notifyq.error_fingerprint(d.line) as fingerprint
    from (select distinct s.line from same as s) as d
  )
  select (select count(*) from scanned), p.archived_at, p.id, array(
      select row(
        n.fingerprint, sum(s.dead)::bigint, min(s.first_at), max(s.last_at),
        (array_agg(s.last_id order by s.last_at desc, s.last_id desc))[1],
        array_agg(distinct s.queue), array_agg(distinct s.status),
        (array_agg(s.sample order by s.last_at desc, s.last_id desc))[1]
      )::notifyq.dead_group
      from same as s
      join lines as n on n.line = s.line
      group by n.fingerprint
    )
  into _scanned, _at, _id, _groups
  from (select l.archived_at, l.id from scanned as l order by l.archived_at, l.id limit 1) as p;
end;
$$;

-- The 2000 largest groups stay; the others become one.
create or replace function notifyq.merge_groups(
  groups notifyq.dead_group[],
  more notifyq.dead_group[]
)
  returns notifyq.dead_group[] language sql stable
  set jit = off
as $$
  with summed as (
    select g.fingerprint, sum(g.dead)::bigint as dead, min(g.first_at) as first_at,
      max(g.last_at) as last_at,
      (array_agg(g.last_id order by g.last_at desc, g.last_id desc))[1] as last_id,
      (array_agg(g.sample order by g.last_at desc, g.last_id desc))[1] as sample
    from (select u.* from unnest(groups) as u union all select v.* from unnest(more) as v) as g
    group by g.fingerprint
  ), ranked as (
    select s.*, case
        when row_number() over (order by s.dead desc, s.fingerprint) > 2000 then '(others)'
        else s.fingerprint end as name
    from summed as s
  ), lists as (
    select g.fingerprint, (array_agg(distinct q.queue))[1:20] as queues,
      array_agg(distinct t.status) as statuses
    from (select u.* from unnest(groups) as u union all select v.* from unnest(more) as v) as g
    cross join unnest(g.queues) as q (queue)
    cross join unnest(g.statuses) as t (status)
    group by g.fingerprint
  )
  select coalesce(
    array_agg(
      row(
        o.name, o.dead, o.first_at, o.last_at, o.last_id, o.queues, o.statuses, o.sample
      )::notifyq.dead_group
    ), '{}'
  )
  from (
    select r.name, sum(r.dead)::bigint as dead, min(r.first_at) as first_at,
      max(r.last_at) as last_at,
      case when r.name = '(others)' then null else min(r.last_id) end as last_id,
      case when r.name = '(others)' then '{}' else min(l.queues) end as queues,
      case when r.name = '(others)' then '{}' else min(l.statuses) end as statuses,
      case when r.name = '(others)' then null else min(r.sample) end as sample
    from ranked as r
    join lists as l on l.fingerprint = r.fingerprint
    group by r.name
  ) as o;
$$;

create or replace function notifyq.dead_groups(
  conditions jsonb default '{}',
  quantity integer default 50,
  before_at timestamptz default null,
  before_id bigint default null,
  budget interval default '1 second'
)
  returns setof notifyq.dead_group language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(conditions, array['dead']);
  v_end timestamptz;
  v_at timestamptz := least(
    coalesce(before_at, 'infinity'), coalesce(c.until_at - interval '1 microsecond', 'infinity')
  );
  v_id bigint := coalesce(before_id, 9223372036854775807);
  v_slice integer := 1000;
  v_step record;
  v_groups notifyq.dead_group[] := array[]::notifyq.dead_group[];
  v_last notifyq.dead_group;
begin
  perform notifyq.check_quantity(dead_groups.quantity, 2000);
  perform notifyq.check_duration('budget', dead_groups.budget);
  v_end := clock_timestamp() + dead_groups.budget;
  if coalesce(c.key, c.dedup_key, c.worker, c.error, c.fingerprint, c.payload::text) is not null
  then
    perform notifyq.raise_invalid(
      'groups can be restricted by queue, subscriber, type, since and until only',
      'search_archive() takes the fingerprint of a group, and more'
    );
  end if;
  v_last.dead := 0;
  loop
    v_step := notifyq.group_dead(c, v_at, v_id, v_slice);
    v_groups := notifyq.merge_groups(v_groups, v_step._groups);
    v_last.dead := v_last.dead + coalesce(v_step._scanned, 0);
    if coalesce(v_step._scanned, 0) < v_slice then
      v_last.first_at := null;
      v_last.last_id := null;
      exit;
    end if;
    v_last.first_at := v_step._at;
    v_last.last_id := v_step._id;
    exit when clock_timestamp() > v_end;
    v_at := v_step._at;
    v_id := v_step._id;
    v_slice := least(v_slice * 2, 20000);
  end loop;
  return query
  select g.*
  from unnest(v_groups) as g
  order by g.fingerprint = '(others)', g.dead desc, g.last_at desc, g.fingerprint
  limit dead_groups.quantity;
  return next v_last;
end;
$$;
comment on function notifyq.dead_groups is
  'Dead messages that were not published again, grouped by the fingerprint of their error, the '
  'largest groups first: how many, first and last time, the id of the last one (last_id) with its '
  'details (sample), queues and statuses. Conditions are queue, subscriber, type, since and until, '
  'as in search_archive(). It scans back from before_at and before_id (null: the latest) for about '
  'budget. The last row has no fingerprint: dead is the number of scanned rows, first_at and '
  'last_id are the position to continue from, null at the end. Raises NQ003.';

-- Actions on all matching dead messages run in steps, each a transaction of its own: one call for a
-- million messages would lock them all until its end, and report no progress.

-- The oldest first: messages keep their order when they are published again.
create or replace function notifyq.find_dead(
  conditions jsonb,
  quantity integer,
  position_at timestamptz,
  position_id bigint,
  budget interval,
  out _ids bigint[],
  out _at timestamptz,
  out _id bigint
)
  language plpgsql stable
  set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    conditions, array['dead', 'rejected', 'failed', 'lock_expired']
  );
begin
  perform notifyq.check_quantity(find_dead.quantity, 100000);
  if c.until_at is null then
    perform notifyq.raise_invalid(
      'the condition until is missing',
      'without it, a message that fails again would be published again and again'
    );
  end if;
  c.state := coalesce(c.state, 'dead');
  select f._ids, f._at, f._id
  into _ids, _at, _id
  from notifyq.search_archive_step(c, quantity, position_at, position_id, budget, true) as f;
  _ids := array(
    select u.id from unnest(_ids) as u (id)
    where not exists (select from notifyq.redrive as r where r.archive_id = u.id offset 0)
  );
end;
$$;

create or replace function notifyq.step_result(
  found bigint[], done bigint, at timestamptz, id bigint, ids bigint[] default '{}'
)
  returns messages.step_report language sql immutable
as $$
  select cardinality(found)::bigint, done, at, id, at is null, ids;
$$;

create or replace function notifyq.count_dead_matching(
  conditions jsonb,
  quantity integer default 10000,
  position_at timestamptz default null,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_found record := notifyq.find_dead(conditions, quantity, position_at, position_id, budget);
begin
  return notifyq.step_result(v_found._ids, 0, v_found._at, v_found._id);
end;
$$;
comment on function notifyq.count_dead_matching is
  'How many dead messages dead_retry_matching() or dead_delete_matching() would find with these '
  'conditions: up to quantity, within about budget. is_over: these are all; else continue from '
  'position_at and position_id. Raises NQ003.';

create or replace function messages.dead_retry_matching(
  conditions jsonb,
  quantity integer default 1000,
  position_at timestamptz default null,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_found record := notifyq.find_dead(conditions, quantity, position_at, position_id, budget);
  v_ids bigint[];
begin
  v_ids := array(
    select r.id from notifyq.retryable_message as r where r.id = any (v_found._ids) order by r.id
  );
  v_ids := notifyq.retry_accepted(v_ids);
  return notifyq.step_result(
    v_found._ids, cardinality(v_ids), v_found._at, v_found._id, v_ids
  );
end;
$$;
comment on function messages.dead_retry_matching is
  'One step of publishing dead messages again, each once as dead_retry() does: the oldest first, '
  'up to quantity that match the conditions, see search_archive(). The condition until is '
  'required. Returns how many were found, how many of them were published (done; the others lost '
  'their queue or subscription, were refused by their queue, which raises a WARNING, or another '
  'session was first) under which ids, and where the next step continues, unless is_over. Raises '
  'NQ003.';

create or replace function messages.dead_delete_matching(
  conditions jsonb,
  quantity integer default 1000,
  position_at timestamptz default null,
  position_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_found record := notifyq.find_dead(conditions, quantity, position_at, position_id, budget);
begin
  return notifyq.step_result(
    v_found._ids, messages.dead_delete(variadic v_found._ids), v_found._at, v_found._id
  );
end;
$$;
comment on function messages.dead_delete_matching is
  'One step of deleting dead messages permanently, as dead_delete() does: arguments and result as '
  'in dead_retry_matching(). Messages that were published again stay. Raises NQ003.';
