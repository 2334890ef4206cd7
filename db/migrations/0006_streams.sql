-- Streams: every subscriber sees every event; typed and volatile queues; relays.
-- breaking: no
-- needs: owner
--
-- owns:    messages.message_volatile, messages.volatile_room, messages.volatile_count,
--          messages.relay_self, messages.relay_mark, messages.owner_session
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Dead events: of which subscriber, and which event. They are told apart by the functions, too.
alter table messages.message_archive
  add column subscriber text,
  add column event_id bigint;

-- Coming from version 1, some were never made.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('dead_list(text, integer, integer)'), ('dead_count(text)'),
        ('dead_since(pg_snapshot, text)'),
        ('redrive(text, messages.message_status, timestamptz, timestamptz, integer)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;

-- Typed and volatile queues.
alter table messages.queue
  add column payload_type text,
  add column payload_schema text,
  add column durable boolean not null default true;
comment on column messages.queue.payload_type is
  'The type whose values its messages are, each as its text in a JSON string; null: any JSON.';
comment on column messages.queue.payload_schema is
  'The JSON Schema that its messages must satisfy, as text; null: any JSON.';
comment on column messages.queue.durable is
  'Whether its messages outlive a crash of the server; else they are in message_volatile.';

alter type messages.queue_report
  add attribute durable boolean,
  add attribute payload_type text,
  add attribute payload_schema jsonb,
  add attribute finished bigint,
  add attribute dropped bigint;

-- Whoever adds a column to messages.message does so before this line.
create unlogged table messages.message_volatile (
  like messages.message including defaults including constraints including comments,
  constraint message_volatile_id_pk primary key (id)
) with (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);
create index message_volatile_waiting_idx
  on messages.message_volatile (queue, priority desc, id) where state = 'waiting';
create index message_volatile_scheduled_idx
  on messages.message_volatile (queue, available_at) where state = 'scheduled';
create index message_volatile_locked_idx
  on messages.message_volatile (id) where state = 'locked';
create unique index message_volatile_dedup_key_uq
  on messages.message_volatile (queue, dedup_key) where dedup_key is not null;
create index message_volatile_key_waiting_idx
  on messages.message_volatile (queue, key, priority desc, id)
  where state = 'waiting' and key is not null;
create index message_volatile_key_idx
  on messages.message_volatile (queue, key, id) where key is not null;

comment on table messages.message_volatile is
  'Messages of queues that are not durable, part of messages.message while there is such a queue.';

create unlogged table messages.volatile_room (
  queue text not null,
  number bigint not null,
  room bigint not null,
  constraint volatile_room_queue_number_pk primary key (queue, number)
);
comment on table messages.volatile_room is
  'How many messages a volatile queue surely takes before those that are there are counted again.';
comment on column messages.volatile_room.queue is 'Name of the queue.';
comment on column messages.volatile_room.number is 'Rises with every change.';
comment on column messages.volatile_room.room is 'Messages.';

create unlogged table messages.volatile_count (
  queue text not null,
  finished bigint not null,
  dropped bigint not null
);
comment on table messages.volatile_count is
  'What became of messages of volatile queues without a row in the archive; to be added up.';
comment on column messages.volatile_count.queue is 'Name of the queue.';
comment on column messages.volatile_count.finished is 'Messages that ended as success.';
comment on column messages.volatile_count.dropped is
  'Messages that gave way to later ones as the queue was full.';

-- Relays. Receipts go at an instant of their own.
alter table messages.relay_receipt
  add column forget_at timestamptz not null default now() + interval '90 days';
drop index messages.relay_receipt_received_at_idx;
create index relay_receipt_forget_at_idx on messages.relay_receipt (forget_at);
comment on table messages.relay_receipt is
  'One row for each message received from elsewhere, written with it: what comes again is known.';
comment on column messages.relay_receipt.source is
  'Where it came from: a table of a database, or a database as its relay_source() says.';
comment on column messages.relay_receipt.forget_at is
  'When the receipt goes; what comes again after that is received again.';
comment on column messages.message.handler_attempts is
  'Claims that the handler allows which has the message, or had it last; null: it does not say. '
  'Negative for a relay, which goes before the message''s own.';
comment on column messages.message_volatile.handler_attempts is
  'Claims that the handler allows which has the message, or had it last; null: it does not say. '
  'Negative for a relay, which goes before the message''s own.';

create type messages.relay_report as (
  ids bigint[],
  merged integer,
  known integer
);
comment on type messages.relay_report is
  'What messages.receive_many() did: the ids of the messages in the order in which they were sent, '
  'how many were merged with live ones of the same dedup_key, and how many had been received.';

create table messages.relay_self (
  is_here boolean not null default true,
  name uuid not null default gen_random_uuid(),
  constraint relay_self_is_here_pk primary key (is_here),
  constraint relay_self_is_here_ck check (is_here)
);

comment on table messages.relay_self is
  'By which name relays know this database: one row, made by the first of them. A copy that is '
  'restored has the same name, as it has the same messages.';

create table messages.relay_mark (
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

-- Sessions that own messages; a filter for each of the queues of a claim.

create table messages.owner_session (
  pid integer not null,
  number integer not null,
  opened_at timestamptz not null default clock_timestamp(),
  constraint owner_session_pid_number_pk primary key (pid, number)
);

comment on table messages.owner_session is
  'Sessions that own messages for as long as they last, see messages.wait().';
comment on column messages.owner_session.pid is 'The server process.';
comment on column messages.owner_session.number is
  'Half of the advisory lock (730542, number) that it holds until it ends.';
comment on column messages.owner_session.opened_at is 'When it owned its first message.';

-- It has one argument more: with both, a call could mean either.
drop function if exists messages.claim(
  text[], integer, interval, text, jsonpath, boolean, integer[]
);
