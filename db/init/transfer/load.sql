-- Load: publish many rows, all or none.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ020 stream
-- not found, NQ024 stream paused, NQ035 not begun, or by another role, NQ036 rows are missing

-- A load is begun, its rows are staged by COPY into load_row under numbers of begin_attempt(), one
-- for each task, and it is committed with the numbers that count. Rows of tasks that failed, were
-- killed or ran twice are in no commit; a repeated commit finds the name and does nothing.

create or replace function notifyq.check_load_owner(what text, name text, owner text)
  returns void language plpgsql stable
as $$
begin
  if owner is null then
    raise exception using
      errcode = 'NQ035',
      message = format('%s %L was not begun', what, name),
      hint = format('call notifyq.begin_%s() first', what);
  elsif not (notifyq.has_role(owner) or notifyq.has_role('notifyq_admin')) then
    raise exception using
      errcode = 'NQ035',
      message = format('%s %L belongs to role %I', what, name, owner),
      hint = 'use another name';
  end if;
end;
$$;

-- Whether a load, or this epoch of it, is not published yet.
create or replace function notifyq.is_unpublished(load notifyq.load, epoch bigint)
  returns boolean language sql immutable
as $$
  select load.committed_at is null or coalesce(epoch > load.epoch, false);
$$;

-- Raise an error if the caller cannot publish there.
create or replace function notifyq.check_target(queue text)
  returns void language plpgsql
as $$
declare
  v_stream messages.stream;
begin
  select s.* into v_stream from messages.stream as s where s.name = check_target.queue;
  if found then
    perform notifyq.check_events(v_stream, '{}', '{}', null, null);
    return;
  end if;
  perform notifyq.find_queue(check_target.queue);
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(check_target.queue, 'publish into');
  end if;
end;
$$;

create or replace function notifyq.check_targets(queues text[])
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_target(u.queue) from unnest(queues) as u (queue);
end;
$$;
comment on function notifyq.check_targets(text[]) is
  'Check that the caller could publish into each of these queues and streams now. Raises NQ001 '
  'for an unknown one, NQ007 for one without the right to, and NQ024 for a paused stream.';

create or replace function notifyq.begin_load(name text, epoch bigint default null)
  returns notifyq.load_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_load notifyq.load;
begin
  perform notifyq.check_length('load', begin_load.name);
  insert into notifyq.load (name, owner) values (begin_load.name, notifyq.calling_role())
  on conflict on constraint load_name_pk do nothing;
  select l.* into v_load from notifyq.load as l where l.name = begin_load.name for update;
  perform notifyq.check_load_owner('load', begin_load.name, v_load.owner);
  update notifyq.load as l set used_at = clock_timestamp() where l.name = begin_load.name;
  return (
    v_load.name, v_load.epoch, notifyq.is_unpublished(v_load, begin_load.epoch), v_load.published,
    v_load.merged, v_load.committed_at
  )::notifyq.load_report;
end;
$$;
comment on function notifyq.begin_load(text, bigint) is
  'Begin a load, or continue one; is_new is false if it was published already. epoch numbers the '
  'parts of a load that continues, each larger than the one before. A name is kept for 400 days '
  'after its last use. Raises NQ003 for an invalid name, and NQ035 for the load of another role.';

create or replace function notifyq.begin_attempt(load text)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  -- A random number: no other role can guess it.
  v_id bigint := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
begin
  -- Not locked: all tasks begin at the same time.
  perform notifyq.check_load_owner(
    'load', load, (select l.owner from notifyq.load as l where l.name = begin_attempt.load)
  );
  insert into notifyq.load_attempt (id, load) values (v_id, begin_attempt.load);
  return v_id;
end;
$$;
comment on function notifyq.begin_attempt(text) is
  'A number under which rows of this load may be copied into notifyq.load_row, at rising '
  'positions. They are kept until the load is committed or dropped, or no attempt was begun for '
  'it for a day. Raises NQ035 for a load that was not begun, or by another role.';

create or replace function notifyq.commit_load(
  name text, attempts bigint[], counts bigint[], epoch bigint default null
)
  returns notifyq.load_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_load notifyq.load;
  v_is_new boolean;
  v_rows bigint;
  v_published bigint;
begin
  select l.* into v_load from notifyq.load as l where l.name = commit_load.name for update;
  perform notifyq.check_load_owner('load', commit_load.name, v_load.owner);
  v_is_new := notifyq.is_unpublished(v_load, commit_load.epoch);
  if v_is_new then
    v_rows := notifyq.check_staged(commit_load.name, commit_load.attempts, commit_load.counts);
    v_published := notifyq.publish_staged(commit_load.attempts);
    delete from notifyq.load_attempt as t where t.load = commit_load.name;
    update notifyq.load as l
    set used_at = clock_timestamp(),
      committed_at = clock_timestamp(),
      epoch = commit_load.epoch,
      published = l.published + v_published,
      merged = l.merged + v_rows - v_published
    where l.name = commit_load.name
    returning l.* into v_load;
  end if;
  return (
    v_load.name, v_load.epoch, v_is_new, v_load.published, v_load.merged, v_load.committed_at
  )::notifyq.load_report;
end;
$$;
comment on function notifyq.commit_load(text, bigint[], bigint[], bigint) is
  'Publish the rows staged under these numbers, in their order, all or none, with one '
  'notification for each queue; counts has the number of rows of each. A load or epoch that was '
  'published already is not changed, and is_new is false. published and merged are sums of all '
  'epochs. Raises NQ035 for a load that was not begun, or by another role, NQ036 if rows are '
  'missing, as after a crash of the server, and the errors of publish(): then nothing is '
  'published, and load_rejects() returns the rows to blame.';

create or replace function notifyq.drop_attempts(load text, attempts bigint[])
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_dropped bigint;
begin
  perform notifyq.check_load_owner('load', l.name, l.owner)
  from notifyq.load as l
  where l.name = drop_attempts.load;
  delete from notifyq.load_attempt as t
  where t.load = drop_attempts.load
    and t.id = any (drop_attempts.attempts);
  get diagnostics v_dropped = row_count;
  return v_dropped;
end;
$$;
comment on function notifyq.drop_attempts(text, bigint[]) is
  'Give up attempts of a load; maintenance deletes their rows. Returns how many there were. '
  'Raises NQ035 for the load of another role.';

-- Why these rows cannot be published, or null: publishes them and rolls back.
create or replace function notifyq.try_staged(attempt bigint, first bigint, last bigint)
  returns text language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  -- No other attempt has this number.
  v_trial bigint := (random() * 9e18)::bigint;
begin
  begin
    update notifyq.load_row as r
    set attempt = v_trial
    where r.attempt = try_staged.attempt
      and r.position between try_staged.first and try_staged.last;
    perform notifyq.publish_staged(array[v_trial]);
    raise assert_failure;
  exception
    when assert_failure then
      return null;
    -- Errors of the row itself; others end the search.
    when others then
      if sqlstate = 'NQ001' or notifyq.is_refusal(sqlstate) then
        return sqlerrm;
      end if;
      raise;
  end;
end;
$$;

-- Delete up to quantity rows of an attempt that cannot be published; return them with the reason.
create or replace function notifyq.reject_staged(attempt bigint, quantity integer)
  returns setof notifyq.load_reject language plpgsql
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_positions bigint[];
  v_position bigint := -1::bigint;
  v_reason text;
  v_found integer := 0;
  v_row notifyq.load_row;
begin
  loop
    v_positions := array(
      select r.position from notifyq.load_row as r
      where r.attempt = reject_staged.attempt and r.position > v_position
      order by r.position
      limit 100
    );
    exit when v_positions = '{}';
    v_position := v_positions[cardinality(v_positions)];
    continue when
      notifyq.try_staged(reject_staged.attempt, v_positions[1], v_position) is null;
    for v_row in
      select r.* from notifyq.load_row as r
      where r.attempt = reject_staged.attempt
        and r.position between v_positions[1] and v_position
      order by r.position
    loop
      v_reason := notifyq.try_staged(v_row.attempt, v_row.position, v_row.position);
      continue when v_reason is null;
      if v_found >= quantity then
        return;
      end if;
      delete from notifyq.load_row as r
      where r.attempt = v_row.attempt
        and r.position = v_row.position;
      return next (
        v_row.attempt, v_row.position, v_row.queue, v_row.message, v_reason
      )::notifyq.load_reject;
      v_found := v_found + 1;
    end loop;
  end loop;
end;
$$;

create or replace function notifyq.load_rejects(
  load text, attempts bigint[], quantity integer default 1000000
)
  returns setof notifyq.load_reject language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_attempt bigint;
  v_found bigint := 0::bigint;
  v_rows bigint;
begin
  perform notifyq.check_quantity(load_rejects.quantity, 10000000);
  perform notifyq.check_load_owner('load', l.name, l.owner)
  from notifyq.load as l
  where l.name = load_rejects.load;
  for v_attempt in
    select t.id
    from unnest(load_rejects.attempts) with ordinality as u (id, number)
    join notifyq.load_attempt as t on t.id = u.id and t.load = load_rejects.load
    order by u.number
  loop
    return query
    select r.*
    from notifyq.reject_staged(v_attempt, (load_rejects.quantity - v_found)::integer) as r;
    get diagnostics v_rows = row_count;
    v_found := v_found + v_rows;
    exit when v_found >= load_rejects.quantity;
  end loop;
end;
$$;
comment on function notifyq.load_rejects(text, bigint[], integer) is
  'Delete up to quantity of the rows staged under these numbers that cannot be published, and '
  'return them with the reason: commit the others, or roll back to only see them. It takes about '
  'as long as the publication. A queue that is full or closed to the caller is not the fault of a '
  'row: the error is raised.';

create or replace function notifyq.drop_load(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_load_owner('load', l.name, l.owner)
  from notifyq.load as l
  where l.name = drop_load.name;
  delete from notifyq.load_attempt as t where t.load = drop_load.name;
  delete from notifyq.load as l where l.name = drop_load.name;
  return found;
end;
$$;
comment on function notifyq.drop_load(text) is
  'Forget a load: its staged rows are deleted, published messages stay, and its name can be used '
  'again. False: there is none. Raises NQ035 for the load of another role.';

-- Delete up to quantity staged rows of no open load.
create or replace function notifyq.sweep_loads(quantity bigint)
  returns bigint language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off set lock_timeout = '50ms'
as $$
declare
  v_day timestamptz := clock_timestamp() - interval '1 day';
  v_attempt bigint := -9223372036854775808;
  v_removed bigint := 0::bigint;
  v_rows bigint;
begin
  delete from notifyq.load_attempt as t
  where t.begun_at < v_day
    and not exists (
      select from notifyq.load_attempt as o where o.load = t.load and o.begun_at >= v_day
    );
  if not exists (select from notifyq.load_row as r order by r.attempt limit 1) then
    return 0::bigint;
  end if;
  if not exists (select from notifyq.load_attempt) then
    -- All at once, unless an attempt begins meanwhile.
    begin
      lock table notifyq.load_attempt in share row exclusive mode;
      if not exists (select from notifyq.load_attempt) then
        truncate notifyq.load_row;
        return quantity;
      end if;
    exception
      when lock_not_available or deadlock_detected then null;
    end;
  end if;
  -- From one attempt to the next in the index.
  loop
    v_attempt := (
      select r.attempt from notifyq.load_row as r
      where r.attempt > v_attempt
      order by r.attempt
      limit 1
    );
    exit when v_attempt is null or v_removed >= quantity;
    continue when exists (select from notifyq.load_attempt as t where t.id = v_attempt);
    delete from notifyq.load_row as r
    where r.attempt = v_attempt
      and r.position = any (array(
        select o.position from notifyq.load_row as o
        where o.attempt = v_attempt
        order by o.position
        limit sweep_loads.quantity - v_removed
      ));
    get diagnostics v_rows = row_count;
    v_removed := v_removed + v_rows;
  end loop;
  return v_removed;
end;
$$;
