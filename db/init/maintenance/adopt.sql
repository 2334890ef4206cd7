-- Adopt: record which transactions this server has reached, and adopt a restored database.

create or replace function notifyq.note_reached()
  returns void language plpgsql
as $$
declare
  v_here notifyq.origin;
begin
  if exists (
    select from notifyq.origin as o where o.noted_at > clock_timestamp() - interval '10 seconds'
  ) then
    return;
  end if;
  v_here := notifyq.current_origin();
  insert into notifyq.origin as o
  select v_here.*
  where notifyq.is_known(v_here)
  on conflict on constraint origin_epoch_timeline_pk do update
  set reached = excluded.reached, noted_at = excluded.noted_at;
end;
$$;

create or replace function messages.adopt()
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin;
begin
  -- One call at a time; maintenance may go on.
  lock table notifyq.origin in share update exclusive mode;
  v_here := notifyq.current_origin();
  if not notifyq.is_foreign(v_here) then
    return false;
  end if;
  -- Older than every snapshot taken from now on; rows below the oldest transaction are so already.
  update messages.message_archive as a
  set xid = '1'
  where a.xid >= pg_snapshot_xmin(pg_current_snapshot())
    and a.xid is distinct from pg_current_xact_id_if_assigned();
  perform notifyq.adopt_streams();
  v_here.epoch := v_here.epoch + 1;
  insert into notifyq.origin select v_here.*;
  return true;
end;
$$;
comment on function messages.adopt is
  'Adopt a database that was restored from another server: messages archived there count as read, '
  'and positions taken there are refused. Subscribers of streams continue where they were. False: '
  'nothing was to be done.';
