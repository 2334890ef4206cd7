-- Positions: up to where a reader has read, across restores and failovers.
--
-- raises: NQ003 invalid argument, NQ903 not adopted, NQ904 foreign position

create or replace function notifyq.wal_position()
  returns pg_lsn language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if pg_is_in_recovery() then
    return pg_last_wal_replay_lsn();
  end if;
  return pg_current_wal_insert_lsn();
exception
  when object_not_in_prerequisite_state or insufficient_privilege or feature_not_supported then
    return null;
end;
$$;
comment on function notifyq.wal_position is
  'The position of this server in its WAL. Null: it refuses to report it, as Aurora does unless '
  'wal_level is logical.';

-- A server that refuses has shared storage, so a failover keeps its timeline.
create or replace function notifyq.current_timeline()
  returns integer language plpgsql stable
as $$
declare
  v_position pg_lsn;
begin
  if not pg_is_in_recovery() then
    v_position := notifyq.wal_position();
  end if;
  if v_position is null then
    return (select c.timeline_id from pg_control_checkpoint() as c);
  end if;
  -- After a promotion the control file has it only from the next checkpoint on.
  return ('x' || left(pg_walfile_name(v_position), 8))::bit(32)::integer;
end;
$$;

-- Identity and progress of this server at this moment, in the present epoch.
create or replace function notifyq.current_origin()
  returns notifyq.origin language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin;
begin
  select coalesce((select max(o.epoch) from notifyq.origin as o), 1), s.system_identifier,
    notifyq.current_timeline(), pg_snapshot_xmax(pg_current_snapshot()), clock_timestamp()
  into v_here
  from pg_control_system() as s;
  return v_here;
end;
$$;

create or replace function notifyq.is_known(here notifyq.origin)
  returns boolean language sql stable
as $$
  select exists (
    select from notifyq.origin as o
    where o.epoch = here.epoch
      and o.system_identifier = here.system_identifier
  );
$$;

create or replace function notifyq.is_foreign(here notifyq.origin)
  returns boolean language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off
as $$
begin
  return not notifyq.is_known(here)
  -- Rows may have come without the table origin. Visible rows have smaller transaction ids, except
  -- those that this transaction has archived.
  or exists (
    select from messages.message_archive as a
    where a.xid >= pg_snapshot_xmax(pg_current_snapshot())
      and a.xid is distinct from pg_current_xact_id_if_assigned()
  );
end;
$$;

create or replace function notifyq.check_origin(here notifyq.origin)
  returns void language plpgsql stable
as $$
begin
  if notifyq.is_foreign(here) then
    raise exception using
      errcode = 'NQ903',
      message = 'this database came from another server and has not been adopted',
      hint = 'see `notifyq migrate`, or call messages.adopt(); until then messages are handled, '
        'but positions are refused';
  end if;
end;
$$;

create or replace function notifyq.raise_foreign_position(why text)
  returns void language plpgsql
as $$
begin
  raise exception using
    errcode = 'NQ904',
    message = 'this position is ' || why,
    hint = 'find missing messages by time, and start again from messages.current_position()';
end;
$$;

create or replace function notifyq.database_oid()
  returns oid language sql stable
as $$
  select d.oid from pg_database as d where d.datname = current_database();
$$;

create or replace function messages.current_position()
  returns text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin := notifyq.current_origin();
begin
  perform notifyq.check_origin(v_here);
  return format(
    '%s:%s:%s:%s/%s', v_here.system_identifier, notifyq.database_oid(), v_here.epoch,
    v_here.timeline, pg_current_snapshot()
  );
end;
$$;
comment on function messages.current_position is
  'All that is committed now on this server, as a position for dead_since() and other readers: '
  'keep it to go on from here. Raises NQ903 in a database that was restored and not adopted.';

create or replace function notifyq.snapshot_of("position" text)
  returns pg_snapshot language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[] := regexp_match(
    position, '^(-?[0-9]+):([0-9]+):([0-9]+):([0-9]+)/([0-9]{1,19}:[0-9]{1,19}:[0-9,]*)$'
  );
  v_here notifyq.origin := notifyq.current_origin();
  v_seen pg_snapshot := v_parts[5]::pg_snapshot;
begin
  if v_parts is null then
    perform notifyq.raise_invalid(
      format('%L is not a position', left(position, 100)),
      'take it from messages.current_position()'
    );
  end if;
  perform notifyq.check_origin(v_here);
  if v_parts[1] <> v_here.system_identifier::text then
    perform notifyq.raise_foreign_position(
      format('of another server: of %s, and this is %s', v_parts[1], v_here.system_identifier)
    );
  elsif v_parts[2] <> notifyq.database_oid()::text then
    perform notifyq.raise_foreign_position('of another database of this server');
  elsif v_parts[3] <> v_here.epoch::text then
    perform notifyq.raise_foreign_position('from before this database was restored');
  elsif pg_snapshot_xmax(v_seen) > pg_snapshot_xmax(pg_current_snapshot()) then
    perform notifyq.raise_foreign_position(
      'later than this server, which was restored or promoted and lacks transactions of it'
    );
  end if;
  -- A promoted standby has used transaction ids again that the position may include. Those below
  -- what this server had reached on the old timeline are the same on both.
  if v_parts[4] <> v_here.timeline::text and not exists (
    select from notifyq.origin as o
    where o.epoch = v_here.epoch
      and o.timeline::text = v_parts[4]
      and o.reached >= pg_snapshot_xmax(v_seen)
  ) then
    perform notifyq.raise_foreign_position(
      format(
        'of timeline %s, and timeline %s may lack transactions of it', v_parts[4], v_here.timeline
      )
    );
  end if;
  return v_seen;
end;
$$;
comment on function notifyq.snapshot_of is
  'The snapshot of a position from current_position(), for dead_since() and readers of '
  'message_archive.xid. Raises NQ904 for a position of another server or database, from before a '
  'restore, or later than a promoted standby.';

-- The snapshot of a position; null is before everything.
create or replace function notifyq.snapshot_since(seen text)
  returns pg_snapshot language plpgsql stable
as $$
begin
  if seen is null then
    perform notifyq.check_origin(notifyq.current_origin());
    return '1:1:'::pg_snapshot;
  end if;
  return notifyq.snapshot_of(seen);
end;
$$;

-- Failover: where a reader goes on after a standby was promoted.

create or replace function messages.known_position("position" text)
  returns text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin;
  v_parts text[];
  v_seen pg_snapshot;
  v_reached xid8;
begin
  perform notifyq.snapshot_of(position);
  return position;
exception
  when sqlstate 'NQ904' then
    v_here := notifyq.current_origin();
    v_parts := regexp_match(position, '^(-?[0-9]+):([0-9]+):([0-9]+):([0-9]+)/(.+)$');
    v_seen := v_parts[5]::pg_snapshot;
    select o.reached into v_reached
    from notifyq.origin as o
    where o.epoch = v_here.epoch
      and o.timeline < v_here.timeline
      and v_parts[1:4] = array[
        v_here.system_identifier::text, notifyq.database_oid()::text, o.epoch::text,
        o.timeline::text
      ];
    if v_reached is null then
      raise;
    end if;
    -- Transactions below v_reached are the same on both; of the others only those of this server
    -- count.
    return format(
      '%s:%s:%s:%s/%s:%s:%s', v_parts[1], v_parts[2], v_parts[3], v_parts[4],
      least(pg_snapshot_xmin(v_seen), v_reached), v_reached, (
        select string_agg(x.xid::text, ',' order by x.xid)
        from pg_snapshot_xip(v_seen) as x (xid)
        where x.xid < v_reached
      )
    );
end;
$$;
comment on function messages.known_position is
  'Where a reader with this position goes on: at the same position or, on a promoted standby that '
  'cannot know it, at the last position that both servers have in common, about ten seconds '
  'earlier at most. Messages since then are read once more, and none is left out. Raises NQ904 '
  'for a position of another server or database, or from before a restore.';
