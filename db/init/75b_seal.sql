-- Segments: seal those that are closed, and empty those that nobody needs.
--
-- owns:    nothing
-- writes:  messages.segment, the tables messages.event_<id>
-- calls:   messages._event_table, messages._present
-- raises:  nothing; a table that is in use is left to the next run

-- The transactions that are open, by their virtual numbers.
create or replace function messages._witnesses()
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
create or replace function messages._seal(segment messages.segment)
  returns boolean
  language plpgsql
as $$
declare
  v_table text := messages._event_table(segment.id);
  v_open text[] := messages._witnesses();
begin
  if segment.changed_by = pg_current_xact_id_if_assigned() then
    return false;
  end if;
  if segment.witnesses is null then
    update messages.segment as s set witnesses = v_open where s.id = segment.id;
    return false;
  end if;
  -- Nor while this transaction itself has written to it: its own locks it is always granted.
  if segment.witnesses && v_open
    or exists (
      select from pg_locks as l
      where l.pid = pg_backend_pid()
        and l.mode = 'RowExclusiveLock'
        and l.relation = to_regclass('messages.' || v_table)
    )
  then
    return false;
  end if;
  -- Refused while somebody has written to it and is not over, prepared ones included.
  execute format('lock table messages.%I in share mode nowait', v_table);
  update messages.segment as s
  set sealed = messages._present(), witnesses = null
  where s.id = segment.id;
  return true;
exception
  when lock_not_available then
    return false;
end;
$$;

-- Empty a segment that all have passed, or whose stream is gone, and have it used again.
create or replace function messages._free(segment messages.segment)
  returns boolean
  language plpgsql
as $$
declare
  v_table text := messages._event_table(segment.id);
begin
  execute format('lock table messages.%I in access exclusive mode nowait', v_table);
  execute format('truncate table messages.%I', v_table);
  update messages.segment as s
  set stream = null, opened_at = null, closed_at = null, witnesses = '{}', sealed = null
  where s.id = segment.id;
  return true;
exception
  when lock_not_available then
    return false;
end;
$$;
