-- Lakes: which folders the archive is exported into, and what is in them.
--
-- owns:    nothing
-- writes:  messages.lake
-- calls:   messages.current_position, messages.snapshot_of, messages._invalid
-- raises:  NQ003 invalid argument, NQ031 unknown lake, NQ903 not adopted

create or replace function messages._lake(id bigint)
  returns messages.lake
  language plpgsql
  stable
as $$
declare
  v_lake messages.lake;
begin
  select l.* into v_lake from messages.lake as l where l.id = _lake.id;
  if not found then
    raise exception using
      errcode = 'NQ031',
      message = format('there is no lake %s', coalesce(id::text, 'null')),
      hint = 'see messages.lakes()';
  end if;
  return v_lake;
end;
$$;

create or replace function messages.create_lake(location text)
  returns messages.lake
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_lake messages.lake;
begin
  if coalesce(location, '') = '' then
    perform messages._invalid('a lake needs a location', 'give the path of its folder');
  end if;
  if location ~* '^([a-z][a-z0-9+.-]+:([/\\]|$)|(abfss?|file|gs|hdfs|s3[an]?|wasbs?):)' then
    perform messages._invalid(
      format('%s is a URI', left(location, 200)),
      'give the path of a folder in a mounted file system'
    );
  end if;
  insert into messages.lake as l (location, place)
  values (
    create_lake.location,
    -- Sees nothing at all: what adopt() takes over has the number 1.
    regexp_replace(messages.current_position(), '/.*$', '/1:1:')
  )
  returning l.* into v_lake;
  return v_lake;
end;
$$;
comment on function messages.create_lake(text) is
  'Begin a lake in the folder location, which `notifyq spark export` does. From now on no day of '
  'the archive is dropped before it was exported there. Raises NQ003 for an empty location and '
  'for a URI such as s3://bucket.';

create or replace function messages.forget_lake(id bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  delete from messages.lake as l where l.id = forget_lake.id;
  return found;
end;
$$;
comment on function messages.forget_lake(bigint) is
  'Forget a lake and what is in it: retention no longer waits for it. Its files stay where they '
  'are. False: there was no such lake.';

create or replace function messages.note_lake(lake bigint, unreadable text)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  update messages.lake as l
  set unreadable = left(note_lake.unreadable, 1000)
  where l.id = note_lake.lake
    and l.unreadable is distinct from left(note_lake.unreadable, 1000);
  return found;
end;
$$;
comment on function messages.note_lake(bigint, text) is
  'Record why the files of a lake cannot be read, or null once they can, which `notifyq spark '
  'export` does. Retention drops no day while a lake cannot be read. False: nothing changed.';

create or replace function messages._lake_obstacle(lake messages.lake)
  returns text
  language plpgsql
  stable
as $$
begin
  if lake.unreadable is not null then
    return lake.unreadable;
  end if;
  perform messages.snapshot_of(lake.place);
  return null;
exception
  when others then
    return sqlerrm;
end;
$$;

create or replace function messages.lakes()
  returns setof messages.lake_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select l.id, l.token, l.location, l.created_at, l.exported_at, f.files, f.rows, f.bytes,
    messages._lake_obstacle(l)
  from messages.lake as l
  cross join lateral (
    select count(*) as files, coalesce(sum(i.rows), 0)::bigint as rows,
      coalesce(sum(i.bytes), 0)::bigint as bytes
    from messages.lake_file as i
    where i.lake = l.id and i.removed is null
  ) as f
  order by l.id;
end;
$$;
comment on function messages.lakes() is
  'All lakes: where they are, when the archive was last exported into each, how much is there, and '
  'the obstacle to a further export if there is one, such as a restore.';

create or replace function messages.lake_files(lake bigint, dataset text default 'archive')
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
  where f.lake = lake_files.lake
    and f.dataset = lake_files.dataset
    and f.removed is null
  order by f.id;
end;
$$;
comment on function messages.lake_files(bigint, text) is
  'The files of a table of a lake: all that a reader may read, and nothing else.';

create or replace function messages.lake_batches(
  lake bigint,
  dataset text default 'archive',
  after bigint default 0
)
  returns setof messages.lake_batch
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return query
  select b.*
  from messages.lake_batch as b
  where b.lake = lake_batches.lake
    and b.dataset = lake_batches.dataset
    and b.id > lake_batches.after
  order by b.id;
end;
$$;
comment on function messages.lake_batches(bigint, text, bigint) is
  'The changes of a table of a lake after the batch of that number, in their order.';

create or replace function messages.lake_changes(
  batch bigint,
  out added messages.lake_file[],
  out removed messages.lake_file[]
)
  returns record
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  added := array(
    select f from messages.lake_file as f where f.batch = lake_changes.batch order by f.id
  );
  removed := array(
    select f from messages.lake_file as f where f.removed = lake_changes.batch order by f.id
  );
end;
$$;
comment on function messages.lake_changes(bigint) is
  'The files that came with a batch of a lake, and those that they have replaced.';
