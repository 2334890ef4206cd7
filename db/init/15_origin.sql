-- Origin: on which server the numbers of transactions count, and what came from elsewhere.
--
-- owns:    messages.origin, messages.relay_receipt
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.origin (
  epoch integer not null,
  system_identifier bigint not null,
  timeline integer not null,
  reached xid8 not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint origin_epoch_timeline_pk primary key (epoch, timeline)
);

comment on table messages.origin is
  'The lives of this database: one row for each epoch and timeline; the largest epoch is in force.';
comment on column messages.origin.epoch is
  'Raised by messages.adopt(): the database came from another server, with its positions.';
comment on column messages.origin.system_identifier is
  'The server as initdb named it; its physical copies have the same.';
comment on column messages.origin.timeline is
  'Of the write-ahead log; each promotion of a standby and each restore to a moment begins one.';
comment on column messages.origin.reached is
  'All smaller numbers were given to transactions on this timeline, or before it.';
comment on column messages.origin.noted_at is 'When that was so; the upkeep notes it.';

create table if not exists messages.relay_receipt (
  source text not null,
  place text not null,
  received_at timestamptz not null default clock_timestamp(),
  message_id bigint,
  constraint relay_receipt_source_place_pk primary key (source, place)
);

-- Receipts go by age.
create index if not exists relay_receipt_received_at_idx
  on messages.relay_receipt (received_at);

comment on table messages.relay_receipt is
  'One row for each message received from elsewhere, written with it: what comes again is known. '
  'It goes after 90 days.';
comment on column messages.relay_receipt.source is 'Where it came from: a table of a database.';
comment on column messages.relay_receipt.place is 'Which one it was there.';
comment on column messages.relay_receipt.received_at is 'When it was received.';
comment on column messages.relay_receipt.message_id is 'The message that it was published as.';
