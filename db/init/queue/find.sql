-- Find: which messages a claim may have.

-- A row that was claimed or finished leaves an entry in the index of what waits until vacuum takes
-- it, and vacuum takes none while anybody holds an older snapshot. Each look from the start of a
-- queue would read all of them. So a session for which that is much work remembers its position in
-- a setting of its own, notifyq.look_<hash>, which goes back with the transaction that changed it:
-- when the session looked from the start last (in ms since 1970), for how many ms it need not do so
-- again, and the priority and id of the message that it claimed last. Behind them stand the
-- positions in lower priorities that it came from. What is put back before a position meanwhile is
-- found by the next look from the start. Where such a look is little work, every look is one, and
-- there is nothing to remember.
--
-- A position must not pass rows of transactions that still run: the look has not seen them, though
-- it has read them. So the session also remembers, in notifyq.seen_<hash>, the snapshot of its last
-- look, and bounds: pairs of a transaction number and an id, where every transaction with this
-- number or a larger one publishes larger ids only. A look first determines which transactions that
-- snapshot saw running and the present one sees ended. It goes back to the last bound that holds
-- for all of them. So it finds all that they have published, in order, and reads no more again than
-- what has come since the first of them began. A bound is true for two reasons: each publisher has
-- its number before its first id (trigger number, see queue/insert.sql), and the session reads the
-- newest id before it has a number.

-- How much this session has read in the indexes of what waits and what is scheduled. An entry
-- counts one; a page, whose entries may all be known to be dead, counts ten. Only differences
-- inside a statement mean something.
create or replace function notifyq.index_reads()
  returns bigint
  language plpgsql
as $$
declare
  -- Looked up each time, as a rebuilt index is another one.
  v_waiting regclass := to_regclass('messages.message_waiting_idx');
  v_scheduled regclass := to_regclass('messages.message_scheduled_idx');
begin
  return pg_stat_get_xact_tuples_returned(v_waiting)
    + pg_stat_get_xact_tuples_returned(v_scheduled)
    + 10 * pg_stat_get_xact_blocks_fetched(v_waiting)
    + 10 * pg_stat_get_xact_blocks_fetched(v_scheduled);
end;
$$;

-- For how many ms a look that was much work need not be made again; null for one that was not.
-- Much is what takes some milliseconds, and more than the largest claim reads without dead rows.
-- Then looks take a tenth of the time at most, and less than one claim in a hundred waits for one.
create or replace function notifyq.rest_after(work bigint, began timestamptz)
  returns bigint
  language plpgsql
as $$
begin
  return case when work > 30000
    then greatest(
      1000, 10 * notifyq.epoch_ms(clock_timestamp()) - 10 * notifyq.epoch_ms(began)
    ) end;
end;
$$;

create or replace function notifyq.epoch_ms(instant timestamptz)
  returns bigint
  language plpgsql
  immutable
as $$
begin
  return floor(extract(epoch from instant) * 1000)::bigint;
end;
$$;

-- Scheduled messages that are due become waiting ones, up to quantity of them. They wait in an
-- index of their own, so that a million of them cost a claim one look.
create or replace function notifyq.stage_queue(queue text, due timestamptz, quantity bigint)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set jit = off
as $$
declare
  v_ids bigint[];
begin
  with picked as materialized (
    select m.id
    from messages.message as m
    where m.queue = stage_queue.queue
      and m.state = 'scheduled'
      and m.available_at <= stage_queue.due
    order by m.available_at
    limit stage_queue.quantity
    for update skip locked
  ),
  staged as (
    update messages.message as m
    set state = 'waiting'
    where m.id = any (array(select p.id from picked as p))
    returning m.id
  )
  select coalesce(array_agg(s.id), '{}') into v_ids from staged as s;
  return v_ids;
end;
$$;

-- Remember the newest id as long as this transaction has no number: for the bounds of its looks.
create or replace function notifyq.note_newest()
  returns void
  language plpgsql
as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config(
      'notifyq.look_newest',
      coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)::text, true
    );
  end if;
end;
$$;

-- Behind which id are all messages of transactions that ended since the last look; null: none has.
-- seen is a snapshot, the numbers of its bounds and their ids.
create or replace function notifyq.ended_after(seen text[], snapshot pg_snapshot)
  returns bigint
  language plpgsql
  immutable
as $$
declare
  v_seen pg_snapshot := seen[1]::pg_snapshot;
  v_numbers bigint[] := seen[2]::bigint[];
  v_ids bigint[] := seen[3]::bigint[];
  v_first xid8;
begin
  if snapshot::text = seen[1] then
    return null;
  end if;
  v_first := (
    select min(x.xid)
    from pg_snapshot_xip(v_seen) as x (xid)
    where pg_visible_in_snapshot(x.xid, ended_after.snapshot)
  );
  -- The end of a snapshot is no bound for what had begun by then: a transaction behind it may have
  -- run, and only that some have ended is known of them.
  if v_first is null and pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(v_seen) then
    v_first := pg_snapshot_xmax(v_seen);
  end if;
  return case when v_first is not null
    then coalesce(v_ids[nullif(width_bucket(v_first::text::bigint, v_numbers), 0)], 0) end;
end;
$$;

-- What a look with this snapshot leaves to the next one. A bound is kept as long as it is the last
-- one before a transaction that may run.
create or replace function notifyq.advance_bounds(seen text[], snapshot pg_snapshot, newest bigint)
  returns text[]
  language plpgsql
  stable
as $$
declare
  v_numbers bigint[] := coalesce(seen[2]::bigint[], '{}');
  v_ids bigint[] := coalesce(seen[3]::bigint[], '{}');
begin
  if newest > coalesce(v_ids[cardinality(v_ids)], -1) then
    v_numbers := v_numbers || pg_current_xact_id()::text::bigint;
    v_ids := v_ids || newest;
  end if;
  if cardinality(v_numbers) > 1 then
    select array_agg(v_numbers[k.place] order by k.place),
      array_agg(v_ids[k.place] order by k.place)
    into v_numbers, v_ids
    from (
      select width_bucket(x.xid::text::bigint, v_numbers) as place
      from (
        select pg_snapshot_xip(advance_bounds.snapshot)
        union all select pg_snapshot_xmax(advance_bounds.snapshot)
      ) as x (xid)
      union
      select cardinality(v_numbers)
    ) as k
    where k.place > 0;
  end if;
  return array[snapshot::text, v_numbers::text, v_ids::text];
end;
$$;

-- The ids of up to quantity messages of a queue, locked, in the order in which they are handed out.
create or replace function notifyq.find_messages(
  queue text,
  quantity integer,
  filter jsonpath,
  thorough boolean
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  -- Of a table never analysed it thinks that a queue has one row: reading all of them by their ids
  -- and sorting them looks as good as reading ten in their order.
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  -- What a filter passed over another one may want, so each has a position of its own.
  v_hash text := to_hex(hashtextextended(queue || coalesce(chr(10) || filter::text, ''), 0));
  v_place bigint[] := nullif(current_setting('notifyq.look_' || v_hash, true), '')::bigint[];
  v_seen text[] := nullif(current_setting('notifyq.seen_' || v_hash, true), '')::text[];
  -- Before the look: what that does not see is still running here, or has a larger number.
  v_snapshot pg_snapshot := pg_current_snapshot();
  -- A variable, not the call itself: a volatile function cannot be an index condition.
  v_now timestamptz := clock_timestamp();
  v_is_full boolean := thorough or v_seen is null
    or coalesce(notifyq.epoch_ms(v_now) not between v_place[1] and v_place[1] + v_place[2], true);
  v_highest integer := 2147483647;
  v_lowest integer := -2147483647 - 1;
  v_after bigint := -9223372036854775807;
  -- A message that comes in from here on has a larger id; null: that is not known.
  v_newest bigint := nullif(current_setting('notifyq.look_newest', true), '')::bigint;
  v_low bigint;
  v_bounds bigint[] := v_seen[3]::bigint[];
  -- Where the next position stands in v_place.
  v_next integer := 3;
  v_below bigint[];
  v_work bigint := -notifyq.index_reads();
  v_rest bigint;
  v_ids bigint[] := array[]::bigint[];
  v_needs_row boolean := filter is not null and notifyq.needs_row(filter);
begin
  if v_is_full then
    if exists (
      select from messages.message as m
      where m.queue = find_messages.queue
        and m.state = 'scheduled'
        and m.available_at <= v_now
    ) then
      v_work := v_work + notifyq.index_reads();
      perform notifyq.stage_queue(queue, v_now, 10 * quantity);
      v_work := v_work - notifyq.index_reads();
    end if;
  else
    v_low := notifyq.ended_after(v_seen, v_snapshot);
    -- Above the position nothing is read but what those may have published there that ran at the
    -- last look; what was published since is left to the next look from the start.
    if v_low < coalesce(v_bounds[cardinality(v_bounds)], 1) and v_place[3] < v_highest then
      v_lowest := v_place[3]::integer + 1;
      v_after := v_low;
    else
      v_highest := v_place[3]::integer;
      v_lowest := v_highest;
      v_after := least(v_place[4], v_low);
      v_next := 5;
    end if;
  end if;
  if filter is not null and notifyq.is_indexed(filter) then
    v_ids := notifyq.find_by_index(queue, quantity, filter);
    return array(
      select m.id
      from unnest(v_ids) with ordinality as f (id, place)
      join messages.message as m on m.id = f.id and (m.state = 'waiting') is true
      order by f.place
      limit quantity
      for update of m skip locked
    );
  end if;
  loop
    v_ids := v_ids || array(
      select m.id
      from messages.message as m
      where m.queue = find_messages.queue
        and m.state = 'waiting'
        and m.priority between v_lowest and v_highest
        and m.id > v_after
        and (
          find_messages.filter is null
          or case when v_needs_row then notifyq.matches(m, find_messages.filter)
            else m.message @@ find_messages.filter end
        )
      order by m.priority desc, m.id
      limit find_messages.quantity - cardinality(v_ids)
      for update skip locked
    );
    exit when cardinality(v_ids) = quantity or v_lowest < -2147483647;
    -- Then the next position, and between two of them all that there is.
    v_highest := v_lowest - 1;
    if v_highest = v_place[v_next] then
      v_lowest := v_highest;
      v_after := least(v_place[v_next + 1], v_low);
      v_next := v_next + 2;
    else
      v_lowest := coalesce(v_place[v_next] + 1, -2147483648)::integer;
      v_after := -9223372036854775807;
    end if;
  end loop;
  v_work := v_work + notifyq.index_reads();
  v_rest := notifyq.rest_after(v_work, v_now);
  if v_is_full then
    if v_rest is null then
      if v_place is not null then
        perform set_config('notifyq.look_' || v_hash, '', false);
        perform set_config('notifyq.seen_' || v_hash, '', false);
      end if;
      return v_ids;
    end if;
    v_place := array[notifyq.epoch_ms(v_now), v_rest] || v_place[3:4];
  end if;
  if v_ids <> '{}' then
    select m.priority, m.id into v_highest, v_after
    from messages.message as m
    where m.id = v_ids[cardinality(v_ids)];
    -- Below it the positions stay, as far back as what has ended asks for.
    if not v_is_full then
      for v_next in 3 .. cardinality(v_place) - 1 by 2 loop
        if v_place[v_next] < v_highest then
          v_below := v_below || array[v_place[v_next], least(v_place[v_next + 1], v_low)];
        end if;
      end loop;
    end if;
    -- More than a few of them are not worth while.
    v_place := v_place[1:2] || array[v_highest, v_after] || v_below[:6];
  elsif v_rest is not null and v_newest is not null then
    -- Nothing is there but dead rows: what is to come has larger ids, and mostly priority 0.
    v_place := v_place[1:2] || array[least(v_place[3], 0), v_newest];
  elsif v_place[4] is null then
    return v_ids;
  end if;
  perform set_config('notifyq.look_' || v_hash, v_place::text, false);
  perform set_config(
    'notifyq.seen_' || v_hash, notifyq.advance_bounds(v_seen, v_snapshot, v_newest)::text, false
  );
  return v_ids;
end;
$$;

-- Busy: which of many queues have something to hand out.

-- Those of the queues (null: of all) in which something waits or is due; the queues as they were
-- given where finding that out was much work lately, and is left to a look into each. Each step
-- goes to the next queue that has an entry, so that those with nothing cost nothing.
create or replace function notifyq.queues_with_work(queues text[], thorough boolean)
  returns text[]
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_place bigint[] := nullif(current_setting('notifyq.look_queues', true), '')::bigint[];
  v_now timestamptz := clock_timestamp();
  v_work bigint := -notifyq.index_reads();
  v_rest bigint;
  v_names text[];
begin
  if not thorough and notifyq.epoch_ms(v_now) between v_place[1] and v_place[1] + v_place[2] then
    return queues;
  end if;
  with recursive waiting as (
    (
      select m.queue
      from messages.message as m
      where m.state = 'waiting'
      order by m.queue
      limit 1
    )
    union all
    select n.queue
    from waiting as w
    cross join lateral (
      select m.queue
      from messages.message as m
      where m.state = 'waiting'
        and m.queue > w.queue
      order by m.queue
      limit 1
    ) as n
  ),
  scheduled as (
    (
      select m.queue, m.available_at
      from messages.message as m
      where m.state = 'scheduled'
      order by m.queue, m.available_at
      limit 1
    )
    union all
    select n.queue, n.available_at
    from scheduled as s
    cross join lateral (
      select m.queue, m.available_at
      from messages.message as m
      where m.state = 'scheduled'
        and m.queue > s.queue
      order by m.queue, m.available_at
      limit 1
    ) as n
  ),
  found as (
    select w.queue from waiting as w
    union
    select s.queue from scheduled as s where s.available_at <= v_now
  )
  select array_agg(f.queue) into v_names
  from found as f
  where queues_with_work.queues is null
    or f.queue = any (queues_with_work.queues);
  v_work := v_work + notifyq.index_reads();
  v_rest := notifyq.rest_after(v_work, v_now);
  if v_rest is not null or v_place is not null then
    perform set_config(
      'notifyq.look_queues',
      case when v_rest is null then '' else array[notifyq.epoch_ms(v_now), v_rest]::text end,
      false
    );
  end if;
  return coalesce(v_names, '{}');
end;
$$;
