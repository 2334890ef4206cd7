-- Publishing: what is remembered of it beside the messages.
--
-- owns:    messages.redrive, messages.dedup
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
