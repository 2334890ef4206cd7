-- Groups: dead messages by the cause of their failure.
--
-- raises: NQ003 invalid argument

-- Of texts that are the same the fingerprint is made once: it costs more than all the rest.
create or replace function notifyq.group_dead(
  c notifyq.search_conditions,
  upto timestamptz,
  upto_id bigint,
  slice integer,
  out _groups notifyq.dead_group[],
  out _looked bigint,
  out _at timestamptz,
  out _id bigint
)
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
begin
  with looked as materialized (
    select a.id, a.archived_at, a.queue, a.status, a.type, a.subscriber, left(a.details, 1000) as
      details
    from messages.message_archive as a
    where a.status <> 'success' and a.archived_at <= upto
      and (a.archived_at < upto or a.id < upto_id)
      and (c.since_at is null or a.archived_at >= c.since_at)
    order by a.archived_at desc, a.id desc
    limit slice
  ), wanted as (
    select l.id, l.archived_at, l.queue, l.status, l.details
    from looked as l
    where (c.queue is null or l.queue = c.queue)
      and (c.type is null or l.type = c.type)
      and (c.subscriber is null or l.subscriber = c.subscriber)
      and not exists (select from notifyq.redrive as r where r.archive_id = l.id)
  ), same as materialized (
    -- A fingerprint tells no digits apart but 0, for 0x1: so texts that differ in them are one.
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
  select (select count(*) from looked), p.archived_at, p.id, array(
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
  into _looked, _at, _id, _groups
  from (select l.archived_at, l.id from looked as l order by l.archived_at, l.id limit 1) as p;
end;
$$;

-- What nobody would read to its end is counted as one.
create or replace function notifyq.merge_groups(
  groups notifyq.dead_group[],
  more notifyq.dead_group[]
)
  returns notifyq.dead_group[]
  language sql
  stable
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
  returns setof notifyq.dead_group
  language plpgsql
  stable
  security definer
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
      'groups go by queue, subscriber, type, since and until',
      'to look into one of them, search_archive() takes its fingerprint and more'
    );
  end if;
  v_last.dead := 0;
  loop
    v_step := notifyq.group_dead(c, v_at, v_id, v_slice);
    v_groups := notifyq.merge_groups(v_groups, v_step._groups);
    v_last.dead := v_last.dead + coalesce(v_step._looked, 0);
    if coalesce(v_step._looked, 0) < v_slice then
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
comment on function notifyq.dead_groups(
  jsonb, integer, timestamptz, bigint, interval
) is
  'Dead messages that were not published again, grouped by the fingerprints of their errors, the '
  'largest groups first: how many, when first and last, the id of the last one (last_id) with its '
  'details (sample), in which queues and how they ended. Conditions are queue, subscriber, type, '
  'since and until, as in search_archive(). It goes back from before_at and before_id (null: the '
  'latest) for about budget. The last row has no fingerprint: dead is how many rows were looked '
  'at, first_at and last_id are where to go on, null where nothing is left. Raises NQ003.';

-- Dead steps: count, publish again or delete all dead messages for which conditions hold.
--
-- By steps, each a transaction of its own: a call that publishes a million messages would hold all
-- of them until its end, and whoever waits for it would not know how far it is.

-- From the oldest up, so that messages keep their order when they are published again.
create or replace function notifyq.find_dead(
  conditions jsonb,
  quantity integer,
  place_at timestamptz,
  place_id bigint,
  budget interval,
  out _ids bigint[],
  out _at timestamptz,
  out _id bigint
)
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  c notifyq.search_conditions := notifyq.parse_conditions(
    conditions, array['dead', 'rejected', 'failed', 'lock_expired']
  );
begin
  perform notifyq.check_quantity(find_dead.quantity, 100000);
  if c.until_at is null then
    perform notifyq.raise_invalid(
      'say until when: what dies from then on is left out',
      'else a message that dies again would be published again and again'
    );
  end if;
  c.state := coalesce(c.state, 'dead');
  select f._ids, f._at, f._id
  into _ids, _at, _id
  from notifyq.search_archive_step(c, quantity, place_at, place_id, budget, true) as f;
  _ids := array(
    select u.id from unnest(_ids) as u (id)
    where not exists (select from notifyq.redrive as r where r.archive_id = u.id)
  );
end;
$$;

create or replace function notifyq.step_result(
  found bigint[], done bigint, at timestamptz, id bigint
)
  returns messages.step_report
  language sql
  immutable
as $$
  select cardinality(found)::bigint, done, at, id, at is null;
$$;

create or replace function notifyq.count_dead_matching(
  conditions jsonb,
  quantity integer default 10000,
  place_at timestamptz default null,
  place_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return (
    select notifyq.step_result(f._ids, 0, f._at, f._id)
    from notifyq.find_dead(conditions, quantity, place_at, place_id, budget) as f
  );
end;
$$;
comment on function notifyq.count_dead_matching(
  jsonb, integer, timestamptz, bigint, interval
) is
  'How many dead messages dead_retry_matching() or dead_delete_matching() would find with these '
  'conditions: up to quantity, within about budget. is_over: these are all; else place_at and '
  'place_id are where to go on. Raises NQ003.';

create or replace function messages.dead_retry_matching(
  conditions jsonb,
  quantity integer default 1000,
  place_at timestamptz default null,
  place_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_found bigint[];
  v_at timestamptz;
  v_id bigint;
  v_ids bigint[];
begin
  select f._ids, f._at, f._id
  into v_found, v_at, v_id
  from notifyq.find_dead(conditions, quantity, place_at, place_id, budget) as f;
  -- What was dropped is passed over, else its messages would stop all the others.
  v_ids := array(
    select a.id
    from messages.message_archive as a
    where a.id = any (v_found)
      and (
        a.subscriber is null
        and exists (select from messages.queue as q where q.name = a.queue)
        or a.event_id is not null
        and exists (
          select from messages.stream as s
          join messages.subscription as u on u.stream = s.id
          where s.name = a.queue and u.name = a.subscriber
        )
      )
    order by a.id
  );
  return notifyq.step_result(
    v_found, (select count(*) from messages.dead_retry(variadic v_ids)), v_at, v_id
  );
end;
$$;
comment on function messages.dead_retry_matching(
  jsonb, integer, timestamptz, bigint, interval
) is
  'One step of publishing dead messages again, as dead_retry() does and each once: the oldest '
  'first, up to quantity of those for which the conditions hold, see search_archive(); until must '
  'be among them, so that what dies again is left. Returns how many were found, how many of them '
  'were published (done; the others have lost their queue or subscription, or somebody else was '
  'first), and where the next step goes on, unless it is_over. Raises NQ003.';

create or replace function messages.dead_delete_matching(
  conditions jsonb,
  quantity integer default 1000,
  place_at timestamptz default null,
  place_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_found bigint[];
  v_at timestamptz;
  v_id bigint;
begin
  select f._ids, f._at, f._id
  into v_found, v_at, v_id
  from notifyq.find_dead(conditions, quantity, place_at, place_id, budget) as f;
  return notifyq.step_result(v_found, messages.dead_delete(variadic v_found), v_at, v_id);
end;
$$;
comment on function messages.dead_delete_matching(
  jsonb, integer, timestamptz, bigint, interval
) is
  'One step of deleting dead messages for good, as dead_delete() does: arguments and result as of '
  'dead_retry_matching(). What was published again is left. Raises NQ003.';
