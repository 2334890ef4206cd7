-- Segments: tables of events that are emptied whole.
--
-- raises: nothing; a table that is in use is left to the next run

-- A segment is closed, then sealed once nobody can write to it any more, then emptied as a whole
-- when each subscription has seen all that its seal sees. So nothing bloats, and readers look into
-- no segment that is behind them. TRUNCATE and rotation as in PgQ (M. Kreen, Skype, 2007).

-- An empty one to write to. A statement learns which tables there are before it looks for the
-- present one, so it is sent to none that it may not know. Who has made a table holds it to the
-- end, which is after all others were told that it is there; and those who had begun by then, and
-- may not have listened since, must be over.
create or replace function notifyq.spare_segment(durable boolean)
  returns bigint
  language plpgsql
as $$
declare
  v_segment notifyq.segment;
  v_open text[];
begin
  select s.* into v_segment
  from notifyq.segment as s
  where s.stream is null
    and s.durable = spare_segment.durable
    and s.closed_at is null
    and s.changed_by is distinct from pg_current_xact_id()
  -- Those that all know, then those that some may not, then the new.
  order by s.witnesses, s.id
  limit 1
  for update skip locked;
  if not found then
    return null;
  end if;
  execute format(
    'lock table notifyq.%I in row exclusive mode nowait', notifyq.event_table(v_segment.id)
  );
  v_open := notifyq.open_transactions();
  if v_segment.witnesses is null then
    update notifyq.segment as s set witnesses = v_open where s.id = v_segment.id;
  end if;
  return case when not v_segment.witnesses && v_open then v_segment.id end;
exception
  when lock_not_available then
    return null;
end;
$$;

create or replace function notifyq.make_segment(durable boolean)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_id bigint;
  v_table text;
  v_key text;
  v_index text;
begin
  insert into notifyq.segment (durable, changed_by)
  values (make_segment.durable, pg_current_xact_id())
  returning id into v_id;
  v_table := notifyq.event_table(v_id);
  -- Attached, not created in place, which would lock out all publishers of all streams.
  execute format(
    'create table notifyq.%I (like messages.event including defaults including constraints)',
    v_table
  );
  if not make_segment.durable then
    execute format('alter table notifyq.%I set unlogged', v_table);
  end if;
  v_key := v_table || '_id_pk';
  v_index := v_table || '_xid_id_idx';
  execute format('alter table notifyq.%I add constraint %I primary key (id)', v_table, v_key);
  execute format('create index %I on notifyq.%I (xid, id)', v_index, v_table);
  execute format(
    'alter table messages.event attach partition notifyq.%I for values in (%L)', v_table, v_id
  );
  return v_id;
end;
$$;

-- Publishers write to this one from now on.
create or replace function notifyq.open_segment(stream messages.stream, segment bigint)
  returns void
  language plpgsql
as $$
begin
  update notifyq.segment as s
  set closed_at = clock_timestamp(), changed_by = pg_current_xact_id()
  where s.id = open_segment.stream.segment;
  update notifyq.segment as s
  set stream = open_segment.stream.id, opened_at = clock_timestamp(),
    low = notifyq.last_event_id(), closed_at = null, witnesses = null, sealed = null
  where s.id = open_segment.segment;
  update messages.stream as s
  set segment = open_segment.segment
  where s.id = open_segment.stream.id;
  -- Says what is there already, so that all sessions look at the tables of events again. One that
  -- did so while another table was made may have missed that, and would miss it until the next.
  alter table only messages.event alter column id set statistics -1;
end;
$$;

-- A new segment where the present one is old or large, or where there is none to spare one for the
-- next run. Its least size grows with what is kept, so that a subscriber who is stuck for weeks
-- leaves dozens of segments, and not thousands.
create or replace function notifyq.rotate_segment(stream messages.stream)
  returns boolean
  language plpgsql
as $$
declare
  v_segment notifyq.segment;
  v_bytes bigint;
  v_kept bigint;
  v_age interval;
  v_spare bigint;
begin
  select s.* into v_segment from notifyq.segment as s where s.id = rotate_segment.stream.segment;
  v_bytes := pg_relation_size(to_regclass('notifyq.' || notifyq.event_table(v_segment.id)));
  if v_bytes = 0 then
    return false;
  end if;
  select sum(pg_relation_size(to_regclass('notifyq.' || notifyq.event_table(s.id))))::bigint,
    clock_timestamp() - min(s.opened_at)
  into v_kept, v_age
  from notifyq.segment as s
  where s.stream = rotate_segment.stream.id;
  if v_bytes < greatest(67108864, v_kept / 16)
    and clock_timestamp() - v_segment.opened_at
      < greatest(rotate_segment.stream.retention / 2, interval '10 minutes', v_age / 16)
  then
    return false;
  end if;
  v_spare := notifyq.spare_segment(rotate_segment.stream.durable);
  if v_spare is null then
    -- One that cannot be had yet will do the next time, or the one after that.
    perform notifyq.make_segment(rotate_segment.stream.durable)
    where not exists (
      select from notifyq.segment as s
      where s.stream is null and s.durable = rotate_segment.stream.durable and s.closed_at is null
    );
    return false;
  end if;
  perform notifyq.open_segment(stream, v_spare);
  return true;
end;
$$;

-- Segments: seal those that are closed, and empty those that nobody needs.

-- The transactions that are open, by their virtual numbers.
create or replace function notifyq.open_transactions()
  returns text[]
  language plpgsql
as $$
begin
  return array(
    select l.virtualxid
    from pg_locks as l
    -- What this transaction knows of other sessions may be older than the newest of them.
    left join pg_stat_activity as a on a.pid = l.pid
    where l.locktype = 'virtualxid'
      and l.virtualtransaction = l.virtualxid
      and coalesce(a.datname, current_database()) = current_database()
      and l.pid <> pg_backend_pid()
  );
end;
$$;

-- A publisher reads which segment is the present one before it writes: who began before others knew
-- that it was closed may still write to it, and is known by its virtual transaction.
create or replace function notifyq.seal_segment(segment notifyq.segment)
  returns boolean
  language plpgsql
as $$
declare
  v_table text := notifyq.event_table(segment.id);
  v_open text[] := notifyq.open_transactions();
begin
  if segment.changed_by = pg_current_xact_id_if_assigned() then
    return false;
  end if;
  if segment.witnesses is null then
    update notifyq.segment as s set witnesses = v_open where s.id = segment.id;
    return false;
  end if;
  -- Nor while this transaction itself has written to it: its own locks it is always granted.
  if segment.witnesses && v_open
    or exists (
      select from pg_locks as l
      where l.pid = pg_backend_pid()
        and l.mode = 'RowExclusiveLock'
        and l.relation = to_regclass('notifyq.' || v_table)
    )
  then
    return false;
  end if;
  -- Refused while somebody has written to it and is not over, prepared ones included.
  execute format('lock table notifyq.%I in share mode nowait', v_table);
  update notifyq.segment as s
  set sealed = notifyq.committed_snapshot(), witnesses = null
  where s.id = segment.id;
  return true;
exception
  when lock_not_available then
    return false;
end;
$$;

-- Empty a segment that all have passed, or whose stream is gone, and have it used again.
create or replace function notifyq.free_segment(segment notifyq.segment)
  returns boolean
  language plpgsql
as $$
declare
  v_table text := notifyq.event_table(segment.id);
begin
  execute format('lock table notifyq.%I in access exclusive mode nowait', v_table);
  execute format('truncate table notifyq.%I', v_table);
  update notifyq.segment as s
  set stream = null, opened_at = null, closed_at = null, witnesses = '{}', sealed = null
  where s.id = segment.id;
  return true;
exception
  when lock_not_available then
    return false;
end;
$$;
