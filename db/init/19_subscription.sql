-- Subscription: who reads which stream, how far each has come, and whose events are forwarded.
--
-- owns:    messages.subscription, messages.batch, messages.batch_end, messages.event_retry,
--          messages.forward
-- writes:  nothing
-- raises:  nothing

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
create table if not exists messages.batch (
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
comment on column messages.batch.left_at is
  'When its reader left it as it was, with a word: what comes next is not counted as an attempt.';

create table if not exists messages.batch_end (
  batch bigint not null,
  ended_at timestamptz not null default clock_timestamp(),
  is_finished boolean not null,
  constraint batch_end_batch_pk primary key (batch)
) with (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

comment on table messages.batch_end is 'Batches that were finished, or given up by a seek.';
comment on column messages.batch_end.batch is 'The batch.';
comment on column messages.batch_end.ended_at is 'When that was.';
comment on column messages.batch_end.is_finished is 'False: it was taken back.';

create table if not exists messages.event_retry (
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
  on messages.event_retry (subscription, due_at) where batch is null;
create index if not exists event_retry_batch_idx on messages.event_retry (batch);

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
comment on column messages.event_retry.part is
  'Handed out with those of the same part alone, since one of them may be what ended its reader.';

create table if not exists messages.forward (
  subscription bigint not null,
  queue text not null,
  filter jsonpath,
  created_at timestamptz not null default clock_timestamp(),
  failed_at timestamptz,
  last_error text,
  constraint forward_subscription_pk primary key (subscription)
);

create index if not exists forward_queue_idx on messages.forward (queue);

comment on table messages.forward is
  'Subscriptions that no program reads: their events are moved into a queue, each exactly once.';
comment on column messages.forward.subscription is 'The id of the subscription.';
comment on column messages.forward.queue is 'The queue that the events go into.';
comment on column messages.forward.filter is
  'A JSON path predicate over the payload: events that it is not true of are left out.';
comment on column messages.forward.failed_at is
  'When nothing could be moved; it is tried again a minute later. Null: it works.';
comment on column messages.forward.last_error is 'Why nothing could be moved.';
