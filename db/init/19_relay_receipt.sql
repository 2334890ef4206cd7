-- Relay receipt: what was received from elsewhere, so that it is received once.
--
-- owns:    messages.relay_receipt
-- writes:  nothing
-- raises:  nothing

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
