-- Lake: folders of exports, what to export, and commits.
--
-- raises: NQ003 invalid argument, NQ031 unknown lake, NQ903 not adopted, NQ032 lake in use, NQ033
-- lake changed, NQ904 foreign position

create or replace function notifyq.find_lake(id bigint)
  returns notifyq.lake language plpgsql stable
as $$
declare
  v_lake notifyq.lake;
begin
  select l.* into v_lake from notifyq.lake as l where l.id = find_lake.id;
  if not found then
    raise exception using
      errcode = 'NQ031',
      message = format('there is no lake %s', coalesce(id::text, 'null')),
      hint = 'messages.lakes() lists all lakes';
  end if;
  return v_lake;
end;
$$;

create or replace function notifyq.create_lake(location text)
  returns notifyq.lake language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_lake notifyq.lake;
begin
  if coalesce(location, '') = '' then
    perform notifyq.raise_invalid('a lake needs a location', 'give its folder or URI');
  end if;
  -- Everybody who sees lakes sees their locations: they must have no credentials.
  if location !~ '^(s3|gs|hdfs)://[^/@?#]+(/[^@?#]*)?$'
    and location !~ '^abfss://[^/@:?#]+@[^/@:?#]+(/[^@?#]*)?$'
    and location ~* e'^([a-z][a-z0-9+.-]+:([/\\\\]|$)|(abfss?|file|gs|hdfs|s3[an]?|wasbs?):)'
  then
    perform notifyq.raise_invalid(
      'a URI cannot be a lake, or has credentials',
      'give an absolute path, or s3://, gs://, abfss:// or hdfs:// without credentials'
    );
  end if;
  -- Two first exports at once: with a lake each, one would stay empty and hold up retention.
  lock table notifyq.lake in share row exclusive mode;
  select l.* into v_lake
  from notifyq.lake as l
  where l.location = create_lake.location
    and not exists (select from messages.lake_file as f where f.lake = l.id)
  order by l.id desc
  limit 1;
  if found then
    return v_lake;
  end if;
  insert into notifyq.lake as l (location, position)
  values (
    create_lake.location,
    -- A snapshot that sees nothing: rows that adopt() has taken over have transaction number 1.
    regexp_replace(messages.current_position(), '/.*$', '/1:1:')
  )
  returning l.* into v_lake;
  return v_lake;
end;
$$;
comment on function notifyq.create_lake is
  'Register a lake at a location, as `notifyq spark export` does: the absolute path of a folder, '
  'or a URI of s3, gs, abfss or hdfs. From now on no day of the archive is dropped before it has '
  'been exported there. One of that location that has no files yet is returned again. Raises NQ003 '
  'for an empty location, another URI, and one with credentials.';

create or replace function messages.forget_lake(id bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  delete from notifyq.lake as l where l.id = forget_lake.id;
  return found;
end;
$$;
comment on function messages.forget_lake is
  'Forget a lake and its contents: retention no longer waits for it. Its files stay. False: there '
  'was no such lake.';

create or replace function notifyq.note_lake(lake bigint, unreadable text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  update notifyq.lake as l
  set unreadable = left(note_lake.unreadable, 1000)
  where l.id = note_lake.lake
    and l.unreadable is distinct from left(note_lake.unreadable, 1000);
  return found;
end;
$$;
comment on function notifyq.note_lake is
  'Record why the files of a lake cannot be read, or null once they can, as `notifyq spark export` '
  'does. Retention drops no day while a lake cannot be read. False: nothing changed.';

create or replace function notifyq.lake_obstacle(lake notifyq.lake)
  returns text language plpgsql stable
as $$
begin
  if lake.unreadable is not null then
    return lake.unreadable;
  end if;
  perform notifyq.snapshot_of(lake.position);
  return null;
exception
  when others then
    return sqlerrm;
end;
$$;

create or replace function messages.lakes()
  returns setof messages.lake_report language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select l.id, l.token, l.location, l.created_at, l.exported_at, f.files, f.rows, f.bytes,
    notifyq.lake_obstacle(l)
  from notifyq.lake as l
  cross join lateral (
    select count(*) as files, coalesce(sum(i.rows), 0)::bigint as rows,
      coalesce(sum(i.bytes), 0)::bigint as bytes
    from messages.lake_file as i
    where i.lake = l.id and i.removed is null
  ) as f
  order by l.id;
$$;
comment on function messages.lakes is
  'All lakes: location, when the archive was last exported into each, files, rows and bytes, and '
  'the obstacle to the next export if there is one, such as a restore.';

create or replace function messages.lake_files(lake bigint, dataset text default 'archive')
  returns setof messages.lake_file language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select f.*
  from messages.lake_file as f
  where f.lake = lake_files.lake
    and f.dataset = lake_files.dataset
    and f.removed is null
  order by f.id;
$$;
comment on function messages.lake_files is
  'The files of a table of a lake; files that are not listed are not part of it.';

create or replace function notifyq.lake_batches(
  lake bigint,
  dataset text default 'archive',
  after bigint default 0
)
  returns setof notifyq.lake_batch language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select b.*
  from notifyq.lake_batch as b
  where b.lake = lake_batches.lake
    and b.dataset = lake_batches.dataset
    and b.id > lake_batches.after
  order by b.id;
$$;
comment on function notifyq.lake_batches is
  'The changes of a table of a lake after the batch of that number, in order.';

create or replace function notifyq.lake_tables(lake bigint)
  returns setof text language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select distinct b.dataset
  from notifyq.lake_batch as b
  where b.lake = lake_tables.lake
  order by b.dataset;
$$;
comment on function notifyq.lake_tables is 'The tables of a lake.';

create or replace function notifyq.lake_changes(
  batch bigint,
  out added messages.lake_file[],
  out removed messages.lake_file[]
)
  returns record language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select
    array(select f from messages.lake_file as f where f.batch = lake_changes.batch order by f.id),
    array(select f from messages.lake_file as f where f.removed = lake_changes.batch order by f.id);
$$;
comment on function notifyq.lake_changes is
  'The files that a batch of a lake added, and those that it replaced.';

-- An export is one transaction at `repeatable read`: it holds the lake, reads the window from the
-- position of the lake to its own snapshot, and calls commit_lake() last. A crash before that
-- leaves files without a row, and the lake unchanged.

create or replace function notifyq.hold_lake(lake bigint)
  returns notifyq.lake language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_class constant integer := 1852926059;
  v_holder text;
begin
  -- A row lock would assign a number to this transaction, which may last for hours, and readers of
  -- streams would wait for it.
  perform notifyq.find_lake(hold_lake.lake);
  if not pg_try_advisory_xact_lock(v_class, hold_lake.lake::integer) then
    select format(' by %s, process %s', a.usename, a.pid) into v_holder
    from pg_locks as k
    join pg_stat_activity as a on a.pid = k.pid
    where k.locktype = 'advisory'
      and k.classid::bigint = v_class
      and k.objid::bigint = hold_lake.lake
      and k.objsubid = 2
      and k.granted
      and k.database = (select d.oid from pg_database as d where d.datname = current_database())
    limit 1;
    raise exception using
      errcode = 'NQ032',
      message = format('lake %s is being written%s', hold_lake.lake, v_holder),
      hint = 'try again when that has ended';
  end if;
  return notifyq.find_lake(hold_lake.lake);
end;
$$;
comment on function notifyq.hold_lake is
  'Lock a lake against other writers until the end of this transaction, and return it. Raises '
  'NQ031 for an unknown lake, and NQ032 at once if another session holds it.';

-- The rows of one day in the window. Where low sees nothing of the day, it is read whole, without a
-- count. Else up to `most` rows are counted; more are reported by their blocks. Rows are written in
-- the order of time: new ones are in the last blocks.
create or replace function notifyq.read_archive_part(
  relation text,
  day date,
  low pg_snapshot,
  high pg_snapshot,
  most integer
)
  returns notifyq.archive_part language plpgsql stable
  set enable_seqscan = off set jit = off set timezone = 'UTC'
as $$
declare
  v_late xid8[] := array(
    select x.xid from pg_snapshot_xip(low) as x (xid) where pg_visible_in_snapshot(x.xid, high)
  );
  v_part notifyq.archive_part;
  v_first xid8;
begin
  v_part.day := day;
  execute format('select a.xid from notifyq.%I as a order by a.xid limit 1', relation)
  into v_first;
  if v_first is null then
    v_part.rows := 0;
    return v_part;
  end if;
  if v_first >= pg_snapshot_xmax(low) then
    v_part.first_block := 0;
    v_part.until_block := pg_relation_size(format('notifyq.%I', relation)::regclass)
      / current_setting('block_size')::bigint;
    return v_part;
  end if;
  execute format(
    'select count(*) from ('
    '  (select from notifyq.%I as a where a.xid >= %L and a.xid < %L and a.xid <> all (%L) '
    '  and a.archived_at >= %L and a.archived_at < %L limit %L) '
    '  union all '
    '  (select from notifyq.%I as a where a.xid = any (%L) '
    '  and a.archived_at >= %L and a.archived_at < %L limit %L)'
    ') as f',
    relation, pg_snapshot_xmax(low), pg_snapshot_xmax(high), array(select pg_snapshot_xip(high)),
    day::timestamptz, (day + 1)::timestamptz, most::bigint + 1,
    relation, v_late, day::timestamptz, (day + 1)::timestamptz, most::bigint + 1
  ) into v_part.rows;
  if v_part.rows <= most then
    return v_part;
  end if;
  execute format(
    'select (min(a.ctid)::text::point)[0], (max(a.ctid)::text::point)[0] + 1 '
    'from notifyq.%I as a where a.xid >= %L and a.xid < %L or a.xid = any (%L)',
    relation, pg_snapshot_xmax(low), pg_snapshot_xmax(high), v_late
  ) into v_part.first_block, v_part.until_block;
  v_part.rows := null;
  return v_part;
end;
$$;

create or replace function notifyq.archive_parts(
  low pg_snapshot,
  high pg_snapshot,
  most integer default 50000
)
  returns setof notifyq.archive_part language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set timezone = 'UTC'
as $$
begin
  perform notifyq.check_quantity(archive_parts.most, 2147483647);
  return query
  select p.*
  from (
    select p.name, p.day from notifyq.day_partition as p where p.parent = 'message_archive'
    union all
    select distinct 'message_archive_default', a.archived_at::date
    from notifyq.message_archive_default as a
  ) as d
  cross join lateral notifyq.read_archive_part(
    d.name, d.day, archive_parts.low, archive_parts.high, archive_parts.most
  ) as p
  where p.rows is null or p.rows > 0
  order by p.day;
end;
$$;
comment on function notifyq.archive_parts is
  'The days of the archive that may have rows that the snapshot high sees and low does not. Up to '
  'most rows of a day are counted; where there are more, or where low sees nothing of the day, '
  'rows is null, and they are in the blocks of its partition from first_block up to, and not '
  'including, until_block.';

create or replace function notifyq.commit_lake(
  lake bigint,
  dataset text,
  files jsonb,
  key text default null,
  removed bigint[] default '{}',
  "position" text default null
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_lake notifyq.lake := notifyq.find_lake(commit_lake.lake);
  v_batch bigint;
  v_removed bigint;
begin
  if dataset !~ '^[a-z][a-z0-9_]{0,62}$' then
    perform notifyq.raise_invalid(
      format('%L is not a valid name for a table of a lake', left(dataset, 100)),
      'use small letters, digits and underscores'
    );
  end if;
  -- Batches are numbered in the order of their commits: each is read after all before it.
  perform pg_advisory_xact_lock(hashtextextended(commit_lake.lake::text, 7305427013));
  if position is not null and current_setting('transaction_isolation') = 'read committed' then
    perform notifyq.raise_invalid(
      'a position needs one snapshot for the whole transaction',
      'begin the transaction at isolation level repeatable read'
    );
  end if;
  if exists (
    select from notifyq.lake_batch as b
    where b.lake = v_lake.id and b.dataset = commit_lake.dataset and b.key = commit_lake.key
  ) then
    return null;
  end if;
  if position is not null then
    update notifyq.lake as l
    set position = commit_lake.position, exported_at = clock_timestamp()
    where l.id = v_lake.id;
  end if;
  insert into notifyq.lake_batch as b (lake, dataset, key, low, high, files, removed, rows, bytes)
  select v_lake.id, commit_lake.dataset, commit_lake.key,
    case when commit_lake.position is not null then notifyq.snapshot_of(v_lake.position) end,
    case when commit_lake.position is not null then notifyq.snapshot_of(commit_lake.position) end,
    count(*), cardinality(commit_lake.removed), coalesce(sum(e.rows), 0), coalesce(sum(e.bytes), 0)
  from jsonb_populate_recordset(null::notifyq.lake_entry, commit_lake.files) as e
  returning b.id into v_batch;
  insert into messages.lake_file (
    lake, dataset, batch, path, day, queue, rows, bytes, checksum, first_id, last_id, first_at,
    last_at
  )
  select v_lake.id, commit_lake.dataset, v_batch, e.path, e.day, e.queue, e.rows, e.bytes,
    e.checksum, e.first_id, e.last_id, e.first_at, e.last_at
  from jsonb_populate_recordset(null::notifyq.lake_entry, commit_lake.files) as e;
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
      message = format('lake %s was changed by another session', commit_lake.lake),
      hint = 'nothing was written; try again';
end;
$$;
comment on function notifyq.commit_lake is
  'Add files to a table of a lake, an array of objects like notifyq.lake_entry, and take out those '
  'that they replace (the ids removed), in one step. position: the lake is exported up to there. '
  'Returns the number of the batch, or null, and does nothing, where the lake has a batch with '
  'this key. Raises NQ003 for a wrong name, NQ031 for an unknown lake, and NQ033 where another '
  'session has replaced files to be removed.';

create or replace function notifyq.lake_stream_of(lake bigint, dataset text)
  returns setof notifyq.lake_stream language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select s.*
  from notifyq.lake_stream as s
  where s.lake = lake_stream_of.lake and s.dataset = lake_stream_of.dataset;
$$;
comment on function notifyq.lake_stream_of is
  'The stream whose events a table of a lake has, and up to where; no row: the table has none.';

create or replace function notifyq.advance_lake(
  lake bigint,
  dataset text,
  stream text,
  before jsonb,
  after jsonb
)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.find_lake(advance_lake.lake),
    notifyq.check_given('dataset', advance_lake.dataset is not null),
    notifyq.check_given('stream', advance_lake.stream is not null),
    notifyq.check_given('after', advance_lake.after is not null);
  if advance_lake.before is null then
    insert into notifyq.lake_stream as s (lake, dataset, stream, position)
    values (advance_lake.lake, advance_lake.dataset, advance_lake.stream, advance_lake.after)
    on conflict on constraint lake_stream_lake_dataset_pk do nothing;
  else
    update notifyq.lake_stream as s
    set position = advance_lake.after, moved_at = clock_timestamp()
    where s.lake = advance_lake.lake
      and s.dataset = advance_lake.dataset
      and s.stream = advance_lake.stream
      and s.position = advance_lake.before;
  end if;
  if not found then
    raise exception using
      errcode = 'NQ033',
      message = format(
        'table %s of lake %s was written by another session', advance_lake.dataset,
        advance_lake.lake
      ),
      hint = 'nothing was written; let one run carry the events of a stream';
  end if;
end;
$$;
comment on function notifyq.advance_lake is
  'Move the position of a stream in a table of a lake, in the transaction that adds its files. '
  'Raises NQ031 for an unknown lake, and NQ033 where the position is not the one before; null: the '
  'table has none.';

create or replace function notifyq.lake_removed(lake bigint)
  returns setof messages.lake_file language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select f.*
  from messages.lake_file as f
  where f.lake = lake_removed.lake
    and f.removed is not null
  order by f.id;
$$;
comment on function notifyq.lake_removed is
  'The files of all tables of a lake that were replaced and may still exist.';

create or replace function notifyq.forget_files(lake bigint, files bigint[])
  returns integer language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_forgotten integer;
begin
  delete from messages.lake_file as f
  where f.lake = forget_files.lake
    and f.id = any (forget_files.files)
    and f.removed is not null;
  get diagnostics v_forgotten = row_count;
  -- A writer may repeat its last batch: the key of that one is kept.
  delete from notifyq.lake_batch as b
  where b.lake = forget_files.lake
    and b.committed_at < clock_timestamp() - interval '7 days'
    and b.id < (
      select max(l.id) from notifyq.lake_batch as l
      where l.lake = b.lake and l.dataset = b.dataset
    )
    and not exists (
      select from messages.lake_file as f where f.batch = b.id or f.removed = b.id
    )
    -- A roll-up that is behind reports that the files of a batch are gone.
    and not exists (
      select from notifyq.rollup_progress as p where p.lake = b.lake and p.batch < b.id
    );
  return v_forgotten;
end;
$$;
comment on function notifyq.forget_files is
  'Forget replaced files once they are deleted, and batches older than a week without files, if '
  'rolled up. Returns how many files were forgotten.';
