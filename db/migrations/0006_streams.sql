-- Streams: every subscriber sees every event; typed and volatile queues; relays.
-- breaking: no
-- needs: owner
--
-- owns:    the tables, sequences and types that it makes
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
        ('redrive(text, messages.message_status, timestamptz, timestamptz, integer)'),
        ('claim(text[], integer, interval, text, jsonpath, boolean, integer[])'),
        ('_look_fair(messages.queue, integer, jsonpath, messages.flow_state)'),
        ('_look_keys(messages.queue, integer, jsonpath, boolean, messages.flow_state)'),
        (
          '_pick_fair(messages.queue, text[], integer, integer, jsonpath, bigint[], bigint[], '
          'bigint[], double precision)'
        )
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

-- Coming from version 1, some were never made.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.name || '(text, interval, integer, interval, interval, '
      'text, interval, integer, integer, integer, integer, interval, integer, integer, interval, '
      'integer, boolean, boolean, integer, text)')
    from (values ('create_queue'), ('alter_queue')) as f (name)
  loop
    if v_function is not null then
      execute format('drop function %s', v_function);
    end if;
  end loop;
end;
$$;

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

-- Streams.
create type messages.batch_event as (
  id bigint,
  created_at timestamptz,
  type text,
  key text,
  message jsonb,
  headers jsonb,
  retries integer,
  reason text
);
create type messages.stream_report as (
  stream text,
  created_at timestamptz,
  subscribers integer,
  segments integer,
  bytes bigint,
  oldest_at timestamptz,
  last_tick bigint,
  last_tick_at timestamptz,
  retention interval,
  max_lag interval,
  max_events bigint,
  max_bytes integer,
  bell text,
  paused boolean,
  durable boolean,
  payload_type text,
  payload_schema jsonb
);
create type messages.subscription_report as (
  stream text,
  subscriber text,
  lag interval,
  pending bigint,
  last_seen_at timestamptz,
  last_tick bigint,
  current_batch bigint,
  next_tick bigint,
  retries bigint,
  dead bigint,
  members integer
);
create type messages.batch_report as (
  batch bigint,
  stream text,
  subscriber text,
  member text,
  opened_at timestamptz,
  ended_at timestamptz,
  is_retry boolean,
  first_id bigint,
  last_id bigint,
  seen pg_snapshot,
  upto pg_snapshot
);
comment on type messages.batch_event is
  'An event as batch_events() gives it; retries and reason are null the first time.';
comment on type messages.stream_report is 'One stream as messages.stream_info() reports it.';
comment on type messages.subscription_report is
  'One subscription as messages.subscription_info() reports it.';
comment on type messages.batch_report is 'One batch as messages.batch_info() reports it.';

create table messages.stream (
  id bigint generated always as identity,
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  segment bigint,
  retention interval not null default interval '1 hour',
  max_lag interval,
  max_events bigint,
  max_bytes integer not null default 1048576,
  bell text not null default 'auto',
  paused boolean not null default false,
  durable boolean not null default true,
  payload_type text,
  payload_schema text,
  constraint stream_name_pk primary key (name),
  constraint stream_id_uq unique (id),
  constraint stream_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[:[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint stream_retention_ck check (retention >= interval '0'),
  constraint stream_max_lag_ck check (max_lag > interval '0'),
  constraint stream_max_events_ck check (max_events > 0),
  constraint stream_max_bytes_ck check (max_bytes between 4096 and 268435456),
  constraint stream_bell_ck check (bell in ('auto', 'always', 'off'))
);

comment on table messages.stream is
  'Registry of streams; change it through the stream functions.';
comment on column messages.stream.id is 'By which other tables know it.';
comment on column messages.stream.name is
  '1 to 200 bytes, without a colon, control characters or outer blanks.';
comment on column messages.stream.created_at is 'When it was created.';
comment on column messages.stream.segment is 'The segment that events are written to now.';
comment on column messages.stream.retention is
  'How long events are kept for replay after every subscriber has passed them, at least.';
comment on column messages.stream.max_lag is
  'How far behind a subscriber may be, in time, before it is skipped ahead; null: no bound.';
comment on column messages.stream.max_events is
  'How many events behind a subscriber may be before it is skipped ahead; null: no bound.';
comment on column messages.stream.max_bytes is
  'Most bytes of an event and its headers together, as JSON text.';
comment on column messages.stream.bell is
  'auto: publishing rings new_event, unless a busy subscriber attends; always; off: polling.';
comment on column messages.stream.paused is 'Publishing into a paused stream is refused.';
comment on column messages.stream.durable is 'Whether events survive a crash of the server.';
comment on column messages.stream.payload_type is 'The type that each payload is a value of.';
comment on column messages.stream.payload_schema is 'The JSON Schema for payloads, as text.';

create table messages.segment (
  id bigint generated always as identity,
  stream bigint,
  opened_at timestamptz,
  closed_at timestamptz,
  low bigint not null default 0,
  durable boolean not null,
  witnesses text[],
  sealed pg_snapshot,
  constraint segment_id_pk primary key (id)
);

create index segment_stream_idx on messages.segment (stream);

comment on table messages.segment is
  'The tables messages.event_<id>, each of one stream or, empty, of none; they are used again.';
comment on column messages.segment.id is 'Of the table''s name.';
comment on column messages.segment.stream is 'The stream whose events it holds; null: none.';
comment on column messages.segment.opened_at is 'When publishers began to write to it.';
comment on column messages.segment.durable is 'Whether it survives a crash of the server.';
comment on column messages.segment.low is 'All events in it have larger ids.';
comment on column messages.segment.closed_at is 'When publishers went on to the next one.';
comment on column messages.segment.witnesses is
  'Transactions that were open when it was closed, and may still write to it.';
comment on column messages.segment.sealed is
  'Taken when nobody could write to it any more: all of its events are visible in this snapshot.';

create sequence messages.event_id_seq;

-- The number of the transaction comes first: an id is taken after it, which the cut of a window
-- relies on.
create table messages.event (
  xid xid8 not null default pg_current_xact_id(),
  id bigint not null default nextval('messages.event_id_seq'),
  segment bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  type text,
  key text,
  message jsonb not null,
  headers jsonb not null default '{}'
) partition by list (segment);

alter sequence messages.event_id_seq owned by messages.event.id;

comment on table messages.event is
  'Events, one row each however many subscribers; rows never change, segments are emptied whole.';
comment on column messages.event.xid is 'The transaction that published it.';
comment on column messages.event.id is 'The event; ids of a session rise.';
comment on column messages.event.segment is 'The segment, and so the table, that it is in.';
comment on column messages.event.type is 'What kind of event it is.';
comment on column messages.event.key is 'What it is about.';

create table messages.tick (
  id bigint generated always as identity,
  stream bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  snapshot pg_snapshot not null,
  low bigint not null,
  high bigint not null,
  is_asked boolean not null,
  constraint tick_stream_id_pk primary key (stream, id)
);

create index tick_asked_idx on messages.tick (stream, id) where is_asked;

comment on table messages.tick is 'Moments of a stream that subscribers can be set to.';
comment on column messages.tick.id is 'Rises within the stream.';
comment on column messages.tick.stream is 'The stream.';
comment on column messages.tick.created_at is 'When that was.';
comment on column messages.tick.snapshot is 'What was committed then.';
comment on column messages.tick.low is
  'Ids of transactions that were yet to begin then are larger.';
comment on column messages.tick.high is 'Ids of what was committed then are not larger.';
comment on column messages.tick.is_asked is 'Made by tick(), so that a batch ends here.';

create table messages.subscription (
  id bigint generated always as identity,
  stream bigint not null,
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  constraint subscription_stream_name_pk primary key (stream, name),
  constraint subscription_id_uq unique (id),
  constraint subscription_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[:[:cntrl:]]'
    and name = btrim(name)
  )
);

comment on table messages.subscription is
  'Who reads a stream. Rows do not change when batches go: they are what next_batch() locks.';
comment on column messages.subscription.id is 'By which other tables know it.';
comment on column messages.subscription.stream is 'The stream.';
comment on column messages.subscription.name is 'The subscriber.';
comment on column messages.subscription.created_at is 'When it subscribed.';

-- Rows are only added: the newest tells where a subscription is, and where an old snapshot keeps
-- dead rows alive, they are behind it.
create table messages.batch (
  id bigint generated always as identity,
  subscription bigint not null,
  previous bigint not null,
  member text,
  opened_at timestamptz not null default clock_timestamp(),
  kind text not null default 'events',
  seen pg_snapshot not null,
  seen_low bigint not null,
  upto pg_snapshot not null,
  upto_low bigint not null,
  upto_high bigint not null,
  after_id bigint not null,
  last_id bigint not null,
  is_last boolean not null,
  tick bigint not null,
  constraint batch_id_pk primary key (id),
  -- Else a transaction with an old snapshot could hand out a second batch from the same place.
  constraint batch_subscription_previous_uq unique (subscription, previous),
  constraint batch_kind_ck check (kind in ('events', 'retries', 'position'))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

create index batch_member_idx
  on messages.batch (subscription, member, opened_at) where member is not null;

comment on table messages.batch is
  'What was handed out to subscribers: events seen by `upto` and not by `seen`, cut by id.';
comment on column messages.batch.id is 'What finish_batch() is given.';
comment on column messages.batch.subscription is 'Whose it is.';
comment on column messages.batch.member is
  'Who of several holds it; null: the subscription is not shared.';
comment on column messages.batch.opened_at is 'When it was handed out.';
comment on column messages.batch.seen is 'What was handed out before.';
comment on column messages.batch.upto is 'What is handed out with it, cut by id.';
comment on column messages.batch.previous is 'The batch of the subscription before it.';
comment on column messages.batch.kind is
  'events; retries: those of event_retry with its id; position: none, the subscriber was set here.';
comment on column messages.batch.seen_low is
  'Ids of transactions that were yet to begin when `seen` was taken are larger.';
comment on column messages.batch.upto_low is 'The same for `upto`.';
comment on column messages.batch.upto_high is 'Ids of what `upto` sees are not larger.';
comment on column messages.batch.after_id is 'Events up to this id were in batches before.';
comment on column messages.batch.last_id is 'Events after this id are in batches to come.';
comment on column messages.batch.is_last is 'Whether no more of the same two snapshots follows.';
comment on column messages.batch.tick is 'The newest tick that there was when `upto` was taken.';

create table messages.batch_end (
  batch bigint not null,
  ended_at timestamptz not null default clock_timestamp(),
  is_finished boolean not null,
  constraint batch_end_batch_pk primary key (batch)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

comment on table messages.batch_end is 'Batches that were finished, or given up by a seek.';
comment on column messages.batch_end.batch is 'The batch.';
comment on column messages.batch_end.ended_at is 'When that was.';
comment on column messages.batch_end.is_finished is 'False: it was taken back.';

create table messages.event_retry (
  subscription bigint not null,
  event_id bigint not null,
  batch bigint,
  due_at timestamptz,
  retries integer not null,
  reason text,
  created_at timestamptz not null,
  type text,
  key text,
  message jsonb not null,
  headers jsonb not null,
  constraint event_retry_subscription_event_id_pk primary key (subscription, event_id)
);

create index event_retry_due_at_idx
  on messages.event_retry (subscription, due_at) where batch is null;
create index event_retry_batch_idx on messages.event_retry (batch);

comment on table messages.event_retry is
  'Events that one subscriber sees once more, and those of its open batch that it has failed.';
comment on column messages.event_retry.subscription is 'Who sees it once more.';
comment on column messages.event_retry.event_id is 'The event.';
comment on column messages.event_retry.created_at is 'When it was published.';
comment on column messages.event_retry.type is 'As in the event.';
comment on column messages.event_retry.key is 'As in the event.';
comment on column messages.event_retry.message is 'As in the event.';
comment on column messages.event_retry.headers is 'As in the event.';
comment on column messages.event_retry.reason is 'Why, as retry_event() was told.';
comment on column messages.event_retry.batch is 'The open batch that holds it; null: it waits.';
comment on column messages.event_retry.due_at is 'Not handed out before; null: it has failed.';
comment on column messages.event_retry.retries is 'How often it is handed out again.';

-- Shares: claims go round through the keys, and remember how far they are. A queue that has shares
-- begins a new round; nobody loses or gains more than one.
alter table messages.flow_state
  drop column turn,
  drop column keys,
  drop column scan_at,
  add column round bigint not null default 0,
  add column had integer not null default 0,
  add column unlisted integer not null default 0,
  alter column running set storage external;
alter table messages.flow_key drop column turn;
create type messages.flow_pick as (
  ids bigint[],
  state messages.flow_state,
  is_blocked boolean
);
comment on type messages.flow_pick is
  'Messages that a claim may have, what the next one goes by, and whether others wait for a lock.';

comment on table messages.flow_key is
  'How far a key is ahead of its rate; it goes when it is not.';
comment on column messages.flow_state.after_key is
  'The key behind which the next look begins; of a fair queue the one at which it begins.';
comment on column messages.flow_state.round is
  'How many times all keys of a fair queue have had their share.';
comment on column messages.flow_state.had is
  'How much of its share after_key has had in this round.';
comment on column messages.flow_state.unlisted is
  'How many more were handed out, at a time when that was far from the limits.';

-- Procedures: what the broker of a role calls for the events of a subscriber.
create table messages.subscriber_procedure (
  subscription bigint not null,
  stream text not null,
  subscriber text not null,
  position text not null default 'last',
  procedure text not null,
  owner text not null,
  registrar text not null default current_user,
  registered_at timestamptz not null default clock_timestamp(),
  handled bigint not null default 0,
  failed bigint not null default 0,
  batch bigint,
  run bigint,
  is_careful boolean not null default false,
  done bigint not null default 0,
  event bigint,
  event_starts integer not null default 0,
  constraint subscriber_procedure_subscription_pk primary key (subscription),
  constraint subscriber_procedure_subscription_fk foreign key (subscription)
    references messages.subscription (id) on delete cascade
) with (fillfactor = 50);

comment on table messages.subscriber_procedure is
  'The procedures that brokers call for each event of a subscriber, see messages.register().';
comment on column messages.subscriber_procedure.subscription is 'Number of the subscription.';
comment on column messages.subscriber_procedure.stream is 'Its stream.';
comment on column messages.subscriber_procedure.subscriber is 'Its name in the stream.';
comment on column messages.subscriber_procedure.position is
  'Where the subscription was to begin, if it had to be made.';
comment on column messages.subscriber_procedure.procedure is 'Its schema and name.';
comment on column messages.subscriber_procedure.owner is 'Whose it was when it was registered.';
comment on column messages.subscriber_procedure.registrar is
  'The role that has registered it, and that it is called by.';
comment on column messages.subscriber_procedure.registered_at is 'When that was.';
comment on column messages.subscriber_procedure.handled is 'Calls that returned.';
comment on column messages.subscriber_procedure.failed is 'Calls that ended with an error.';
comment on column messages.subscriber_procedure.batch is 'The batch that is being handled.';
comment on column messages.subscriber_procedure.run is 'The run of the broker that has begun it.';
comment on column messages.subscriber_procedure.is_careful is
  'Whether a session has ended in it, so that its events are now tried one by one.';
comment on column messages.subscriber_procedure.done is 'The last event of it that was handled.';
comment on column messages.subscriber_procedure.event is 'The event that is tried alone now.';
comment on column messages.subscriber_procedure.event_starts is 'How often that was begun.';

create table messages.broker (
  role text not null,
  pid integer,
  started_at timestamptz,
  is_wanted boolean not null default false,
  constraint broker_role_pk primary key (role)
);

comment on table messages.broker is 'Brokers of this database; see messages.status_broker().';
comment on column messages.broker.role is 'Whose procedures it calls, and whose session it is.';
comment on column messages.broker.pid is 'The server process of the one that was started last.';
comment on column messages.broker.started_at is 'When that was.';
comment on column messages.broker.is_wanted is
  'Whether one was started and not stopped since: one that is lost is then started again.';

create type messages.broker_turn as (
  act text,
  place bigint,
  subscription bigint,
  batch bigint,
  stream text,
  subscriber text,
  procedure text[],
  done bigint,
  event bigint
);

create type messages.broker_report as (
  running boolean,
  wanted boolean,
  role text,
  pid integer,
  started_at timestamptz,
  procedures bigint,
  handled bigint,
  failed bigint,
  obstacles text[]
);

create type messages.handled_event as (
  stream text,
  subscriber text,
  id bigint,
  created_at timestamptz,
  type text,
  key text,
  message jsonb,
  headers jsonb,
  retries integer
);


comment on type messages.broker_turn is 'What a broker does next.';
comment on type messages.broker_report is 'What there is to know of the broker of a role.';
comment on type messages.handled_event is 'An event as dequeued() gives it to a procedure.';

-- Forwards: subscriptions whose events go on into a queue.
create table messages.forward (
  subscription bigint not null,
  queue text not null,
  filter jsonpath,
  created_at timestamptz not null default clock_timestamp(),
  failed_at timestamptz,
  last_error text,
  constraint forward_subscription_pk primary key (subscription)
);

create index forward_queue_idx on messages.forward (queue);

comment on table messages.forward is
  'Subscriptions that no program reads: their events are moved into a queue, each exactly once.';
comment on column messages.forward.subscription is 'The id of the subscription.';
comment on column messages.forward.queue is 'The queue that the events go into.';
comment on column messages.forward.filter is
  'A JSON path predicate over the payload: events that it is not true of are left out.';
comment on column messages.forward.failed_at is
  'When nothing could be moved; it is tried again a minute later. Null: it works.';
comment on column messages.forward.last_error is 'Why nothing could be moved.';

create type messages.forward_report as (
  stream text,
  subscriber text,
  queue text,
  filter jsonpath,
  created_at timestamptz,
  failed_at timestamptz,
  last_error text
);
create type messages.capture_report as (
  relation regclass,
  stream text,
  operations text[],
  columns text[],
  condition text,
  is_by_row boolean,
  is_enabled boolean,
  triggers text[]
);
comment on type messages.forward_report is
  'One subscription that forwards, as messages.forwards() reports it.';
comment on type messages.capture_report is
  'One table that is captured, as messages.captures() reports it.';
