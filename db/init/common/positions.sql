-- Positions: where readers stand, across restores and failovers.
--
-- raises: NQ003 invalid argument, NQ903 not adopted, NQ904 foreign position

-- What the server says of itself now, under the epoch that is in force.
create or replace function notifyq.current_origin()
  returns notifyq.origin
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin;
begin
  select coalesce((select max(o.epoch) from notifyq.origin as o), 1), s.system_identifier,
    case
      when pg_is_in_recovery() then (select c.timeline_id from pg_control_checkpoint() as c)
      -- After a promotion the control file knows it from the next checkpoint on, and not before.
      else ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
    end,
    pg_snapshot_xmax(pg_current_snapshot()), clock_timestamp()
  into v_here
  from pg_control_system() as s;
  return v_here;
end;
$$;

create or replace function notifyq.is_known(here notifyq.origin)
  returns boolean
  language plpgsql
  stable
as $$
begin
  return exists (
    select from notifyq.origin as o
    where o.epoch = here.epoch
      and o.system_identifier = here.system_identifier
  );
end;
$$;

create or replace function notifyq.is_foreign(here notifyq.origin)
  returns boolean
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return not notifyq.is_known(here)
  -- Rows may have come without the table origin. What is visible has a smaller number, but for
  -- what this transaction has archived itself.
  or exists (
    select from messages.message_archive as a
    where a.xid >= pg_snapshot_xmax(pg_current_snapshot())
      and a.xid is distinct from pg_current_xact_id_if_assigned()
  );
end;
$$;

create or replace function notifyq.check_origin(here notifyq.origin)
  returns void
  language plpgsql
  stable
as $$
begin
  if notifyq.is_foreign(here) then
    raise exception using
      errcode = 'NQ903',
      message = 'this database came from another server and has not been adopted',
      hint = '`notifyq migrate` tells how, or call messages.adopt(); until then messages are '
        'handled, but positions are refused';
  end if;
end;
$$;

create or replace function notifyq.raise_foreign_position(why text)
  returns void
  language plpgsql
as $$
begin
  raise exception using
    errcode = 'NQ904',
    message = 'this position is ' || why,
    hint = 'look for what is missing by its time, and begin with messages.current_position()';
end;
$$;

create or replace function notifyq.check_not_ahead(seen pg_snapshot)
  returns void
  language plpgsql
  stable
as $$
begin
  if pg_snapshot_xmax(seen) > pg_snapshot_xmax(pg_current_snapshot()) then
    perform notifyq.raise_foreign_position(
      'ahead of this server, which was restored or promoted and lacks what had been seen'
    );
  end if;
end;
$$;

create or replace function notifyq.database_name()
  returns oid
  language plpgsql
  stable
as $$
begin
  return (select d.oid from pg_database as d where d.datname = current_database());
end;
$$;

create or replace function messages.current_position()
  returns text
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin := notifyq.current_origin();
begin
  perform notifyq.check_origin(v_here);
  return format(
    '%s:%s:%s:%s/%s', v_here.system_identifier, notifyq.database_name(), v_here.epoch,
    v_here.timeline, pg_current_snapshot()
  );
end;
$$;
comment on function messages.current_position() is
  'What is committed now, on this server, as a text that snapshot_of() takes: keep it to go on '
  'from here. Raises NQ903 in a database that was restored and not adopted.';

create or replace function notifyq.snapshot_of(place text)
  returns pg_snapshot
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_parts text[] := regexp_match(
    place, '^(-?\d+):(\d+):(\d+):(\d+)/(\d{1,19}:\d{1,19}:[\d,]*)$'
  );
  v_here notifyq.origin := notifyq.current_origin();
  v_seen pg_snapshot := v_parts[5]::pg_snapshot;
begin
  if v_parts is null then
    perform notifyq.raise_invalid(
      format('%L is not a position', left(place, 100)), 'take it from messages.current_position()'
    );
  end if;
  perform notifyq.check_origin(v_here);
  if v_parts[1] <> v_here.system_identifier::text then
    perform notifyq.raise_foreign_position(
      format('of another server: of %s, and this is %s', v_parts[1], v_here.system_identifier)
    );
  elsif v_parts[2] <> notifyq.database_name()::text then
    perform notifyq.raise_foreign_position('of another database of this server');
  elsif v_parts[3] <> v_here.epoch::text then
    perform notifyq.raise_foreign_position('from before this database was restored');
  end if;
  perform notifyq.check_not_ahead(v_seen);
  -- A standby that took over has given numbers anew that the position may have seen already. Those
  -- below what it knows to be reached on the old timeline are the same on both.
  if v_parts[4] <> v_here.timeline::text and not exists (
    select from notifyq.origin as o
    where o.epoch = v_here.epoch
      and o.timeline::text = v_parts[4]
      and o.reached >= pg_snapshot_xmax(v_seen)
  ) then
    perform notifyq.raise_foreign_position(
      format(
        'of timeline %s, and timeline %s may lack what it has seen', v_parts[4], v_here.timeline
      )
    );
  end if;
  return v_seen;
end;
$$;
comment on function notifyq.snapshot_of(text) is
  'The snapshot of a position that current_position() gave, for dead_since() and for readers of '
  'message_archive.xid. Raises NQ904 for a position that means nothing here: of another server or '
  'database, from before a restore, or ahead of a standby that took over.';

-- Takeover: where a reader goes on when a standby has taken over from the server that it read.

create or replace function messages.known_position(place text)
  returns text
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin;
  v_parts text[];
  v_seen pg_snapshot;
  v_reached xid8;
begin
  perform notifyq.snapshot_of(place);
  return place;
exception
  when sqlstate 'NQ904' then
    v_here := notifyq.current_origin();
    v_parts := regexp_match(place, '^(-?\d+):(\d+):(\d+):(\d+)/(.+)$');
    v_seen := v_parts[5]::pg_snapshot;
    select o.reached into v_reached
    from notifyq.origin as o
    where o.epoch = v_here.epoch
      and o.timeline < v_here.timeline
      and v_parts[1:4] = array[
        v_here.system_identifier::text, notifyq.database_name()::text, o.epoch::text,
        o.timeline::text
      ];
    if v_reached is null then
      raise;
    end if;
    -- What has a number below is the same on both; of the rest only the standby's own counts.
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
comment on function messages.known_position(text) is
  'Where a reader at a position goes on: there, or, on a standby that took over and cannot know '
  'it, at the last place before that both servers have in common, at most some ten seconds of the '
  'old one back. What came since then is read once more, and nothing is left out. Raises NQ904 for '
  'a position of another server or database, and from before a restore.';
