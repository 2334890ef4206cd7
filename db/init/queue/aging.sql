-- Aging: queues whose messages gain priority while they wait.

-- The waiting messages of a queue all age at the same rate, so their order never changes: the
-- message with the least rank goes first, which is the instant since when it waits less its
-- priority times the aging. The rank is an expression of an index that has only messages of queues
-- with aging. Index and view exist anew when the aging of a queue has changed: no row is written
-- then, nor when a message changes its priority or due time. In double precision a rank of any
-- priority and aging is in range; ranks that it cannot tell apart are in order of ids.

-- Make the indexes and the view for the queues that have aging now; without any there is no index.
create or replace function notifyq.rebuild_aging()
  returns void language plpgsql
as $$
declare
  v_aging jsonb := (
    select jsonb_object_agg(q.name, extract(epoch from q.aging))
    from messages.queue as q
    where q.aging is not null
  );
  -- As it stands in a definition.
  v_literal text := format('''%s''', replace(v_aging::text, '''', ''''''));
  v_table record;
begin
  if to_regclass('notifyq.aging_message') is not null and (
    select count(*)
    from pg_index as x
    where x.indexrelid in (
        to_regclass('messages.message_aging_idx'),
        to_regclass('notifyq.message_unlogged_aging_idx')
      )
      and (v_aging is null or position(v_literal in pg_get_indexdef(x.indexrelid)) > 0)
  ) = (case when v_aging is null then 0 else 2 end) then
    return;
  end if;
  -- At once the strongest lock that is needed, and that of the table before those of its child and
  -- its view, see rebuild_queue_triggers().
  lock table messages.message, notifyq.message_unlogged in access exclusive mode;
  -- Only functions of the server: an index is kept with the rights of those who insert. The view
  -- and the indexes have the same expressions, else the indexes would not serve the view.
  execute format(
    'create or replace view notifyq.aging_message as '
    'select id, queue, message, (date_part(''epoch'', available_at at time zone ''UTC'') '
    '- priority * (%L::jsonb ->> queue)::double precision) as rank, m as row '
    'from messages.message as m where state = ''waiting'' and %L::jsonb ? queue',
    coalesce(v_aging, '{}'), coalesce(v_aging, '{}')
  );
  for v_table in
    values ('messages', 'message', 'message_aging_idx'),
      ('notifyq', 'message_unlogged', 'message_unlogged_aging_idx')
  loop
    if to_regclass(format('%I.%I', v_table.column1, v_table.column3)) is not null then
      execute format('drop index %I.%I', v_table.column1, v_table.column3);
    end if;
    if v_aging is not null then
      execute format(
        'create index %I on %I.%I (queue, (date_part(''epoch'', available_at at time zone ''UTC'') '
        '- priority * (%L::jsonb ->> queue)::double precision), id) '
        'where state = ''waiting'' and %L::jsonb ? queue',
        v_table.column3, v_table.column1, v_table.column2, v_aging, v_aging
      );
    end if;
  end loop;
end;
$$;

do $$ begin perform notifyq.rebuild_aging(); end; $$;
comment on view notifyq.aging_message is
  'Waiting messages of queues with aging; the one with the least rank goes first.';

-- As find_by_index().
create or replace function notifyq.find_aging_by_index(
  queue text, quantity integer, filter jsonpath
)
  returns bigint[] language plpgsql stable
as $$
declare
  v_ids bigint[];
begin
  with first as materialized (
    select a.id, a.message, a.rank
    from notifyq.aging_message as a
    where a.queue = find_aging_by_index.queue
    order by a.rank, a.id
    limit 200
  )
  select array_agg(f.id order by f.rank, f.id) into v_ids from first as f where f.message @@ filter;
  if cardinality(v_ids) < quantity is not false then
    v_ids := notifyq.find_matching(queue, filter);
    select array_agg(a.id order by a.rank, a.id) into v_ids
    from unnest(v_ids) as u (id)
    cross join lateral (
      select g.id, g.rank from notifyq.aging_message as g where g.id = u.id offset 0
    ) as a;
  end if;
  return v_ids;
end;
$$;

-- How much this session has read in the index, see index_reads().
create or replace function notifyq.aging_reads(is_durable boolean)
  returns bigint language plpgsql
as $$
declare
  v_index regclass := to_regclass(case
    when is_durable then 'messages.message_aging_idx' else 'notifyq.message_unlogged_aging_idx'
  end);
begin
  return pg_stat_get_xact_tuples_returned(v_index) + 10 * pg_stat_get_xact_blocks_fetched(v_index);
end;
$$;

-- As find_messages(), for a queue that has aging or had it until a moment ago. Where full scans
-- are much work, because of dead rows, the session remembers a position here as well, in the
-- setting notifyq.rank_<hash>: the time of the last full scan (ms since 1970), for how many ms none
-- is needed, and the rank and id of the last message claimed. What comes before that, of a larger
-- priority or of a transaction that was open, is found by the next full scan, after ten times what
-- the last one took.
create or replace function notifyq.find_aging(
  queue messages.queue, quantity integer, filter jsonpath, full_scan boolean
)
  returns bigint[] language plpgsql
  set enable_sort = off set extra_float_digits = 1
as $$
declare
  v_name text := queue.name;
  v_setting text := 'notifyq.rank_'
    || to_hex(hashtextextended(v_name || coalesce(chr(10) || filter::text, ''), 0));
  v_position text[] := nullif(current_setting(v_setting, true), '')::text[];
  v_now timestamptz := clock_timestamp();
  v_now_ms bigint := notifyq.epoch_ms(v_now);
  v_is_full boolean := full_scan
    or (v_now_ms between v_position[1]::bigint and v_position[1]::bigint + v_position[2]::bigint)
      is not true;
  v_after_rank double precision := double precision '-infinity';
  v_after bigint := -9223372036854775807;
  v_work bigint;
  v_ids bigint[];
  v_last double precision;
  v_needs_row boolean := filter is not null and notifyq.needs_row(filter);
begin
  -- Before the view, as in rebuild_aging(). From here on the view is that of the queue.
  lock table only messages.message in row share mode;
  if not exists (select from messages.queue as q where q.name = v_name and q.aging is not null) then
    return notifyq.find_messages(v_name, quantity, filter, full_scan);
  end if;
  if not v_is_full then
    v_after_rank := v_position[3]::double precision;
    v_after := v_position[4]::bigint;
  elsif exists (
    select from messages.message as m
    where m.queue = v_name
      and m.state = 'scheduled'
      and m.available_at <= v_now
  ) then
    perform notifyq.stage_queue(v_name, v_now, 10 * quantity);
  end if;
  if filter is not null and notifyq.is_indexed(filter) then
    v_ids := notifyq.find_aging_by_index(v_name, quantity, filter);
    return array(
      select m.id
      from unnest(v_ids) with ordinality as f (id, ordinal)
      join messages.message as m on m.id = f.id
        and (m.state = 'waiting' and m.queue = v_name) is true
      where m.id = any (v_ids)
      order by f.ordinal
      limit quantity
      for update of m skip locked
    );
  end if;
  v_work := -notifyq.aging_reads(queue.durable);
  select coalesce(array_agg(f.id order by f.rank, f.id), '{}'), max(f.rank) into v_ids, v_last
  from (
    select a.id, a.rank
    from notifyq.aging_message as a
    where a.queue = v_name
      and (a.rank, a.id) > (v_after_rank, v_after)
      and (
        find_aging.filter is null
        or case when v_needs_row then notifyq.matches(a.row, find_aging.filter)
          else a.message @@ find_aging.filter end
      )
    order by a.rank, a.id
    limit find_aging.quantity
    for update skip locked
  ) as f;
  if v_is_full then
    v_work := v_work + notifyq.aging_reads(queue.durable);
    if notifyq.full_scan_pause(v_work, v_now) is null then
      if v_position is not null then
        perform set_config(v_setting, '', false);
      end if;
      return v_ids;
    end if;
    v_position[1] := v_now_ms::text;
    v_position[2] := (10 * (notifyq.epoch_ms(clock_timestamp()) - v_now_ms))::text;
    -- If only dead rows were found: before what is published from now on, with priority 0.
    v_position[3] := extract(epoch from v_now)::text;
    v_position[4] := '0';
  end if;
  if v_ids <> '{}' then
    v_position[3] := v_last::text;
    v_position[4] := v_ids[cardinality(v_ids)]::text;
  end if;
  if v_is_full or v_ids <> '{}' then
    perform set_config(v_setting, v_position::text, false);
  end if;
  return v_ids;
end;
$$;

-- Claim from a queue with aging, in its order.
create or replace function notifyq.claim_aging(
  queue messages.queue, quantity integer, lock_duration interval, worker text, filter jsonpath,
  full_scan boolean, max_attempts integer
)
  returns setof messages.message language plpgsql
as $$
declare
  v_ids bigint[] := notifyq.find_aging(queue, quantity, filter, full_scan);
begin
  return query
  select l.*
  from unnest(v_ids) with ordinality as u (id, ordinal)
  join notifyq.lock_messages(
    v_ids, coalesce(claim_aging.lock_duration, queue.lock_duration), worker, max_attempts
  ) as l on l.id = u.id
  order by u.ordinal;
end;
$$;
