-- Origin: on which server the numbers of transactions count, and what came from elsewhere.
--
-- owns:    messages.origin, messages.relay_receipt, messages.relay_self, messages.relay_mark
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
  forget_at timestamptz not null default now() + interval '90 days',
  constraint relay_receipt_source_place_pk primary key (source, place)
);

create index if not exists relay_receipt_forget_at_idx on messages.relay_receipt (forget_at);

comment on table messages.relay_receipt is
  'One row for each message received from elsewhere, written with it: what comes again is known.';
comment on column messages.relay_receipt.source is
  'Where it came from: a table of a database, or a database as its relay_source() says.';
comment on column messages.relay_receipt.place is 'Which one it was there.';
comment on column messages.relay_receipt.received_at is 'When it was received.';
comment on column messages.relay_receipt.message_id is 'The message that it was published as.';
comment on column messages.relay_receipt.forget_at is
  'When the receipt goes; what comes again after that is received again.';

create table if not exists messages.relay_self (
  is_here boolean not null default true,
  name uuid not null default gen_random_uuid(),
  constraint relay_self_is_here_pk primary key (is_here),
  constraint relay_self_is_here_ck check (is_here)
);

comment on table messages.relay_self is
  'By which name relays know this database: one row, made by the first of them. A copy that is '
  'restored has the same name, as it has the same messages.';

create table if not exists messages.relay_mark (
  target text not null,
  source text not null,
  place text not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint relay_mark_target_source_place_pk primary key (target, source, place)
);

comment on table messages.relay_mark is
  'What a target has received last from here: it must have the receipts, or it was restored.';
comment on column messages.relay_self.is_here is 'True: there is one row at most.';
comment on column messages.relay_self.name is 'The name, drawn by lot.';
comment on column messages.relay_mark.target is 'The database, as its relay_target() says.';
comment on column messages.relay_mark.source is 'As in the receipt.';
comment on column messages.relay_mark.place is 'As in the receipt.';
comment on column messages.relay_mark.noted_at is
  'When the message was finished here; of each pair the latest ones are kept.';
