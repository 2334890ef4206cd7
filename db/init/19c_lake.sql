-- Lake: what has been exported into which folder, file by file; readers see what is recorded here.
--
-- owns:    messages.lake, messages.lake_batch, messages.lake_file, messages.lake_prune,
--          types lake_entry, lake_report, archive_hash and archive_part
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.lake (
  id bigint generated always as identity,
  token uuid not null default gen_random_uuid(),
  location text not null,
  place text not null,
  created_at timestamptz not null default clock_timestamp(),
  exported_at timestamptz not null default clock_timestamp(),
  unreadable text,
  constraint lake_id_pk primary key (id),
  constraint lake_token_uq unique (token)
);

comment on table messages.lake is
  'One row for each lake that the archive is exported into; retention waits for each of them.';
comment on column messages.lake.token is 'What the folder says of itself: how the two are matched.';
comment on column messages.lake.location is 'The folder, as it was called last.';
comment on column messages.lake.place is
  'How far it is, as messages.snapshot_of() takes it: what the snapshot sees has been exported.';
comment on column messages.lake.created_at is 'When it was begun.';
comment on column messages.lake.exported_at is 'When the archive was last exported into it.';
comment on column messages.lake.unreadable is
  'Why the last export could not read it; retention waits until one can. Null: it could.';

create table if not exists messages.lake_batch (
  id bigint generated always as identity,
  lake bigint not null,
  dataset text not null,
  key text,
  low pg_snapshot,
  high pg_snapshot,
  committed_at timestamptz not null default clock_timestamp(),
  files bigint not null default 0,
  removed bigint not null default 0,
  rows bigint not null default 0,
  bytes bigint not null default 0,
  constraint lake_batch_id_pk primary key (id),
  constraint lake_batch_lake_dataset_key_uq unique (lake, dataset, key),
  constraint lake_batch_lake_fk foreign key (lake) references messages.lake (id) on delete cascade
);

create index if not exists lake_batch_lake_dataset_id_idx
  on messages.lake_batch (lake, dataset, id);

comment on table messages.lake_batch is
  'One row for each change of a lake, written with its files: there is all of it, or nothing.';
comment on column messages.lake_batch.lake is 'Number of the lake.';
comment on column messages.lake_batch.dataset is 'Which table of the lake: a folder in it.';
comment on column messages.lake_batch.key is
  'What the writer calls it: the second batch of a key is refused. Null: it has no name.';
comment on column messages.lake_batch.low is 'Of an export: what was in the lake before.';
comment on column messages.lake_batch.high is 'Of an export: what is in the lake with it.';
comment on column messages.lake_batch.committed_at is 'When it became visible.';
comment on column messages.lake_batch.files is 'How many files came.';
comment on column messages.lake_batch.removed is 'How many files others have replaced.';
comment on column messages.lake_batch.rows is 'Rows of the files that came.';
comment on column messages.lake_batch.bytes is 'Bytes of the files that came.';

create table if not exists messages.lake_file (
  id bigint generated always as identity,
  lake bigint not null,
  dataset text not null,
  batch bigint not null,
  path text not null,
  day date,
  queue text,
  rows bigint not null,
  bytes bigint not null,
  checksum text not null,
  first_id bigint,
  last_id bigint,
  first_at timestamptz,
  last_at timestamptz,
  removed bigint,
  removed_at timestamptz,
  constraint lake_file_id_pk primary key (id),
  constraint lake_file_lake_path_uq unique (lake, path),
  -- Files that are not needed any more are deleted by their path.
  constraint lake_file_path_ck check (path !~ '(^/|(^|/)\.\.(/|$))'),
  constraint lake_file_batch_fk foreign key (batch)
    references messages.lake_batch (id) on delete cascade,
  constraint lake_file_removed_fk foreign key (removed)
    references messages.lake_batch (id) on delete cascade
);

create index if not exists lake_file_batch_idx on messages.lake_file (batch);
create index if not exists lake_file_removed_idx on messages.lake_file (removed);
create index if not exists lake_file_lake_dataset_day_idx
  on messages.lake_file (lake, dataset, day);

comment on table messages.lake_file is 'One row for each file of a lake; what is not here is none.';
comment on column messages.lake_file.lake is 'Number of the lake.';
comment on column messages.lake_file.dataset is 'Which table of the lake.';
comment on column messages.lake_file.batch is 'The batch that it came with.';
comment on column messages.lake_file.path is 'Where it is, from the folder of the lake on.';
comment on column messages.lake_file.day is 'The day in UTC of all of its rows, if they have one.';
comment on column messages.lake_file.queue is 'The queue of all of its rows, if they have one.';
comment on column messages.lake_file.rows is 'How many rows it has.';
comment on column messages.lake_file.bytes is 'How long it is.';
comment on column messages.lake_file.checksum is 'SHA-256 of what was written.';
comment on column messages.lake_file.first_id is 'The smallest id of its rows.';
comment on column messages.lake_file.last_id is 'The largest id of its rows.';
comment on column messages.lake_file.first_at is 'The first instant of its rows.';
comment on column messages.lake_file.last_at is 'The last instant of its rows.';
comment on column messages.lake_file.removed is
  'The batch whose files have replaced it; null: it is part of the lake.';
comment on column messages.lake_file.removed_at is
  'When that was: readers that began before may go on with it for a day.';

create table if not exists messages.lake_prune (
  day date not null,
  lake bigint not null,
  rows bigint not null,
  checksum numeric not null,
  pruned_at timestamptz not null default clock_timestamp(),
  constraint lake_prune_lake_day_pk primary key (lake, day),
  constraint lake_prune_lake_fk foreign key (lake) references messages.lake (id) on delete cascade
);

comment on table messages.lake_prune is
  'Days whose partition was dropped as the files of a lake were found to be equal to it.';
comment on column messages.lake_prune.day is 'The day in UTC.';
comment on column messages.lake_prune.lake is 'Number of the lake that was compared.';
comment on column messages.lake_prune.rows is 'How many rows the partition had.';
comment on column messages.lake_prune.checksum is
  'The sum of messages.archive_hashes() over its rows.';
comment on column messages.lake_prune.pruned_at is 'When it was dropped.';

do $$
begin
  if to_regtype('messages.lake_entry') is null then
    create type messages.lake_entry as (
      path text,
      day date,
      queue text,
      rows bigint,
      bytes bigint,
      checksum text,
      first_id bigint,
      last_id bigint,
      first_at timestamptz,
      last_at timestamptz
    );
  end if;
  if to_regtype('messages.lake_report') is null then
    create type messages.lake_report as (
      id bigint,
      token uuid,
      location text,
      created_at timestamptz,
      exported_at timestamptz,
      files bigint,
      rows bigint,
      bytes bigint,
      obstacle text
    );
  end if;
  if to_regtype('messages.archive_hash') is null then
    create type messages.archive_hash as (
      id bigint,
      hash bigint
    );
  end if;
  if to_regtype('messages.archive_part') is null then
    create type messages.archive_part as (
      day date,
      rows bigint,
      first_block bigint,
      until_block bigint
    );
  end if;
end;
$$;

comment on type messages.archive_hash is 'A message, as messages.archive_hashes() reports it.';
comment on type messages.archive_part is
  'What one day of the archive has of a window, as messages.archive_parts() reports it.';
comment on type messages.lake_entry is 'A file as messages.commit_lake() takes it.';
comment on type messages.lake_report is
  'One lake as messages.lakes() reports it; obstacle: why it cannot be exported into any more.';
