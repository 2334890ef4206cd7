-- Loads: which of their rows cannot be published, forgetting them, and their upkeep.
--
-- owns:    nothing
-- writes:  messages.load, messages.load_attempt, messages.load_row
-- calls:   messages._check_load_owner, messages._check_quantity, messages._publish_staged
-- raises:  NQ003 invalid argument, NQ035 load of another role

-- Why these rows cannot be published, null where they can: it is tried, and undone.
create or replace function messages._try_staged(attempt bigint, first bigint, last bigint)
  returns text
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  -- Others may try theirs at the same time.
  v_trial bigint := (random() * 9e18)::bigint;
begin
  begin
    insert into messages.load_row (
      attempt, position, available_at, delay, priority, max_attempts, queue, message, type, key,
      headers, dedup_key
    )
    select
      v_trial, r.position, r.available_at, r.delay, r.priority, r.max_attempts, r.queue, r.message,
      r.type, r.key, r.headers, r.dedup_key
    from messages.load_row as r
    where r.attempt = _try_staged.attempt
      and r.position between _try_staged.first and _try_staged.last;
    perform messages._publish_staged(array[v_trial]);
    raise assert_failure;
  exception
    when assert_failure then
      return null;
    -- What is wrong with the row itself. Anything else ends the search.
    when sqlstate 'NQ001' or sqlstate 'NQ003' or sqlstate 'NQ008' or sqlstate 'NQ030'
      or data_exception or datatype_mismatch or integrity_constraint_violation
    then
      return sqlerrm;
  end;
end;
$$;

create or replace function messages.load_rejects(
  load text,
  attempts bigint[],
  quantity integer default 1000000
)
  returns setof messages.load_reject
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_attempt bigint;
  v_positions bigint[];
  v_position bigint;
  v_reason text;
  v_found integer := 0;
  v_row messages.load_row;
begin
  perform messages._check_quantity(load_rejects.quantity, 10000000);
  perform messages._check_load_owner('load', l.name, l.owner)
  from messages.load as l
  where l.name = load_rejects.load;
  for v_attempt in
    select t.id
    from unnest(load_rejects.attempts) with ordinality as u (id, number)
    join messages.load_attempt as t on t.id = u.id and t.load = load_rejects.load
    order by u.number
  loop
    v_position := -1;
    loop
      v_positions := array(
        select r.position from messages.load_row as r
        where r.attempt = v_attempt and r.position > v_position
        order by r.position
        limit 100
      );
      exit when v_positions = '{}';
      v_position := v_positions[cardinality(v_positions)];
      continue when messages._try_staged(v_attempt, v_positions[1], v_position) is null;
      for v_row in
        select r.* from messages.load_row as r
        where r.attempt = v_attempt
          and r.position between v_positions[1] and v_position
        order by r.position
      loop
        v_reason := messages._try_staged(v_attempt, v_row.position, v_row.position);
        continue when v_reason is null;
        delete from messages.load_row as r
        where r.attempt = v_attempt
          and r.position = v_row.position;
        return next (
          v_attempt, v_row.position, v_row.queue, v_row.message, v_reason
        )::messages.load_reject;
        v_found := v_found + 1;
        if v_found >= load_rejects.quantity then
          return;
        end if;
      end loop;
    end loop;
  end loop;
end;
$$;
comment on function messages.load_rejects(text, bigint[], integer) is
  'Take out up to quantity of the rows that were staged under these numbers and cannot be '
  'published, and return them with the reason: commit what is left, or roll back to only see '
  'them. It takes about as long as the publication. A queue that is full or must not be '
  'published into is no fault of a row: that is raised.';

create or replace function messages.drop_load(name text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_load_owner('load', l.name, l.owner)
  from messages.load as l
  where l.name = drop_load.name;
  delete from messages.load_attempt as t where t.load = drop_load.name;
  delete from messages.load as l where l.name = drop_load.name;
  return found;
end;
$$;
comment on function messages.drop_load(text) is
  'Forget a load: what it has staged goes, what it has published stays, and its name may be used '
  'again. False: there is none. Raises NQ035 for the load of another role.';

-- Remove up to quantity staged rows that no open load has.
create or replace function messages._sweep_loads(quantity bigint)
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set enable_sort = off
  set jit = off
  set lock_timeout = '50ms'
as $$
declare
  v_day timestamptz := clock_timestamp() - interval '1 day';
  v_attempt bigint := -9223372036854775808;
  v_removed bigint := 0::bigint;
  v_rows bigint;
begin
  delete from messages.load_attempt as t
  where t.begun_at < v_day
    and not exists (
      select from messages.load_attempt as o where o.load = t.load and o.begun_at >= v_day
    );
  if not exists (select from messages.load_row as r order by r.attempt limit 1) then
    return 0::bigint;
  end if;
  if not exists (select from messages.load_attempt) then
    -- All at once, if nobody begins one meanwhile.
    begin
      lock table messages.load_attempt in share row exclusive mode;
      if not exists (select from messages.load_attempt) then
        truncate messages.load_row;
        return quantity;
      end if;
    exception
      when lock_not_available or deadlock_detected then null;
    end;
  end if;
  -- From one attempt to the next in the index.
  loop
    v_attempt := (
      select r.attempt from messages.load_row as r
      where r.attempt > v_attempt
      order by r.attempt
      limit 1
    );
    exit when v_attempt is null or v_removed >= quantity;
    continue when exists (select from messages.load_attempt as t where t.id = v_attempt);
    delete from messages.load_row as r
    where r.attempt = v_attempt
      and r.position = any (array(
        select o.position from messages.load_row as o
        where o.attempt = v_attempt
        order by o.position
        limit _sweep_loads.quantity - v_removed
      ));
    get diagnostics v_rows = row_count;
    v_removed := v_removed + v_rows;
  end loop;
  return v_removed;
end;
$$;
