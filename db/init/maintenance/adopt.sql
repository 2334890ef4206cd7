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
  perform from notifyq.origin as o
  where o.epoch = v_here.epoch and o.timeline = v_here.timeline
  for update skip locked;
  -- reap_and_stage() has it, and may wait for what this transaction has locked: at the next time.
  if not found and exists (
    select from notifyq.origin as o
    where o.epoch = v_here.epoch and o.timeline = v_here.timeline
  ) then
    return;
  end if;
  insert into notifyq.origin as o
  select v_here.*
  where notifyq.is_known(v_here)
  on conflict on constraint origin_epoch_timeline_pk do update
  set reached = excluded.reached, noted_at = excluded.noted_at;
end;
$$;

-- Sequences that would give out a number again: logical replication copies rows, but no sequences.
create or replace function notifyq.late_sequences(
  out sequence text, out relation text, out last bigint, out used bigint
)
  returns setof record language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_column record;
begin
  for v_column in
    select d.objid::regclass as sequence, d.refobjid::regclass as relation, a.attname as name
    from pg_depend as d
    join pg_class as s on s.oid = d.objid and s.relkind = 'S'
      and s.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
    join pg_attribute as a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
    where d.classid = 'pg_class'::regclass
      and d.refclassid = 'pg_class'::regclass
      and d.deptype in ('a', 'i')
    union all
    -- Tables that have these numbers longer.
    values
      ('messages.message_id_seq'::regclass, 'messages.message_archive'::regclass, 'id'::name),
      ('messages.message_id_seq', 'messages.attempt', 'message_id'),
      ('messages.event_id_seq', 'notifyq.batch', 'last_id')
  loop
    execute format(
      'select max(c.%I) from %I.%I as c', v_column.name,
      (
        select n.nspname from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
        where c.oid = v_column.relation
      ),
      (select c.relname from pg_class as c where c.oid = v_column.relation)
    )
    into used;
    last := coalesce(pg_sequence_last_value(v_column.sequence), 0);
    if used > last then
      sequence := v_column.sequence::text;
      relation := v_column.relation::text;
      return next;
    end if;
  end loop;
end;
$$;
comment on function notifyq.late_sequences is
  'Sequences that are behind the numbers in a table, with that table, the last number given out '
  'and the largest one used: new rows would get numbers that others have.';

create or replace function messages.adopt()
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_here notifyq.origin;
  v_late bigint;
begin
  -- One call at a time; maintenance may go on.
  lock table notifyq.origin in share update exclusive mode;
  select count(setval(g.sequence::regclass, g.used)) into v_late
  from (
    select l.sequence, max(l.used) as used from notifyq.late_sequences() as l group by l.sequence
  ) as g;
  v_here := notifyq.current_origin();
  if not notifyq.is_foreign(v_here) then
    return v_late > 0;
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
  'and positions taken there are refused. Subscribers of streams continue where they were. '
  'Sequences that are behind their tables, as after logical replication, are set. False: nothing '
  'was to be done.';
