-- Find: select and lock messages of a queue for a claim, without reading dead rows again and again.

-- A claimed or finished row leaves an entry in the index of waiting messages until vacuum removes
-- it, and vacuum removes none while an older snapshot is held. A full scan, from the start of the
-- queue, reads all of them. A session for which that is much work therefore remembers its position,
-- in the setting notifyq.position_<hash>, which is rolled back with its transaction: the time of
-- the last full scan (ms since 1970), for how many ms none is needed, and the priority and id of
-- the last message claimed. After them come the positions in lower priorities that it came from.
-- Messages that are put back before a position are found by the next full scan. Where full scans
-- are little work, every scan is one, and no position is kept.
--
-- A position must not pass rows of running transactions: the scan has read over them without seeing
-- them. The session therefore remembers, in notifyq.seen_<hash>, the snapshot of its last scan, and
-- bounds: pairs of a transaction id and a message id, where every transaction with this id or a
-- larger one publishes larger message ids only. A scan first finds the transactions that ran in
-- that snapshot and are over in the present one. It goes back to the last bound that holds for all
-- of them: it finds all that they have published, in order, and reads again only what was published
-- since the first of them began. Bounds are true for two reasons: a publisher gets its transaction
-- id before its first message id (trigger assign_xid, see queue/insert.sql), and the session reads
-- the newest message id before it has a transaction id.

-- How much this session has read in the indexes of waiting and scheduled messages: one for an
-- entry, and ten for a page, all of whose entries may be known to be dead. Only differences inside
-- a statement mean something.
-- A rebuilt index is another one, so their names are resolved each time.
create or replace function notifyq.index_reads()
  returns bigint language sql
as $$
  select pg_stat_get_xact_tuples_returned(to_regclass('messages.message_waiting_idx'))
    + pg_stat_get_xact_tuples_returned(to_regclass('messages.message_scheduled_idx'))
    + 10 * pg_stat_get_xact_blocks_fetched(to_regclass('messages.message_waiting_idx'))
    + 10 * pg_stat_get_xact_blocks_fetched(to_regclass('messages.message_scheduled_idx'));
$$;

-- Stable as what it calls: else it is not inlined, and costs 0.07 ms in each transaction.
create or replace function notifyq.epoch_ms(instant timestamptz)
  returns bigint language sql stable
as $$
  select floor(extract(epoch from instant) * 1000)::bigint;
$$;

-- For how many ms no full scan is needed; null if it was little work. Much work is what takes some
-- milliseconds, and more than the largest claim reads without dead rows. Full scans then take a
-- tenth of the time at most, and less than one claim in a hundred waits for one.
create or replace function notifyq.full_scan_pause(work bigint, began timestamptz)
  returns bigint language sql
as $$
  select case when work > 30000
    then greatest(
      1000, 10 * notifyq.epoch_ms(clock_timestamp()) - 10 * notifyq.epoch_ms(began)
    ) end;
$$;

-- Make up to quantity due scheduled messages waiting. They have an index of their own: a million of
-- them cost a claim one index lookup.
create or replace function notifyq.stage_queue(queue text, due timestamptz, quantity bigint)
  returns bigint[] language plpgsql
  set enable_seqscan = off set enable_sort = off set jit = off
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
    set state = 'waiting', parked_at = null
    where m.id = any (array(select p.id from picked as p))
    returning m.id
  )
  select coalesce(array_agg(s.id), '{}') into v_ids from staged as s;
  return v_ids;
end;
$$;

-- Remember the newest message id while this transaction has no transaction id: for the bounds.
create or replace function notifyq.remember_newest_id()
  returns void language plpgsql
as $$
begin
  if pg_current_xact_id_if_assigned() is null then
    perform set_config(
      'notifyq.newest_id',
      coalesce(pg_sequence_last_value('messages.message_id_seq'), 0)::text, true
    );
  end if;
end;
$$;

-- After which id all messages are of transactions that ended since the last scan; null if none has.
-- seen is a snapshot, the transaction ids of its bounds and their message ids.
create or replace function notifyq.ended_after(seen text[], snapshot pg_snapshot)
  returns bigint language plpgsql immutable
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
  -- Transactions after the end of the old snapshot may have run then; it is only known of some of
  -- them that they have ended.
  if v_first is null and pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(v_seen) then
    v_first := pg_snapshot_xmax(v_seen);
  end if;
  return case when v_first is not null
    then coalesce(v_ids[nullif(width_bucket(v_first::text::bigint, v_numbers), 0)], 0) end;
end;
$$;

-- Bounds after a scan with this snapshot. A bound is kept as long as it is the last one before a
-- transaction that may run.
create or replace function notifyq.advance_bounds(seen text[], snapshot pg_snapshot, newest bigint)
  returns text[] language plpgsql stable
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
    select array_agg(v_numbers[k.ordinal] order by k.ordinal),
      array_agg(v_ids[k.ordinal] order by k.ordinal)
    into v_numbers, v_ids
    from (
      select width_bucket(x.xid::text::bigint, v_numbers) as ordinal
      from (
        select pg_snapshot_xip(advance_bounds.snapshot)
        union all select pg_snapshot_xmax(advance_bounds.snapshot)
      ) as x (xid)
      union
      select cardinality(v_numbers)
    ) as k
    where k.ordinal > 0;
  end if;
  return array[snapshot::text, v_numbers::text, v_ids::text];
end;
$$;

-- Ids of up to quantity messages of a queue, locked, in queue order. Other planner settings are
-- those of claim() and take().
create or replace function notifyq.find_messages(
  queue text, quantity integer, filter jsonpath, full_scan boolean
)
  returns bigint[] language plpgsql
  -- For a table that was never analysed the planner expects one row in a queue, and that sorting
  -- all rows is as good as reading ten in order.
  set enable_sort = off
as $$
declare
  -- Each filter has its own position: others may match what it skips.
  v_hash text := to_hex(hashtextextended(queue || coalesce(chr(10) || filter::text, ''), 0));
  v_position bigint[] := nullif(current_setting('notifyq.position_' || v_hash, true), '')::bigint[];
  v_seen text[] := nullif(current_setting('notifyq.seen_' || v_hash, true), '')::text[];
  -- Taken before the scan: what it does not see is running, or has a larger number.
  v_snapshot pg_snapshot := pg_current_snapshot();
  -- A variable: a volatile function cannot be an index condition.
  v_now timestamptz := clock_timestamp();
  v_is_full boolean := full_scan or v_seen is null
    or (notifyq.epoch_ms(v_now) between v_position[1] and v_position[1] + v_position[2])
      is not true;
  v_highest integer := 2147483647;
  v_lowest integer := -2147483647 - 1;
  v_after bigint := -9223372036854775807;
  -- A message published from here on has a larger id; null: not known.
  v_newest bigint := nullif(current_setting('notifyq.newest_id', true), '')::bigint;
  v_low bigint;
  v_bounds bigint[] := v_seen[3]::bigint[];
  -- Index of the next position in v_position.
  v_next integer := 3;
  v_below bigint[];
  v_work bigint := -notifyq.index_reads();
  v_pause bigint;
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
    -- Above the position only messages of transactions that ran at the last scan are read; those
    -- published since then are left to the next full scan.
    if v_low < coalesce(v_bounds[cardinality(v_bounds)], 1) and v_position[3] < v_highest then
      v_lowest := v_position[3]::integer + 1;
      v_after := v_low;
    else
      v_highest := v_position[3]::integer;
      v_lowest := v_highest;
      v_after := least(v_position[4], v_low);
      v_next := 5;
    end if;
  end if;
  if filter is not null and notifyq.is_indexed(filter) then
    v_ids := notifyq.find_by_index(queue, quantity, filter);
    return array(
      select m.id
      from unnest(v_ids) with ordinality as f (id, ordinal)
      join messages.message as m on m.id = f.id
        and (m.state = 'waiting' and m.queue = find_messages.queue) is true
      where m.id = any (v_ids)
      order by f.ordinal
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
    -- Then the next position; between two positions all messages.
    v_highest := v_lowest - 1;
    if v_highest = v_position[v_next] then
      v_lowest := v_highest;
      v_after := least(v_position[v_next + 1], v_low);
      v_next := v_next + 2;
    else
      v_lowest := coalesce(v_position[v_next] + 1, -2147483648)::integer;
      v_after := -9223372036854775807;
    end if;
  end loop;
  v_work := v_work + notifyq.index_reads();
  v_pause := notifyq.full_scan_pause(v_work, v_now);
  if v_is_full then
    if v_pause is null then
      if v_position is not null then
        perform set_config('notifyq.position_' || v_hash, '', false);
        perform set_config('notifyq.seen_' || v_hash, '', false);
      end if;
      return v_ids;
    end if;
    v_position := array[notifyq.epoch_ms(v_now), v_pause] || v_position[3:4];
  end if;
  if v_ids <> '{}' then
    select m.priority, m.id into v_highest, v_after
    from messages.message as m
    where m.id = v_ids[cardinality(v_ids)];
    -- Lower positions stay, moved back as far as ended transactions require.
    if not v_is_full then
      for v_next in 3 .. cardinality(v_position) - 1 by 2 loop
        if v_position[v_next] < v_highest then
          v_below := v_below || array[v_position[v_next], least(v_position[v_next + 1], v_low)];
        end if;
      end loop;
    end if;
    -- More than a few are not worth it.
    v_position := v_position[1:2] || array[v_highest, v_after] || v_below[:6];
  elsif v_pause is not null and v_newest is not null then
    -- Only dead rows were found: new messages have larger ids, and mostly priority 0.
    v_position := v_position[1:2] || array[least(v_position[3], 0), v_newest];
  elsif v_position[4] is null then
    return v_ids;
  end if;
  perform set_config('notifyq.position_' || v_hash, v_position::text, false);
  perform set_config(
    'notifyq.seen_' || v_hash, notifyq.advance_bounds(v_seen, v_snapshot, v_newest)::text, false
  );
  return v_ids;
end;
$$;

-- Queues with work: which of many queues have messages to claim.

-- Those of the queues (null: of all) that have messages waiting or due. If finding that out was
-- much work lately, the queues as given: each is then read. The index leads from one queue with
-- messages to the next: queues without any cost nothing.
create or replace function notifyq.queues_with_work(queues text[], full_scan boolean)
  returns text[] language plpgsql
  set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_position bigint[] := nullif(current_setting('notifyq.queue_scan', true), '')::bigint[];
  v_now timestamptz := clock_timestamp();
  v_work bigint := -notifyq.index_reads();
  v_pause bigint;
  v_names text[];
begin
  if not full_scan
    and notifyq.epoch_ms(v_now) between v_position[1] and v_position[1] + v_position[2]
  then
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
  select array_agg(f.queue order by array_position(queues_with_work.queues, f.queue), f.queue)
  into v_names
  from found as f
  where queues_with_work.queues is null
    or f.queue = any (queues_with_work.queues);
  v_work := v_work + notifyq.index_reads();
  v_pause := notifyq.full_scan_pause(v_work, v_now);
  if v_pause is not null or v_position is not null then
    perform set_config(
      'notifyq.queue_scan',
      case when v_pause is null then '' else array[notifyq.epoch_ms(v_now), v_pause]::text end,
      false
    );
  end if;
  return coalesce(v_names, '{}');
end;
$$;
