-- Moments: what is committed, and which ids are yet to be given.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- What is committed now. A snapshot leaves out the transaction that takes it, and counts it as over
-- if a later one has ended: what it publishes after that would be seen by nobody.
create or replace function messages._present()
  returns pg_snapshot
  language plpgsql
  stable
as $$
declare
  v_snapshot pg_snapshot := pg_current_snapshot();
  v_own xid8 := pg_current_xact_id_if_assigned();
begin
  if v_own is null or v_own >= pg_snapshot_xmax(v_snapshot) then
    return v_snapshot;
  end if;
  return concat(
    least(v_own::text::bigint, pg_snapshot_xmin(v_snapshot)::text::bigint), ':',
    pg_snapshot_xmax(v_snapshot), ':', (
      select string_agg(x.xid::text, ',' order by x.xid)
      from (select pg_snapshot_xip(v_snapshot) union select v_own) as x (xid)
    )
  )::pg_snapshot;
end;
$$;

-- The same snapshot, which says of every number below `until` that it is not over.
create or replace function messages._until(snapshot pg_snapshot, until xid8)
  returns pg_snapshot
  language plpgsql
  immutable
as $$
begin
  -- Most ask in vain, and a statement costs several times what this does.
  if (until > pg_snapshot_xmax(snapshot)) is not true then
    return snapshot;
  end if;
  -- Those put in have larger numbers than all that it says are running.
  return concat(
    pg_snapshot_xmin(snapshot), ':', until, ':',
    nullif(split_part(snapshot::text, ':', 3), '') || ',',
    array_to_string(
      array(
        select generate_series(
          pg_snapshot_xmax(snapshot)::text::bigint, until::text::bigint - 1
        )
      ), ','
    )
  )::pg_snapshot;
end;
$$;

-- How many transactions are over in a snapshot. Of two snapshots of one server the later one sees
-- all that the earlier one does, so this number tells which is which. Inlined.
create or replace function messages._passed(snapshot pg_snapshot)
  returns bigint
  language sql
  immutable
  parallel safe
as $$
  -- Its text is xmin:xmax:xip,...; to read that costs less than a statement.
  select pg_catalog.pg_snapshot_xmax(snapshot)::pg_catalog.text::bigint operator(pg_catalog.-)
    pg_catalog.cardinality(
      pg_catalog.string_to_array(pg_catalog.split_part(snapshot::pg_catalog.text, ':', 3), ',')
    );
$$;

create or replace function messages._last_event_id()
  returns bigint
  language plpgsql
  stable
as $$
begin
  return (
    select case when s.is_called then s.last_value else 0 end from messages.event_id_seq as s
  );
end;
$$;

-- The last id that was given, before this transaction has a number: whoever gets a larger one gets
-- its ids after this. Null: it has a number already, or keeps an older snapshot.
create or replace function messages._fresh_low()
  returns bigint
  language plpgsql
  stable
as $$
begin
  if pg_current_xact_id_if_assigned() is null
    and current_setting('transaction_isolation') = 'read committed'
  then
    return messages._last_event_id();
  end if;
  return null;
end;
$$;

-- A moment: ids of transactions with a number behind the snapshot's end are larger than low, and
-- those of what is committed are not larger than high. A snapshot ends behind the last transaction
-- that is over, so that some with a larger number may run by then and have given ids: up to the
-- caller's own number, which is behind the end, they are put in as running. Without a fresh low
-- the known one goes on with the end that it was known for.
create or replace function messages._moment(
  known_low bigint,
  known_until xid8,
  fresh bigint,
  out low bigint,
  out snapshot pg_snapshot,
  out high bigint
)
  language plpgsql
  stable
as $$
declare
  v_until xid8 := known_until;
begin
  low := known_low;
  if fresh is not null then
    low := greatest(fresh, known_low);
    v_until := greatest(known_until, pg_current_xact_id());
  end if;
  snapshot := messages._until(messages._present(), v_until);
  high := messages._last_event_id();
end;
$$;
