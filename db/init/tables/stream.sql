-- Stream: streams, events, subscriptions, batches, and subscribers that are procedures.

create table if not exists messages.stream (
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
  is_guarded boolean not null default false,
  lone_bytes integer generated always as (
    case
      when paused or is_guarded or bell = 'always' or payload_type is not null
        or payload_schema is not null then null
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
comment on column messages.stream.is_guarded is 'Whether there are grants for it.';
comment on column messages.stream.lone_bytes is
  'Most bytes of an event that publish() writes without more checks; null: each is checked.';

create table if not exists notifyq.segment (
  id bigint generated always as identity,
  stream bigint,
  opened_at timestamptz,
  closed_at timestamptz,
  low bigint not null default 0,
  durable boolean not null,
  witnesses text[],
  sealed pg_snapshot,
  changed_by xid8,
  constraint segment_id_pk primary key (id)
);

create index if not exists segment_stream_idx on notifyq.segment (stream);

comment on table notifyq.segment is
  'The tables notifyq.event_<id>, each of one stream or, empty, of none; they are used again.';
comment on column notifyq.segment.id is 'Of the table''s name.';
comment on column notifyq.segment.stream is 'The stream whose events it holds; null: none.';
comment on column notifyq.segment.opened_at is 'When publishers began to write to it.';
comment on column notifyq.segment.durable is 'Whether it survives a crash of the server.';
comment on column notifyq.segment.low is 'All events in it have larger ids.';
comment on column notifyq.segment.closed_at is 'When publishers went on to the next one.';
comment on column notifyq.segment.witnesses is
  'Transactions that were open when it was closed, and may still write to it; of an empty one, '
  'that were open when it was made, and may not know of it.';
comment on column notifyq.segment.sealed is
  'Taken when nobody could write to it any more: all of its events are visible in this snapshot.';

comment on column notifyq.segment.changed_by is
  'The transaction that has made or closed it: until that is over others know nothing of it.';

create sequence if not exists messages.event_id_seq;

-- The number of the transaction comes first: an id is taken after it, which the cut of a window
-- relies on.
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
  'Events, one row each however many subscribers; rows never change, segments are emptied whole.';
comment on column messages.event.xid is 'The transaction that published it.';
comment on column messages.event.id is 'The event; ids of a session rise.';
comment on column messages.event.segment is 'The segment, and so the table, that it is in.';
comment on column messages.event.type is 'What kind of event it is.';
comment on column messages.event.key is 'What it is about.';

create table if not exists notifyq.tick (
  id bigint generated always as identity,
  stream bigint not null,
  created_at timestamptz not null default clock_timestamp(),
  snapshot pg_snapshot not null,
  low bigint not null,
  high bigint not null,
  is_asked boolean not null,
  constraint tick_stream_id_pk primary key (stream, id)
);

create index if not exists tick_asked_idx on notifyq.tick (stream, id) where is_asked;

comment on table notifyq.tick is 'Moments of a stream that subscribers can be set to.';
comment on column notifyq.tick.id is 'Rises within the stream.';
comment on column notifyq.tick.stream is 'The stream.';
comment on column notifyq.tick.created_at is 'When that was.';
comment on column notifyq.tick.snapshot is 'What was committed then.';
comment on column notifyq.tick.low is
  'Ids of transactions that were yet to begin then are larger.';
comment on column notifyq.tick.high is 'Ids of what was committed then are not larger.';
comment on column notifyq.tick.is_asked is 'Made by tick(), so that a batch ends here.';

-- Subscription: who reads which stream, how far each has come, and whose events are forwarded.

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
  'Who reads a stream. Rows do not change when batches go: they are what next_batch() locks.';
comment on column messages.subscription.id is 'By which other tables know it.';
comment on column messages.subscription.stream is 'The stream.';
comment on column messages.subscription.name is 'The subscriber.';
comment on column messages.subscription.created_at is 'When it subscribed.';

-- Rows are only added: the newest tells where a subscription is, and where an old snapshot keeps
-- dead rows alive, they are behind it.
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
  left_at timestamptz,
  constraint batch_id_pk primary key (id),
  -- Else a transaction with an old snapshot could hand out a second batch from the same place.
  constraint batch_subscription_previous_uq unique (subscription, previous),
  constraint batch_kind_ck check (kind in ('events', 'retries', 'position'))
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

create index if not exists batch_member_idx
  on notifyq.batch (subscription, member, opened_at) where member is not null;

comment on table notifyq.batch is
  'What was handed out to subscribers: events seen by `upto` and not by `seen`, cut by id.';
comment on column notifyq.batch.id is 'What finish_batch() is given.';
comment on column notifyq.batch.subscription is 'Whose it is.';
comment on column notifyq.batch.member is
  'Who of several holds it; null: the subscription is not shared.';
comment on column notifyq.batch.opened_at is 'When it was handed out.';
comment on column notifyq.batch.seen is 'What was handed out before.';
comment on column notifyq.batch.upto is 'What is handed out with it, cut by id.';
comment on column notifyq.batch.previous is 'The batch of the subscription before it.';
comment on column notifyq.batch.kind is
  'events; retries: those of event_retry with its id; position: none, the subscriber was set here.';
comment on column notifyq.batch.seen_low is
  'Ids of transactions that were yet to begin when `seen` was taken are larger.';
comment on column notifyq.batch.upto_low is 'The same for `upto`.';
comment on column notifyq.batch.upto_high is 'Ids of what `upto` sees are not larger.';
comment on column notifyq.batch.after_id is 'Events up to this id were in batches before.';
comment on column notifyq.batch.last_id is 'Events after this id are in batches to come.';
comment on column notifyq.batch.is_last is 'Whether no more of the same two snapshots follows.';
comment on column notifyq.batch.tick is 'The newest tick that there was when `upto` was taken.';
comment on column notifyq.batch.left_at is
  'When its reader left it as it was, with a word: what comes next is not counted as an attempt.';

create table if not exists notifyq.batch_end (
  batch bigint not null,
  ended_at timestamptz not null default clock_timestamp(),
  is_finished boolean not null,
  constraint batch_end_batch_pk primary key (batch)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

comment on table notifyq.batch_end is 'Batches that were finished, or given up by a seek.';
comment on column notifyq.batch_end.batch is 'The batch.';
comment on column notifyq.batch_end.ended_at is 'When that was.';
comment on column notifyq.batch_end.is_finished is 'False: it was taken back.';

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
  'Events that one subscriber sees once more, and those of its open batch that it has failed.';
comment on column notifyq.event_retry.subscription is 'Who sees it once more.';
comment on column notifyq.event_retry.event_id is 'The event.';
comment on column notifyq.event_retry.created_at is 'When it was published.';
comment on column notifyq.event_retry.type is 'As in the event.';
comment on column notifyq.event_retry.key is 'As in the event.';
comment on column notifyq.event_retry.message is 'As in the event.';
comment on column notifyq.event_retry.headers is 'As in the event.';
comment on column notifyq.event_retry.reason is 'Why, as retry_event() was told.';
comment on column notifyq.event_retry.batch is 'The open batch that holds it; null: it waits.';
comment on column notifyq.event_retry.due_at is 'Not handed out before; null: it has failed.';
comment on column notifyq.event_retry.retries is 'How often it is handed out again.';
comment on column notifyq.event_retry.part is
  'Handed out with those of the same part alone, since one of them may be what ended its reader.';

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
  'Subscriptions that no program reads: their events are moved into a queue, each exactly once.';
comment on column notifyq.forward.subscription is 'The id of the subscription.';
comment on column notifyq.forward.queue is 'The queue that the events go into.';
comment on column notifyq.forward.filter is
  'A JSON path predicate over the payload: events that it is not true of are left out.';
comment on column notifyq.forward.failed_at is
  'When nothing could be moved; it is tried again a minute later. Null: it works.';
comment on column notifyq.forward.last_error is 'Why nothing could be moved.';

-- Procedure: what the broker of a role calls for the events of a subscriber.

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

create table if not exists notifyq.broker (
  role text not null,
  pid integer,
  started_at timestamptz,
  is_wanted boolean not null default false,
  constraint broker_role_pk primary key (role)
);

comment on table notifyq.broker is 'Brokers of this database; see messages.status_broker().';
comment on column notifyq.broker.role is 'Whose procedures it calls, and whose session it is.';
comment on column notifyq.broker.pid is 'The server process of the one that was started last.';
comment on column notifyq.broker.started_at is 'When that was.';
comment on column notifyq.broker.is_wanted is
  'Whether one was started and not stopped since: one that is lost is then started again.';

do $$
begin
  if to_regtype('notifyq.broker_turn') is null then
    create type notifyq.broker_turn as (
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
  end if;
  if to_regtype('messages.broker_report') is null then
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
  end if;
  if to_regtype('messages.handled_event') is null then
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

comment on type notifyq.broker_turn is 'What a broker does next.';
comment on type messages.broker_report is 'What there is to know of the broker of a role.';
comment on type messages.handled_event is 'An event as dequeued() gives it to a procedure.';

-- Bell: how many bells were rung, as numbers that no transaction takes back.
--
-- A number of a row would be a place where all publishers wait for each other, and a dead row for
-- each bell. What a sequence says is about right: up to 32 too many after a crash.
--
-- And which of its messages a session has announced last, see published(): the value of a sequence
-- in a session is what nextval() and setval() have given it there, out of reach of its user, who
-- could set a setting to anything.

create sequence if not exists notifyq.message_notification_seq;
create sequence if not exists notifyq.event_notification_seq;
create sequence if not exists notifyq.announced_first_seq;
create sequence if not exists notifyq.announced_last_seq;
create sequence if not exists notifyq.announced_queue_seq;
create sequence if not exists notifyq.session_key_seq;
