-- Roll up: take over what was counted in a lake, each batch of it once.
--
-- The pipeline counts outside of the server; its counts are added here, in one transaction with the
-- note of how far it came.
--
-- owns:    nothing
-- writes:  messages.rollup, messages.rollup_error, messages.rollup_worker,
--          messages.rollup_progress
-- calls:   messages._lake, messages._invalid, messages._add_rollup, messages._add_rollup_errors,
--          messages._add_rollup_workers, messages._fold_rollup
-- raises:  NQ003 invalid argument, NQ031 unknown lake

-- Bounded: some of the oldest hours with each run. The caller holds the progress of the lake.
create or replace function messages._fold_rollup(lake bigint, most integer)
  returns integer
  language plpgsql
as $$
declare
  v_limit timestamptz := date_trunc('day', clock_timestamp() - interval '35 days', 'UTC');
  v_hour timestamptz;
  v_folded integer := 0;
  v_rollup messages.rollup[];
  v_errors messages.rollup_error[];
  v_workers messages.rollup_worker[];
begin
  -- One hour at a time: in it each key is there once, as one insert wants it.
  for v_hour in
    select distinct r.bucket_at
    from messages.rollup as r
    where r.lake = _fold_rollup.lake and r.span = 'hour' and r.bucket_at < v_limit
    order by r.bucket_at
    limit most
  loop
    with gone as (
      delete from messages.rollup as r
      where r.lake = _fold_rollup.lake and r.span = 'hour' and r.bucket_at = v_hour
      returning r.*
    )
    select array_agg(row(g.*)::messages.rollup) into v_rollup from gone as g;
    with gone as (
      delete from messages.rollup_error as e
      where e.lake = _fold_rollup.lake and e.span = 'hour' and e.bucket_at = v_hour
      returning e.*
    )
    select coalesce(array_agg(row(g.*)::messages.rollup_error), '{}') into v_errors from gone as g;
    with gone as (
      delete from messages.rollup_worker as w
      where w.lake = _fold_rollup.lake and w.span = 'hour' and w.bucket_at = v_hour
      returning w.*
    )
    select coalesce(array_agg(row(g.*)::messages.rollup_worker), '{}')
    into v_workers
    from gone as g;
    perform messages._add_rollup(array(
      select jsonb_populate_record(r, d.it) from unnest(v_rollup) as r
      cross join (
        select jsonb_build_object('span', 'day', 'bucket_at', date_trunc('day', v_hour, 'UTC'))
      ) as d (it)
    ));
    perform messages._add_rollup_errors(array(
      select jsonb_populate_record(e, d.it) from unnest(v_errors) as e
      cross join (
        select jsonb_build_object('span', 'day', 'bucket_at', date_trunc('day', v_hour, 'UTC'))
      ) as d (it)
    ));
    perform messages._add_rollup_workers(array(
      select jsonb_populate_record(w, d.it) from unnest(v_workers) as w
      cross join (
        select jsonb_build_object('span', 'day', 'bucket_at', date_trunc('day', v_hour, 'UTC'))
      ) as d (it)
    ));
    v_folded := v_folded + 1;
  end loop;
  return v_folded;
end;
$$;

create or replace function messages.roll_up(lake bigint, after bigint, upto bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_lake messages.lake := messages._lake(lake);
  v_batch bigint;
begin
  if after is null or upto is null or upto <= after then
    perform messages._invalid('a roll-up goes from one batch to a later one', 'see rolled_up()');
  end if;
  insert into messages.rollup_progress as p (lake, batch)
  values (v_lake.id, 0)
  on conflict on constraint rollup_progress_lake_pk do nothing;
  select p.batch into v_batch
  from messages.rollup_progress as p
  where p.lake = v_lake.id
  for update;
  if v_batch <> roll_up.after then
    return false;
  end if;
  update messages.rollup_progress as p
  set batch = roll_up.upto, rolled_at = clock_timestamp(), xid = pg_current_xact_id()
  where p.lake = v_lake.id;
  perform messages._fold_rollup(v_lake.id, 200);
  return true;
end;
$$;
comment on function messages.roll_up(bigint, bigint, bigint) is
  'Begin to add the counts of the batches of a lake behind after, up to upto; add_rollup() in the '
  'same transaction adds them. False: the lake is rolled up to another batch than after, as '
  'somebody else did it, or an earlier try of the same was committed. Raises NQ003 for batches '
  'that are in no order, and NQ031.';

create or replace function messages.rolled_up(lake bigint)
  returns bigint
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return coalesce(
    (select p.batch from messages.rollup_progress as p where p.lake = rolled_up.lake), 0
  );
end;
$$;
comment on function messages.rolled_up(bigint) is
  'The last batch of a lake that is rolled up; 0: none is.';

create or replace function messages.add_rollup(
  lake bigint,
  rollup jsonb,
  errors jsonb default '[]',
  workers jsonb default '[]'
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_own jsonb := jsonb_build_object('lake', lake, 'span', 'hour');
  v_finished bigint;
begin
  if not exists (
    select from messages.rollup_progress as p
    where p.lake = add_rollup.lake and p.xid = pg_current_xact_id_if_assigned()
  ) then
    perform messages._invalid(
      'counts are added in a transaction that has called roll_up()',
      'call it first, and leave it if it returns false'
    );
  end if;
  v_finished := messages._add_rollup(
    array(
      select jsonb_populate_record(null::messages.rollup, r.value || v_own)
      from jsonb_array_elements(rollup) as r (value)
    )
  );
  perform messages._add_rollup_errors(
    array(
      select jsonb_populate_record(null::messages.rollup_error, r.value || v_own)
      from jsonb_array_elements(errors) as r (value)
    )
  );
  perform messages._add_rollup_workers(
    array(
      select jsonb_populate_record(null::messages.rollup_worker, r.value || v_own)
      from jsonb_array_elements(workers) as r (value)
    )
  );
  update messages.rollup_progress as p
  set messages = p.messages + v_finished
  where p.lake = add_rollup.lake;
  return v_finished;
end;
$$;
comment on function messages.add_rollup(bigint, jsonb, jsonb, jsonb) is
  'Add counts of hours to messages.rollup, rollup_error and rollup_worker: arrays of objects with '
  'the columns of these tables, each key of a table once in a call. Return how many messages they '
  'are of. Raises NQ003 outside of a transaction that has called roll_up().';

create or replace function messages.forget_rollup(lake bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  -- First, as it is what a roll-up that runs now holds.
  delete from messages.rollup_progress as p where p.lake = forget_rollup.lake;
  if not found then
    return false;
  end if;
  delete from messages.rollup as r where r.lake = forget_rollup.lake;
  delete from messages.rollup_error as e where e.lake = forget_rollup.lake;
  delete from messages.rollup_worker as w where w.lake = forget_rollup.lake;
  return true;
end;
$$;
comment on function messages.forget_rollup(bigint) is
  'Forget what is rolled up of a lake, so that the next roll-up counts all of it. False: nothing '
  'was.';
