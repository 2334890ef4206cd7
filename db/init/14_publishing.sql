-- Publishing: what is remembered of it beside the messages.
--
-- owns:    messages.redrive, messages.dedup, messages.dependency
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

create index if not exists redrive_message_id_idx on messages.redrive (message_id);

comment on table messages.redrive is
  'One row for each dead message that was published again; it goes when its archived row goes.';
comment on column messages.redrive.archive_id is 'The dead message, by its id in the archive.';
comment on column messages.redrive.message_id is 'The new message that it was published as.';

create table if not exists messages.dedup (
  queue text not null,
  dedup_key text not null,
  id bigint not null,
  expires_at timestamptz not null,
  constraint dedup_queue_dedup_key_pk primary key (queue, dedup_key)
);

create index if not exists dedup_expires_at_idx on messages.dedup (expires_at);

comment on table messages.dedup is
  'Keys that were published with a window, until it is over; messages.maintain() removes them.';
comment on column messages.dedup.queue is 'The queue in which the key is taken.';
comment on column messages.dedup.dedup_key is 'The key that is taken.';
comment on column messages.dedup.id is 'The message that was published under the key.';
comment on column messages.dedup.expires_at is 'From then on the key may be published again.';

create table if not exists messages.dependency (
  message_id bigint not null,
  after_id bigint not null,
  position integer not null,
  status messages.message_status,
  available_at timestamptz,
  delay interval,
  on_failure text not null,
  constraint dependency_message_id_after_id_pk primary key (message_id, after_id),
  constraint dependency_on_failure_ck check (on_failure in ('cancel', 'run', 'hold'))
);

create index if not exists dependency_after_id_idx on messages.dependency (after_id);

comment on table messages.dependency is
  'Which messages wait for the end of which; the rows of one go when it succeeds, or with its '
  'archived row.';
comment on column messages.dependency.message_id is 'The message that waits.';
comment on column messages.dependency.after_id is 'The message that it waits for.';
comment on column messages.dependency.position is 'The place of the latter among all of them.';
comment on column messages.dependency.status is 'How the latter ended; null: it has not yet.';
comment on column messages.dependency.available_at is 'The message is not due before this instant.';
comment on column messages.dependency.delay is 'How long after the last of them it is due.';
comment on column messages.dependency.on_failure is
  'What becomes of the message if the latter dies. cancel: it is archived as rejected; run: it '
  'runs all the same; hold: it waits until somebody decides.';
