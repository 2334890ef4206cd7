-- Streams: every subscriber sees every event; typed and volatile queues; relays.
-- breaking: no
-- needs: owner
--
-- owns:    messages.message_volatile, messages.volatile_room, messages.volatile_count
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
