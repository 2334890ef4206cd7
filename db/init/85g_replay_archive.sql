-- Replay the archive: what of it is published again, without a lake.
--
-- owns:    nothing
-- writes:  messages.load, messages.load_attempt, messages.load_row, messages.replay,
--          messages.replayed
-- calls:   messages._check_quantity, messages._replay_staged, messages.begin_attempt
-- raises:  NQ003 invalid argument, NQ035 not begun, or by another role, NQ037 closed, and what a
--          publication raises

create or replace function messages.replay_archive(
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
  redrive boolean default false
)
  returns messages.replay_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set enable_sort = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_attempt bigint := messages.begin_attempt('replay ' || replay_archive.name);
  v_target text := (select p.target from messages.replay as p where p.name = replay_archive.name);
  v_last bigint;
  v_report messages.replay_report;
begin
  perform messages._check_quantity(replay_archive.quantity, 100000);
  with staged as (
    insert into messages.load_row as r (
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
      and (replay_archive.type is null or a.type = replay_archive.type)
      and (replay_archive.since is null or a.archived_at >= replay_archive.since)
      and (replay_archive.until is null or a.archived_at < replay_archive.until)
      and (replay_archive.match is null or a.message @> replay_archive.match)
      -- A dead event was of one subscriber: dead_retry() gives it to that one again.
      and (a.subscriber is null or v_target is not null and a.event_id is not null)
    order by a.id
    limit replay_archive.quantity
    returning r.position
  )
  select max(s.position) into v_last from staged as s;
  v_report := messages._replay_staged(
    replay_archive.name, v_attempt, replay_archive.rate, replay_archive.redrive
  );
  v_report.last_id := v_last;
  return v_report;
end;
$$;
comment on function messages.replay_archive(
  text, integer, bigint, text, messages.message_status[], text, timestamptz, timestamptz, jsonb,
  double precision, boolean
) is
  'Publish up to quantity archived messages again that a replay has not yet, in the order of '
  'their ids from after_id on, and only those of a queue, of some statuses, of a type, archived '
  'since and before until, whose message contains match. Headers replay and replay_of say where '
  'they come from. last_id is where the next call goes on; null: there is nothing more. rate '
  'and redrive are those of replay_rows(). Dead events go into another queue or stream only. '
  'Raises NQ035 and NQ037 as begin_replay() does, which comes first.';

create or replace function messages.replay_counts(
  name text,
  queue text default null,
  statuses messages.message_status[] default null,
  type text default null,
  since timestamptz default null,
  until timestamptz default null,
  match jsonb default null,
  redrive boolean default false
)
  returns setof messages.replay_count
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  v_replay messages.replay;
begin
  select p.* into v_replay from messages.replay as p where p.name = replay_counts.name;
  return query
  select a.queue, a.type, a.status, a.archived_at::date, count(*),
    count(*) filter (
      where exists (
        select from messages.replayed as d
        where d.replay = v_replay.id and d.archive_id = a.id
      )
      or replay_counts.redrive and exists (
        select from messages.redrive as r where r.archive_id = a.id
      )
    )
  from messages.message_archive as a
  where (replay_counts.queue is null or a.queue = replay_counts.queue)
    and (replay_counts.statuses is null or a.status = any (replay_counts.statuses))
    and (replay_counts.type is null or a.type = replay_counts.type)
    and (replay_counts.since is null or a.archived_at >= replay_counts.since)
    and (replay_counts.until is null or a.archived_at < replay_counts.until)
    and (replay_counts.match is null or a.message @> replay_counts.match)
    and a.subscriber is null
  group by 1, 2, 3, 4
  order by 4, 1, 2, 3;
end;
$$;
comment on function messages.replay_counts(
  text, text, messages.message_status[], text, timestamptz, timestamptz, jsonb, boolean
) is
  'What replay_archive() would publish under these conditions, by queue, type, status and day (of '
  'UTC): messages, and how many of these are known, as they were published already.';

-- Names that nobody has used for long, and which messages a replay has published.
create or replace function messages._forget_loads(quantity bigint)
  returns void
  language plpgsql
  set jit = off
as $$
declare
  v_year timestamptz := clock_timestamp() - interval '400 days';
begin
  delete from messages.load as l where l.used_at < v_year;
  update messages.replay as p
  set is_closed = true
  where p.used_at < clock_timestamp() - interval '30 days'
    and not p.is_closed;
  delete from messages.replayed as d
  where (d.replay, d.archive_id) in (
    select o.replay, o.archive_id
    from messages.replayed as o
    join messages.replay as p on p.id = o.replay and p.is_closed
    limit _forget_loads.quantity
  );
  delete from messages.replay as p
  where p.used_at < v_year
    and not exists (select from messages.replayed as d where d.replay = p.id);
end;
$$;
