-- Stream: streams, events, subscriptions, batches, and procedures as subscribers.

create table if not exists messages.stream (
  id bigint generated always as identity,
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  segment bigint,
  retention interval not null default interval '1 hour',
  max_lag interval,
  max_events bigint,
  max_bytes integer not null default 1048576,
  notify text not null default 'auto',
  paused boolean not null default false,
  durable boolean not null default true,
  payload_type text,
  payload_schema text,
  is_guarded boolean not null default false,
  encrypted boolean not null default false,
  unchecked_bytes integer generated always as (
    case
      when paused or is_guarded or notify = 'always' or payload_type is not null
        or payload_schema is not null or encrypted then null
      else max_bytes
    end
  ) stored,
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
  constraint stream_payload_schema_ck check (
    jsonb_typeof(payload_schema::jsonb) in ('object', 'boolean')
  ),
  constraint stream_encrypted_ck check (
    not encrypted or num_nonnulls(payload_type, payload_schema) = 0
  ),
  constraint stream_notify_ck check (notify in ('auto', 'always', 'off'))
);

comment on table messages.stream is
  'Registry of streams; change it through the stream functions.';
comment on column messages.stream.id is 'The number that other tables refer to.';
comment on column messages.stream.name is
  '1 to 200 bytes, without a colon, control characters or outer blanks.';
comment on column messages.stream.created_at is 'When it was created.';
comment on column messages.stream.segment is 'The segment that publishers write to.';
comment on column messages.stream.retention is
  'How long events are kept at least after every subscriber has finished them, for replay.';
comment on column messages.stream.max_lag is
  'How old the oldest unfinished event of a subscriber may be before events are skipped; null: no '
  'limit.';
comment on column messages.stream.max_events is
  'How many unfinished events a subscriber may have before events are skipped; null: no limit.';
comment on column messages.stream.max_bytes is
  'Most bytes of an event with its headers, as JSON text.';
comment on column messages.stream.notify is
  'auto: publishing notifies new_event unless a subscriber polls; always; off: polling only.';
comment on column messages.stream.paused is 'Publishing into a paused stream fails.';
comment on column messages.stream.durable is 'Whether events survive a crash of the server.';
comment on column messages.stream.payload_type is 'The type of each payload.';
comment on column messages.stream.payload_schema is 'The JSON Schema for payloads, as text.';
comment on column messages.stream.is_guarded is 'Whether it has grants.';
comment on column messages.stream.encrypted is
  'Whether payloads are encrypted by its programs; plaintext is refused.';
comment on column messages.stream.unchecked_bytes is
  'Most bytes of an event that publish() writes without the checks of its stream; null: each is '
  'checked.';

create table if not exists notifyq.segment (
  id bigint generated always as identity,
  stream bigint,
  opened_at timestamptz,
  closed_at timestamptz,
  low bigint not null default 0,
  durable boolean not null,
  waits_for text[],
  sealed pg_snapshot,
  changed_by xid8,
  constraint segment_id_pk primary key (id)
);

create index if not exists segment_stream_idx on notifyq.segment (stream);

comment on table notifyq.segment is
  'The tables notifyq.event_<id>. Each holds events of one stream, or is empty and free for any.';
comment on column notifyq.segment.stream is
  'The stream whose events it holds; null: free, or its stream was dropped.';
comment on column notifyq.segment.low is 'All its events have larger ids.';
comment on column notifyq.segment.closed_at is 'When publishers switched to the next segment.';
comment on column notifyq.segment.waits_for is
  'Virtual ids of transactions that may still write to it after it was closed. Of a free one: '
  'that may not know the table yet.';
comment on column notifyq.segment.sealed is
  'Taken when nobody could write to it any more: this snapshot sees all its events.';

comment on column notifyq.segment.changed_by is
  'The transaction that created or closed it: until its commit no other session knows of that.';

create sequence if not exists messages.event_id_seq;

-- The transaction id is drawn before the event id: current_horizon() relies on that order.
create table if not exists messages.event (
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
  'One row for each event, however many subscribers. Rows never change; a segment is truncated as '
  'a whole.';
comment on column messages.event.xid is 'The transaction that published it.';
comment on column messages.event.id is 'The event; the ids of a session rise.';
comment on column messages.event.segment is 'The segment, which is the partition that it is in.';
comment on column messages.event.type is 'What kind of event it is.';
comment on column messages.event.key is 'What the event is about.';

create table if not exists notifyq.tick (
  id bigint generated always as identity,
  stream bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  snapshot pg_snapshot not null,
  low bigint not null,
  high bigint not null,
  is_requested boolean not null,
  constraint tick_stream_id_pk primary key (stream, id)
);

create index if not exists tick_requested_idx on notifyq.tick (stream, id) where is_requested;

comment on table notifyq.tick is 'Moments of a stream that a subscriber can be set to.';
comment on column notifyq.tick.snapshot is 'What was committed then.';
comment on column notifyq.tick.low is 'Transactions that began later have larger event ids.';
comment on column notifyq.tick.high is 'No event that was committed then has a larger id.';
comment on column notifyq.tick.is_requested is 'Created by tick(): a batch ends here.';

create table if not exists messages.subscription (
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
  'A subscriber of a stream. Batches do not change the row: next_batch() locks it.';
comment on column messages.subscription.id is 'The number that other tables refer to.';
comment on column messages.subscription.stream is 'The stream.';
comment on column messages.subscription.name is 'The subscriber.';
comment on column messages.subscription.created_at is 'When it was created.';

-- Rows are only added: the newest one is the position of a subscription. An old snapshot keeps dead
-- rows alive, and an updated position would have to be found behind them.
create table if not exists notifyq.batch (
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
  released_at timestamptz,
  constraint batch_id_pk primary key (id),
  -- A transaction with an old snapshot cannot hand out a second batch from the same position.
  constraint batch_subscription_previous_uq unique (subscription, previous),
  constraint batch_kind_ck check (kind in ('events', 'retries', 'position'))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

create index if not exists batch_member_idx
  on notifyq.batch (subscription, member, opened_at) where member is not null;

comment on table notifyq.batch is
  'Batches of subscribers: events that `upto` sees and `seen` does not, between two ids.';
comment on column notifyq.batch.member is
  'The member that holds it; null: the subscription is not shared.';
comment on column notifyq.batch.seen is 'The snapshot up to which events were handed out before.';
comment on column notifyq.batch.upto is
  'The snapshot up to which this batch and the rest of its window go.';
comment on column notifyq.batch.previous is 'The batch before it of the same subscription.';
comment on column notifyq.batch.kind is
  'events; retries: rows of event_retry with its id; position: none, the subscriber was set here.';
comment on column notifyq.batch.seen_low is
  'Transactions that began after `seen` have larger event ids.';
comment on column notifyq.batch.upto_low is
  'Transactions that began after `upto` have larger event ids.';
comment on column notifyq.batch.upto_high is 'No event that `upto` sees has a larger id.';
comment on column notifyq.batch.after_id is 'Earlier batches have the events up to this id.';
comment on column notifyq.batch.last_id is 'Later batches have the events after this id.';
comment on column notifyq.batch.is_last is
  'Whether it ends its window: the next batch needs a later snapshot.';
comment on column notifyq.batch.tick is 'The newest tick when `upto` was taken.';
comment on column notifyq.batch.released_at is
  'When its reader called release_batch(): recover_batch() then counts no attempt.';

create table if not exists notifyq.batch_end (
  batch bigint not null,
  ended_at timestamptz not null default clock_timestamp(),
  is_finished boolean not null,
  constraint batch_end_batch_pk primary key (batch)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

comment on table notifyq.batch_end is 'Batches that were finished or revoked.';
comment on column notifyq.batch_end.is_finished is
  'False: it was revoked, by seek() or because its subscriber was too far behind.';

create table if not exists notifyq.event_retry (
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
  part bigint,
  constraint event_retry_subscription_event_id_pk primary key (subscription, event_id)
);

create index if not exists event_retry_due_at_idx
  on notifyq.event_retry (subscription, due_at) where batch is null;
create index if not exists event_retry_batch_idx on notifyq.event_retry (batch);

comment on table notifyq.event_retry is
  'Events that a subscriber gets again, and events of its open batch that have failed.';
comment on column notifyq.event_retry.created_at is 'When the event was published.';
comment on column notifyq.event_retry.batch is 'The open batch that holds it; null: it waits.';
comment on column notifyq.event_retry.due_at is 'When it can be handed out; null: it has failed.';
comment on column notifyq.event_retry.retries is 'How often the subscriber gets it again.';
comment on column notifyq.event_retry.part is
  'A batch has events of one part only: one of them may have ended its reader.';

create table if not exists notifyq.forward (
  subscription bigint not null,
  queue text not null,
  filter jsonpath,
  created_at timestamptz not null default clock_timestamp(),
  failed_at timestamptz,
  last_error text,
  constraint forward_subscription_pk primary key (subscription)
);

create index if not exists forward_queue_idx on notifyq.forward (queue);

comment on table notifyq.forward is
  'Subscriptions whose events are moved into a queue, each exactly once.';
comment on column notifyq.forward.filter is
  'A JSON path predicate over the payload: other events are left out.';
comment on column notifyq.forward.failed_at is
  'When moving events failed last; it is tried again a minute later. Null: it works.';

create table if not exists messages.subscriber_procedure (
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
  'Procedures that a broker calls for each event of a subscriber, see messages.register().';
comment on column messages.subscriber_procedure.subscription is 'Id of the subscription.';
comment on column messages.subscriber_procedure.stream is 'Name of the stream.';
comment on column messages.subscriber_procedure.subscriber is 'Name of the subscription.';
comment on column messages.subscriber_procedure.position is
  'Where the subscription begins if it has to be created.';
comment on column messages.subscriber_procedure.procedure is 'Schema and name of the procedure.';
comment on column messages.subscriber_procedure.owner is
  'The role that owned the procedure when it was registered.';
comment on column messages.subscriber_procedure.registrar is
  'The role that registered it: its broker calls it.';
comment on column messages.subscriber_procedure.registered_at is 'When it was registered.';
comment on column messages.subscriber_procedure.handled is 'Calls that returned.';
comment on column messages.subscriber_procedure.failed is 'Calls that ended with an error.';
comment on column messages.subscriber_procedure.batch is 'The batch that is being handled.';
comment on column messages.subscriber_procedure.run is
  'The run of the broker that began the batch.';
comment on column messages.subscriber_procedure.is_careful is
  'Whether a session ended while it handled the batch: its events are then tried one by one.';
comment on column messages.subscriber_procedure.done is
  'The last event of the batch that was handled.';
comment on column messages.subscriber_procedure.event is 'The event that is tried alone.';
comment on column messages.subscriber_procedure.event_starts is
  'How often that event was tried alone.';

create table if not exists notifyq.broker (
  role text not null,
  pid integer,
  started_at timestamptz,
  is_wanted boolean not null default false,
  constraint broker_role_pk primary key (role)
);

comment on table notifyq.broker is 'Brokers of this database; see messages.status_broker().';
comment on column notifyq.broker.role is
  'The role whose procedures it calls, which is also the role of its session.';
comment on column notifyq.broker.pid is 'The server process of the last one that started.';
comment on column notifyq.broker.is_wanted is
  'Whether it was started and not stopped since: a lost broker is started again.';

do $$
begin
  if to_regtype('notifyq.broker_turn') is null then
    create type notifyq.broker_turn as (
      act text,
      slot bigint,
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
  end if;
end;
$$;

comment on type notifyq.broker_turn is 'The next step of a broker.';
comment on type messages.broker_report is
  'The broker of a role, as messages.status_broker() reports it.';
comment on type messages.handled_event is 'An event as messages.dequeued() returns it.';

-- Counts of notifications, which no transaction rolls back. A row would make publishers wait for
-- each other and leave a dead row for each notification. Sequences count up to 32 too many after a
-- crash.
--
-- And which of its messages a session has announced last, see published(). Only nextval() and
-- setval() set what a session knows of a sequence; the user could set a setting to anything.

create sequence if not exists notifyq.message_notification_seq;
create sequence if not exists notifyq.event_notification_seq;
create sequence if not exists notifyq.announced_first_seq;
create sequence if not exists notifyq.announced_last_seq;
create sequence if not exists notifyq.announced_queue_seq;
create sequence if not exists notifyq.session_key_seq;
