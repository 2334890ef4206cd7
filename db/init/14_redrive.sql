-- Redrive: which dead messages were published again, and as what.
--
-- owns:    messages.redrive
-- writes:  nothing
-- raises:  nothing

-- A table of its own, because rows of the archive never change: readers follow it by transaction
-- and would not see that an old row has become a different one.
create table if not exists messages.redrive (
  archive_id bigint not null,
  message_id bigint not null,
  redriven_at timestamptz not null default clock_timestamp(),
  constraint redrive_archive_id_pk primary key (archive_id)
);

comment on table messages.redrive is
  'One row for each dead message that was published again; it goes when its archived row goes.';
comment on column messages.redrive.archive_id is 'The dead message, by its id in the archive.';
comment on column messages.redrive.message_id is 'The new message that it was published as.';
