-- Commit: files become part of a lake all at once, together with how far it has come.
--
-- owns:    nothing
-- writes:  messages.lake, messages.lake_batch, messages.lake_file
-- calls:   messages._lake, messages.snapshot_of, messages._invalid
-- raises:  NQ003 invalid argument, NQ031 unknown lake, NQ033 lake changed, NQ904 foreign position

create or replace function messages.commit_lake(
  lake bigint,
  dataset text,
  files jsonb,
  key text default null,
  removed bigint[] default '{}',
  place text default null
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_lake messages.lake := messages._lake(commit_lake.lake);
  v_batch bigint;
  v_removed bigint;
begin
  if dataset !~ '^[a-z][a-z0-9_]{0,62}$' then
    perform messages._invalid(
      format('%L is no name of a table of a lake', left(dataset, 100)),
      'take small letters, digits and underscores'
    );
  end if;
  if place is not null and current_setting('transaction_isolation') = 'read committed' then
    perform messages._invalid(
      'a place is that of a snapshot', 'begin the transaction at isolation level repeatable read'
    );
  end if;
  if exists (
    select from messages.lake_batch as b
    where b.lake = v_lake.id and b.dataset = commit_lake.dataset and b.key = commit_lake.key
  ) then
    return null;
  end if;
  if place is not null then
    update messages.lake as l
    set place = commit_lake.place, exported_at = clock_timestamp()
    where l.id = v_lake.id;
  end if;
  insert into messages.lake_batch as b (lake, dataset, key, low, high, files, removed, rows, bytes)
  select v_lake.id, commit_lake.dataset, commit_lake.key,
    case when commit_lake.place is not null then messages.snapshot_of(v_lake.place) end,
    case when commit_lake.place is not null then messages.snapshot_of(commit_lake.place) end,
    count(*), cardinality(commit_lake.removed), coalesce(sum(e.rows), 0), coalesce(sum(e.bytes), 0)
  from jsonb_populate_recordset(null::messages.lake_entry, commit_lake.files) as e
  returning b.id into v_batch;
  insert into messages.lake_file (
    lake, dataset, batch, path, day, queue, rows, bytes, checksum, first_id, last_id, first_at,
    last_at
  )
  select v_lake.id, commit_lake.dataset, v_batch, e.path, e.day, e.queue, e.rows, e.bytes,
    e.checksum, e.first_id, e.last_id, e.first_at, e.last_at
  from jsonb_populate_recordset(null::messages.lake_entry, commit_lake.files) as e;
  update messages.lake_file as f
  set removed = v_batch, removed_at = clock_timestamp()
  where f.id = any (commit_lake.removed)
    and f.lake = v_lake.id
    and f.dataset = commit_lake.dataset
    and f.removed is null;
  get diagnostics v_removed = row_count;
  if v_removed <> cardinality(commit_lake.removed) then
    raise serialization_failure;
  end if;
  return v_batch;
exception
  when serialization_failure then
    raise exception using
      errcode = 'NQ033',
      message = 'the lake was changed by another session',
      hint = 'nothing was written; try again';
end;
$$;
comment on function messages.commit_lake(bigint, text, jsonb, text, bigint[], text) is
  'Make files part of a table of a lake, all at once, and take out those that they replace (the '
  'numbers removed). The files are an array of objects as messages.lake_entry. With a place the '
  'lake is exported up to there. Returns the number of the batch, or null where a batch of this '
  'key was there: nothing is done then. Raises NQ003 for a wrong name, NQ031 for an unknown lake, '
  'and NQ033 if files to be removed are gone, as another has replaced them.';

create or replace function messages.lake_removed(lake bigint)
  returns setof messages.lake_file
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select f.*
  from messages.lake_file as f
  where f.lake = lake_removed.lake
    and f.removed is not null
  order by f.id;
end;
$$;
comment on function messages.lake_removed(bigint) is
  'The files of a lake, of all of its tables, that others have replaced and that may be there yet.';

create or replace function messages.forget_files(lake bigint, files bigint[])
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_forgotten integer;
begin
  delete from messages.lake_file as f
  where f.lake = forget_files.lake
    and f.id = any (forget_files.files)
    and f.removed is not null;
  get diagnostics v_forgotten = row_count;
  -- Of what has no files any more, a writer can but repeat what came last.
  delete from messages.lake_batch as b
  where b.lake = forget_files.lake
    and b.committed_at < clock_timestamp() - interval '7 days'
    and b.id < (
      select max(l.id) from messages.lake_batch as l
      where l.lake = b.lake and l.dataset = b.dataset
    )
    and not exists (
      select from messages.lake_file as f where f.batch = b.id or f.removed = b.id
    );
  return v_forgotten;
end;
$$;
comment on function messages.forget_files(bigint, bigint[]) is
  'Forget files that others have replaced, once they are deleted, and what is known of changes of '
  'a week ago that have no files any more. Returns how many files were forgotten.';
