-- Redrive: dead messages can be published again, see 14_publishing.sql.
-- breaking: no
-- needs: owner
--
-- owns:    messages.redrive
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

create table messages.redrive (
  archive_id bigint not null,
  message_id bigint not null,
  redriven_at timestamptz not null default clock_timestamp(),
  constraint redrive_archive_id_pk primary key (archive_id)
);

comment on table messages.redrive is
  'One row for each dead message that was published again; it goes when its archived row goes.';
comment on column messages.redrive.archive_id is 'The dead message, by its id in the archive.';
comment on column messages.redrive.message_id is 'The new message that it was published as.';
