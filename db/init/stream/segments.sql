-- Segments: tables of events that are truncated as a whole.
--
-- raises: nothing; a table that is in use is left to the next run

-- A segment is closed, sealed once nobody can write to it any more, and truncated once each
-- subscription has read all that its seal sees. Events leave no dead rows, and readers scan no
-- segment before their position. TRUNCATE and rotation as in PgQ (M. Kreen, Skype, 2007).

-- A free segment to write to, or null. A publisher must not be sent to a table that it does not
-- know: its statement reads the partitions before the stream. So the transaction that created the
-- table must be over (it holds a lock until the others are notified), and so must those that were
-- open then.
create or replace function notifyq.spare_segment(durable boolean)
  returns bigint language plpgsql
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
  -- First those that all transactions know, then those that some may not know, then new ones.
  order by s.waits_for, s.id
  limit 1
  for update skip locked;
  if not found then
    return null;
  end if;
  execute format(
    'lock table notifyq.%I in row exclusive mode nowait', notifyq.event_table(v_segment.id)
  );
  v_open := notifyq.open_transactions();
  if v_segment.waits_for is null then
    update notifyq.segment as s set waits_for = v_open where s.id = v_segment.id;
  end if;
  return case when not v_segment.waits_for && v_open then v_segment.id end;
exception
  when lock_not_available then
    return null;
end;
$$;

create or replace function notifyq.make_segment(durable boolean)
  returns bigint language plpgsql security definer
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
  -- Attached, not created as a partition: that would lock out all publishers of all streams.
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

-- Publishers write to this segment from now on.
create or replace function notifyq.open_segment(stream messages.stream, segment bigint)
  returns void language plpgsql
as $$
begin
  update notifyq.segment as s
  set closed_at = clock_timestamp(), changed_by = pg_current_xact_id()
  where s.id = open_segment.stream.segment;
  update notifyq.segment as s
  set stream = open_segment.stream.id, opened_at = clock_timestamp(),
    low = notifyq.last_event_id(), closed_at = null, waits_for = null, sealed = null
  where s.id = open_segment.segment;
  update messages.stream as s
  set segment = open_segment.segment
  where s.id = open_segment.stream.id;
  -- A change without effect makes all sessions read the partitions of events again. A session
  -- that read them while another table was created may have missed that table.
  alter table only messages.event alter column id set statistics -1;
end;
$$;

-- Switch to a new segment when the current one is old or large; create a free one for the next run
-- if there is none. The least size grows with the total, so a subscriber that is stuck for weeks
-- leaves dozens of segments, not thousands.
create or replace function notifyq.rotate_segment(stream messages.stream)
  returns boolean language plpgsql
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
    -- A free one that cannot be used yet can be used by a later run.
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

-- Virtual ids of open transactions.
create or replace function notifyq.open_transactions()
  returns text[] language plpgsql
as $$
begin
  return array(
    select l.virtualxid
    from pg_locks as l
    -- pg_stat_activity may be older than pg_locks, and lack the newest sessions.
    left join pg_stat_activity as a on a.pid = l.pid
    where l.locktype = 'virtualxid'
      and l.virtualtransaction = l.virtualxid
      and coalesce(a.datname, current_database()) = current_database()
      and l.pid <> pg_backend_pid()
  );
end;
$$;

-- A publisher reads the current segment before it writes: one that began before the change was
-- visible may still write to the closed segment. It is known by its virtual transaction id.
create or replace function notifyq.seal_segment(segment notifyq.segment)
  returns boolean language plpgsql
as $$
declare
  v_table text := notifyq.event_table(segment.id);
  v_open text[] := notifyq.open_transactions();
begin
  if segment.changed_by = pg_current_xact_id_if_assigned() then
    return false;
  end if;
  if segment.waits_for is null then
    update notifyq.segment as s set waits_for = v_open where s.id = segment.id;
    return false;
  end if;
  -- Nor if this transaction has written to it: it would be granted its own lock.
  if segment.waits_for && v_open
    or exists (
      select from pg_locks as l
      where l.pid = pg_backend_pid()
        and l.mode = 'RowExclusiveLock'
        and l.relation = to_regclass('notifyq.' || v_table)
    )
  then
    return false;
  end if;
  -- Fails while a writer is not over, also a prepared transaction.
  execute format('lock table notifyq.%I in share mode nowait', v_table);
  update notifyq.segment as s
  set sealed = notifyq.committed_snapshot(), waits_for = null
  where s.id = segment.id;
  return true;
exception
  when lock_not_available then
    return false;
end;
$$;

-- Truncate a segment that no subscription needs, or whose stream was dropped, for reuse.
create or replace function notifyq.free_segment(segment notifyq.segment)
  returns boolean language plpgsql
as $$
declare
  v_table text := notifyq.event_table(segment.id);
begin
  execute format('lock table notifyq.%I in access exclusive mode nowait', v_table);
  execute format('truncate table notifyq.%I', v_table);
  update notifyq.segment as s
  set stream = null, opened_at = null, closed_at = null, waits_for = '{}', sealed = null
  where s.id = segment.id;
  return true;
exception
  when lock_not_available then
    return false;
end;
$$;
