-- Replay: publish archived messages again.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ020 stream
-- not found, NQ035 not begun, or by another role, NQ036 rows are missing, NQ037 closed, or into
-- another target, and the errors of publish()

create or replace function notifyq.begin_replay(name text, target text default null)
  returns notifyq.replay_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_replay notifyq.replay;
begin
  perform notifyq.check_length('replay', begin_replay.name, 190);
  perform notifyq.check_target(begin_replay.target) where begin_replay.target is not null;
  insert into notifyq.replay (name, owner, target)
  values (begin_replay.name, notifyq.calling_role(), begin_replay.target)
  on conflict on constraint replay_name_uq do nothing;
  select p.* into v_replay from notifyq.replay as p where p.name = begin_replay.name for update;
  perform notifyq.check_load_owner('replay', v_replay.name, v_replay.owner);
  if v_replay.is_closed or v_replay.target is distinct from begin_replay.target then
    raise exception using
      errcode = 'NQ037',
      message = case
        when v_replay.is_closed
        then format('replay %L is closed: it was last used at %s', v_replay.name, v_replay.used_at)
        else format(
          'replay %L publishes into %s', v_replay.name,
          coalesce(quote_literal(v_replay.target), 'the queues of the messages')
        )
      end,
      hint = 'use another name';
  end if;
  update notifyq.replay as p set used_at = clock_timestamp() where p.id = v_replay.id;
  -- Its rows are staged as those of a load.
  perform notifyq.begin_load('replay ' || v_replay.name);
  return (0, 0, v_replay.published, v_replay.due_at, null, null, 0, null)::notifyq.replay_report;
end;
$$;
comment on function notifyq.begin_replay(text, text) is
  'Begin a replay, or continue one, into a queue or stream; null: each message into its own '
  'queue. It remembers what it has published until 30 days after its last use; then it is closed. '
  'Raises NQ001 for an unknown target, NQ035 for the replay of another role, and NQ037 for one '
  'that is closed or has another target.';

-- Publish the staged rows that this replay has not published yet.
create or replace function notifyq.replay_staged(
  name text, attempt bigint, rate double precision, redrive boolean
)
  returns notifyq.replay_report language plpgsql
  set enable_seqscan = off set enable_nestloop = on set jit = off
as $$
#variable_conflict use_column
declare
  v_replay notifyq.replay;
  v_rows bigint := (
    select count(*) from notifyq.load_row as r where r.attempt = replay_staged.attempt
  );
  v_before bigint;
  v_due timestamptz;
  v_published bigint;
  v_chosen bigint[];
  v_refused bigint := 0::bigint;
  v_reason text;
begin
  select p.* into v_replay
  from notifyq.replay as p
  where p.name = replay_staged.name
  for update;
  perform notifyq.check_load_owner('replay', replay_staged.name, v_replay.owner);
  if rate not between 1e-9 and 1e9 then
    perform notifyq.raise_invalid(
      format('rate must be between 1e-9 and 1e9 a second, not %s', rate)
    );
  end if;
  if redrive and v_replay.target is not null then
    perform notifyq.raise_invalid(
      format('replay %L publishes into %L', v_replay.name, v_replay.target),
      'redrive works without a target, into the queues of the messages'
    );
  end if;
  if v_replay.target is not null and exists (
    select from notifyq.load_row as r
    where r.attempt = replay_staged.attempt
      and replace(r.message, ' ', '') like '{"$encrypted":{%'
  ) then
    perform notifyq.raise_invalid(
      'encrypted messages can be replayed into their own queue only',
      'begin the replay without a target'
    );
  end if;
  if redrive then
    -- As in redrive(): no other session may publish one of these again meanwhile.
    lock table notifyq.redrive in share row exclusive mode;
    delete from notifyq.load_row as r
    using notifyq.redrive as d
    where r.attempt = replay_staged.attempt
      and d.archive_id = r.origin_id;
  end if;
  with fresh as (
    insert into notifyq.replayed (replay, archive_id)
    select v_replay.id, r.origin_id
    from notifyq.load_row as r
    where r.attempt = replay_staged.attempt
    group by r.origin_id
    order by r.origin_id
    on conflict on constraint replayed_replay_archive_id_pk do nothing
    returning archive_id
  ),
  chosen as (
    select distinct on (r.origin_id) r.position
    from notifyq.load_row as r
    join fresh as f on f.archive_id = r.origin_id
    where r.attempt = replay_staged.attempt
    order by r.origin_id, r.position
  )
  delete from notifyq.load_row as r
  where r.attempt = replay_staged.attempt
    and r.position not in (select c.position from chosen as c);
  if rate is not null then
    -- Continue after the last step, so that all steps together keep the rate.
    v_due := greatest(v_replay.due_at, clock_timestamp());
    with scheduled as (
      update notifyq.load_row as r
      set available_at = least(
        v_due + make_interval(secs => least(o.number / rate, 31557600000)),
        '9999-12-31 00:00:00+00'
      )
      from (
        select s.position, row_number() over (order by s.position) as number
        from notifyq.load_row as s
        where s.attempt = replay_staged.attempt
      ) as o
      where r.attempt = replay_staged.attempt
        and r.position = o.position
      returning r.available_at
    )
    select coalesce(max(s.available_at), v_replay.due_at) into v_due from scheduled as s;
  end if;
  v_before := nextval('messages.message_id_seq');
  begin
    v_published := notifyq.publish_staged(array[attempt]);
  exception
    when others then
      -- A queue that was dropped since concerns its messages only.
      if not (notifyq.is_refusal(sqlstate) or sqlstate = 'NQ001' and v_replay.target is null) then
        raise;
      end if;
      v_chosen := array(
        select r.origin_id from notifyq.load_row as r where r.attempt = replay_staged.attempt
      );
      select count(*), (array_agg(j.reason order by j.position))[1] into v_refused, v_reason
      from notifyq.reject_staged(attempt, 2147483647) as j;
      -- Those were not published: a later run tries them again.
      delete from notifyq.replayed as d
      where d.replay = v_replay.id
        and d.archive_id = any (v_chosen)
        and d.archive_id not in (
          select r.origin_id from notifyq.load_row as r where r.attempt = replay_staged.attempt
        );
      v_published := notifyq.publish_staged(array[attempt]);
  end;
  if redrive then
    insert into notifyq.redrive (archive_id, message_id)
    select (m.headers ->> 'replay_of')::bigint, m.id
    from messages.message as m
    where m.id > v_before
      and m.headers ->> 'replay' = v_replay.name
      and m.headers ->> 'replay_of' in (
        select r.origin_id::text from notifyq.load_row as r
        where r.attempt = replay_staged.attempt
      )
    order by 1
    on conflict on constraint redrive_archive_id_pk do nothing;
  end if;
  delete from notifyq.load_attempt as t where t.id = attempt;
  update notifyq.replay as p
  set used_at = clock_timestamp(),
    due_at = coalesce(v_due, p.due_at),
    published = p.published + v_published
  where p.id = v_replay.id
  returning p.* into v_replay;
  return (
    v_published, v_rows - v_published - v_refused, v_replay.published, v_replay.due_at, null, null,
    v_refused, v_reason
  )::notifyq.replay_report;
end;
$$;

create or replace function notifyq.replay_rows(
  name text,
  attempt bigint,
  count bigint,
  rate double precision default null,
  redrive boolean default false
)
  returns notifyq.replay_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_staged('replay ' || name, array[attempt], array[count]);
  return notifyq.replay_staged(name, attempt, rate, redrive);
end;
$$;
comment on function notifyq.replay_rows(text, bigint, bigint, double precision, boolean) is
  'Publish the rows staged under this number as a load named ''replay '' and the name, each with '
  'the id of an archived message as origin_id, without those that the replay has published '
  'already. rate: so many are due per second, after the last that it has published; null: all at '
  'once. redrive: leave out messages that were redriven since, and count the others as redriven. '
  'Messages that their queue or stream refuses are not published; a later call tries them again. '
  'Raises NQ036 if there are not count rows, NQ035 and NQ037 as begin_replay() does, and the '
  'errors of publish(); then nothing is published.';

create or replace function notifyq.replay_archive(
  name text,
  quantity integer default 10000,
  after_id bigint default 0,
  queue text default null,
  statuses messages.message_status[] default null,
  type text default null,
  since timestamptz default null,
  until timestamptz default null,
  match jsonb default null,
  rate double precision default null,
  redrive boolean default false,
  dead boolean default false
)
  returns notifyq.replay_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
#variable_conflict use_column
declare
  v_attempt bigint := notifyq.begin_attempt('replay ' || replay_archive.name);
  v_target text := (select p.target from notifyq.replay as p where p.name = replay_archive.name);
  v_last bigint;
  v_report notifyq.replay_report;
begin
  perform notifyq.check_quantity(replay_archive.quantity, 100000);
  with staged as (
    insert into notifyq.load_row as r (
      attempt, position, origin_id, queue, message, type, key, priority, max_attempts, headers
    )
    select v_attempt, a.id, a.id, coalesce(v_target, a.queue), a.message::text, a.type, a.key,
      case when not t.is_stream then a.priority end,
      case when not t.is_stream then a.max_attempts end,
      (a.headers || jsonb_build_object('replay', replay_archive.name, 'replay_of', a.id))::text
    from messages.message_archive as a
    cross join (
      select exists (select from messages.stream as s where s.name = v_target) as is_stream
    ) as t
    where a.id > replay_archive.after_id
      and (replay_archive.queue is null or a.queue = replay_archive.queue)
      and (replay_archive.statuses is null or a.status = any (replay_archive.statuses))
      and (not replay_archive.dead or notifyq.is_dead(a.status, a.cancelled_by))
      and (replay_archive.type is null or a.type = replay_archive.type)
      and (replay_archive.since is null or a.archived_at >= replay_archive.since)
      and (replay_archive.until is null or a.archived_at < replay_archive.until)
      and (replay_archive.match is null or a.message @> replay_archive.match)
      -- A dead event belongs to one subscriber: dead_retry() delivers it to that one again.
      and (a.subscriber is null or v_target is not null and a.event_id is not null)
    order by a.id
    limit replay_archive.quantity
    returning r.position
  )
  select max(s.position) into v_last from staged as s;
  v_report := notifyq.replay_staged(
    replay_archive.name, v_attempt, replay_archive.rate, replay_archive.redrive
  );
  v_report.last_id := v_last;
  return v_report;
end;
$$;
comment on function notifyq.replay_archive is
  'Publish up to quantity archived messages that a replay has not published yet, in the order of '
  'their ids from after_id on: of a queue, of some statuses, dead ones only, of a type, archived '
  'since and before until, whose message contains match. Headers replay and replay_of record '
  'their origin. last_id is where the next call continues; null: there are no more. rate and '
  'redrive are those of replay_rows(). Dead events go into another queue or stream only. Call '
  'begin_replay() first; raises NQ035 and NQ037 as that does.';

create or replace function notifyq.replay_counts(
  name text,
  queue text default null,
  statuses messages.message_status[] default null,
  type text default null,
  since timestamptz default null,
  until timestamptz default null,
  match jsonb default null,
  redrive boolean default false,
  dead boolean default false
)
  returns setof notifyq.replay_count language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  v_replay notifyq.replay;
begin
  select p.* into v_replay from notifyq.replay as p where p.name = replay_counts.name;
  return query
  select a.queue, a.type, a.status, a.archived_at::date, count(*),
    count(*) filter (
      where exists (
        select from notifyq.replayed as d
        where d.replay = v_replay.id and d.archive_id = a.id
      )
      or replay_counts.redrive and exists (
        select from notifyq.redrive as r where r.archive_id = a.id
      )
    )
  from messages.message_archive as a
  where (replay_counts.queue is null or a.queue = replay_counts.queue)
    and (replay_counts.statuses is null or a.status = any (replay_counts.statuses))
    and (not replay_counts.dead or notifyq.is_dead(a.status, a.cancelled_by))
    and (replay_counts.type is null or a.type = replay_counts.type)
    and (replay_counts.since is null or a.archived_at >= replay_counts.since)
    and (replay_counts.until is null or a.archived_at < replay_counts.until)
    and (replay_counts.match is null or a.message @> replay_counts.match)
    and a.subscriber is null
  group by 1, 2, 3, 4
  order by 4, 1, 2, 3;
end;
$$;
comment on function notifyq.replay_counts is
  'What replay_archive() would publish under these conditions, by queue, type, status and day '
  '(UTC): messages, and how many of them were published already (known).';

-- Delete old names, and which messages a closed replay has published.
create or replace function notifyq.forget_loads(quantity bigint)
  returns void language plpgsql
  set jit = off
as $$
declare
  v_year timestamptz := clock_timestamp() - interval '400 days';
begin
  delete from notifyq.load as l where l.used_at < v_year;
  update notifyq.replay as p
  set is_closed = true
  where p.used_at < clock_timestamp() - interval '30 days'
    and not p.is_closed;
  delete from notifyq.replayed as d
  where d.ctid = any (array(
    select o.ctid
    from notifyq.replayed as o
    join notifyq.replay as p on p.id = o.replay and p.is_closed
    limit forget_loads.quantity
  ));
  delete from notifyq.replay as p
  where p.used_at < v_year
    and not exists (select from notifyq.replayed as d where d.replay = p.id);
end;
$$;
