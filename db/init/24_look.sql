-- Look: find the messages that a claim may have, at a cost that does not grow with the dead rows.
--
-- A row that was claimed or finished leaves an entry in the index of what waits until vacuum takes
-- it, and vacuum takes none while anybody holds an older snapshot. Each look from the start of a
-- queue would read all of them. So a session for which that is much work remembers where it was:
-- in a setting of its own, notifyq.look_<hash>, which goes back with the transaction that changed
-- it. It is when the session looked from the start last (in ms since 1970), for how many ms it need
-- not do so again, and the priority and id of the message that it claimed last. What came in before
-- that place meanwhile is found by the next look from the start. Where such a look is little work,
-- every look is one, and there is nothing to remember.
--
-- owns:    nothing
-- writes:  messages.message (row locks; state of what is due)
-- calls:   messages._needs_row, messages._matches, messages._is_indexed,
--          messages._found_by_index
-- raises:  nothing

-- How much this session has read in the indexes of what waits and what is scheduled. An entry
-- counts one; a page, whose entries may all be known to be dead, counts ten. Only differences
-- inside a statement mean something.
create or replace function messages._work_done()
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
create or replace function messages._rest(work bigint, began timestamptz)
  returns bigint
  language plpgsql
as $$
begin
  return case when work > 30000
    then greatest(1000, 10 * messages._ms(clock_timestamp()) - 10 * messages._ms(began)) end;
end;
$$;

create or replace function messages._ms(instant timestamptz)
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
create or replace function messages._stage(queue text, due timestamptz, quantity bigint)
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
    where m.queue = _stage.queue
      and m.state = 'scheduled'
      and m.available_at <= _stage.due
    order by m.available_at
    limit _stage.quantity
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

-- The ids of up to quantity messages of a queue, locked, in the order in which they are handed out.
create or replace function messages._look(
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
  -- What a filter passed over another one may want, so each has a place of its own.
  v_setting text := 'notifyq.look_' || to_hex(
    hashtextextended(queue || coalesce(chr(10) || filter::text, ''), 0)
  );
  v_place bigint[] := nullif(current_setting(v_setting, true), '')::bigint[];
  -- A variable, not the call itself: a volatile function cannot be an index condition.
  v_now timestamptz := clock_timestamp();
  v_is_full boolean := thorough
    or coalesce(messages._ms(v_now) not between v_place[1] and v_place[1] + v_place[2], true);
  v_highest integer := 2147483647;
  v_lowest integer := -2147483647 - 1;
  v_after bigint := -9223372036854775807;
  -- Read before the look: a message that comes in meanwhile has a larger id.
  v_newest bigint := coalesce(pg_sequence_last_value('messages.message_id_seq'), 0);
  v_work bigint := -messages._work_done();
  v_rest bigint;
  v_ids bigint[] := array[]::bigint[];
  v_needs_row boolean := filter is not null and messages._needs_row(filter);
begin
  if v_is_full then
    if exists (
      select from messages.message as m
      where m.queue = _look.queue
        and m.state = 'scheduled'
        and m.available_at <= v_now
    ) then
      v_work := v_work + messages._work_done();
      perform messages._stage(queue, v_now, 10 * quantity);
      v_work := v_work - messages._work_done();
    end if;
  else
    v_highest := v_place[3]::integer;
    v_lowest := v_highest;
    v_after := v_place[4];
  end if;
  if filter is not null and messages._is_indexed(filter) then
    v_ids := messages._found_by_index(queue, quantity, filter);
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
      where m.queue = _look.queue
        and m.state = 'waiting'
        and m.priority between v_lowest and v_highest
        and m.id > v_after
        and (
          _look.filter is null
          or case when v_needs_row then messages._matches(m, _look.filter)
            else m.message @@ _look.filter end
        )
      order by m.priority desc, m.id
      limit _look.quantity - cardinality(v_ids)
      for update skip locked
    );
    exit when cardinality(v_ids) = quantity or v_lowest < -2147483647;
    -- Behind the messages of the priority at which the session is come those of lower ones.
    v_highest := v_lowest - 1;
    v_lowest := -2147483647 - 1;
    v_after := -9223372036854775807;
  end loop;
  v_work := v_work + messages._work_done();
  v_rest := messages._rest(v_work, v_now);
  if v_is_full then
    if v_rest is null then
      if v_place is not null then
        perform set_config(v_setting, '', false);
      end if;
      return v_ids;
    end if;
    v_place := array[messages._ms(v_now), v_rest] || v_place[3:4];
  end if;
  if v_ids <> '{}' then
    v_place := v_place[1:2] || (
      select array[m.priority, m.id]
      from messages.message as m
      where m.id = v_ids[cardinality(v_ids)]
    );
  elsif v_rest is not null then
    -- Nothing is there but dead rows: what is to come has larger ids, and mostly priority 0.
    v_place := v_place[1:2] || array[least(v_place[3], 0), v_newest];
  end if;
  perform set_config(v_setting, v_place::text, false);
  return v_ids;
end;
$$;
