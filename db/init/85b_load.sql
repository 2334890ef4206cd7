-- Load: publish rows from outside all together, once for each name, however often it is tried.
--
-- Whoever loads begins, stages rows by COPY into load_row under numbers that begin_attempt() gives,
-- each task its own, and commits with those numbers that count. What a task has staged that failed,
-- was killed, or was run twice is in no commit; a commit that is repeated finds the name, and does
-- nothing.
--
-- owns:    nothing
-- writes:  messages.load, messages.load_attempt, messages.load_row
-- calls:   messages._invalid, messages._caller, messages._has_role, messages._check_events,
--          messages._queue, messages._check_staged, messages._publish_staged,
--          messages._check_access
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ020 stream
--          not found, NQ024 stream paused, NQ035 not begun, or by another role, NQ036 rows are
--          missing

create or replace function messages._check_load_owner(what text, name text, owner text)
  returns void
  language plpgsql
  stable
as $$
begin
  if messages._has_role(owner) or messages._has_role('notifyq_admin') then
    return;
  end if;
  raise exception using
    errcode = 'NQ035',
    message = format('%s %L belongs to role %I', what, name, owner),
    hint = 'take another name';
end;
$$;

-- An error where the caller cannot publish there.
create or replace function messages._check_target(queue text)
  returns void
  language plpgsql
as $$
declare
  v_stream messages.stream;
begin
  select s.* into v_stream from messages.stream as s where s.name = _check_target.queue;
  if found then
    perform messages._check_events(v_stream, '{}', null);
    return;
  end if;
  perform messages._queue(_check_target.queue);
  if exists (select from messages.queue_grant) then
    perform messages._check_access(_check_target.queue, 'publish into');
  end if;
end;
$$;

create or replace function messages.check_targets(queues text[])
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_target(u.queue) from unnest(queues) as u (queue);
end;
$$;
comment on function messages.check_targets(text[]) is
  'See to it that whoever calls could publish into each of these queues and streams now. Raises '
  'NQ001 for an unknown one, NQ007 for one without the right to, and NQ024 for a paused stream.';

create or replace function messages.begin_load(name text, epoch bigint default null)
  returns messages.load_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_load messages.load;
  v_is_done boolean;
begin
  if begin_load.name is null or octet_length(begin_load.name) not between 1 and 200 then
    perform messages._invalid('the name of a load must have 1 to 200 bytes');
  end if;
  insert into messages.load (name, owner) values (begin_load.name, messages._caller())
  on conflict on constraint load_name_pk do nothing;
  select l.* into v_load from messages.load as l where l.name = begin_load.name for update;
  perform messages._check_load_owner('load', begin_load.name, v_load.owner);
  v_is_done := v_load.committed_at is not null
    and (begin_load.epoch is null or v_load.epoch is null or begin_load.epoch <= v_load.epoch);
  update messages.load as l set used_at = clock_timestamp() where l.name = begin_load.name;
  return (
    v_load.name, v_load.epoch, not v_is_done, v_load.published, v_load.merged, v_load.committed_at
  )::messages.load_report;
end;
$$;
comment on function messages.begin_load(text, bigint) is
  'Begin a load, or go on with one: is_new is false where it was published already, and there is '
  'nothing to do. epoch numbers the parts of one that goes on, each larger than the one before. A '
  'name is remembered for 400 days after its last use. Raises NQ003 for an impossible name, and '
  'NQ035 for the load of another role.';

create or replace function messages.begin_attempt(load text)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  -- At random, so that nobody else finds it.
  v_id bigint := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
  v_owner text;
begin
  -- Not locked: all tasks begin at the same time.
  select l.owner into v_owner from messages.load as l where l.name = begin_attempt.load;
  if not found then
    raise exception using
      errcode = 'NQ035',
      message = format('load %L was not begun', begin_attempt.load),
      hint = 'messages.begin_load() begins it';
  end if;
  perform messages._check_load_owner('load', begin_attempt.load, v_owner);
  insert into messages.load_attempt (id, load) values (v_id, begin_attempt.load);
  return v_id;
end;
$$;
comment on function messages.begin_attempt(text) is
  'A number under which rows of this load may be copied into messages.load_row, at positions that '
  'rise. They are kept until the load is committed or dropped, or a day has passed in which '
  'nothing was begun for it. Raises NQ035 for a load that was not begun, or by another role.';

create or replace function messages.commit_load(
  name text,
  attempts bigint[],
  counts bigint[],
  epoch bigint default null
)
  returns messages.load_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_load messages.load;
  v_rows bigint;
  v_published bigint;
begin
  select l.* into v_load from messages.load as l where l.name = commit_load.name for update;
  if not found then
    raise exception using
      errcode = 'NQ035',
      message = format('load %L was not begun', commit_load.name),
      hint = 'messages.begin_load() begins it';
  end if;
  perform messages._check_load_owner('load', commit_load.name, v_load.owner);
  if v_load.committed_at is not null
    and (commit_load.epoch is null or v_load.epoch is null or commit_load.epoch <= v_load.epoch)
  then
    return (
      v_load.name, v_load.epoch, false, v_load.published, v_load.merged, v_load.committed_at
    )::messages.load_report;
  end if;
  v_rows := messages._check_staged(commit_load.name, commit_load.attempts, commit_load.counts);
  v_published := messages._publish_staged(commit_load.attempts);
  delete from messages.load_attempt as t where t.load = commit_load.name;
  update messages.load as l
  set used_at = clock_timestamp(),
    committed_at = clock_timestamp(),
    epoch = commit_load.epoch,
    published = l.published + v_published,
    merged = l.merged + v_rows - v_published
  where l.name = commit_load.name
  returning l.* into v_load;
  return (
    v_load.name, v_load.epoch, true, v_load.published, v_load.merged, v_load.committed_at
  )::messages.load_report;
end;
$$;
comment on function messages.commit_load(text, bigint[], bigint[], bigint) is
  'Publish what was staged under these numbers, in their order, all or nothing, with one bell for '
  'each queue; counts says how many rows each must have. A load that was published already, or '
  'whose epoch was, is left as it is, and is_new is false. published and merged add up over all '
  'epochs. Raises NQ035 for a load that was not begun, or by another role, NQ036 where rows are '
  'missing, as the server has crashed meanwhile, and what a publication raises: then nothing is '
  'published, and load_rejects() tells which rows are to blame.';

create or replace function messages.drop_attempts(load text, attempts bigint[])
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_dropped bigint;
begin
  perform messages._check_load_owner('load', l.name, l.owner)
  from messages.load as l
  where l.name = drop_attempts.load;
  delete from messages.load_attempt as t
  where t.load = drop_attempts.load
    and t.id = any (drop_attempts.attempts);
  get diagnostics v_dropped = row_count;
  return v_dropped;
end;
$$;
comment on function messages.drop_attempts(text, bigint[]) is
  'Give up attempts of a load, whose rows the upkeep then removes; return how many there were. '
  'Raises NQ035 for the load of another role.';
