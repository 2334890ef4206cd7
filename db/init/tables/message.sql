-- Message: live messages, their deduplication keys, dependencies and redrives.

create table if not exists messages.message (
  id bigint generated always as identity,
  created_at timestamptz not null default clock_timestamp(),
  available_at timestamptz not null default now(),
  locked_at timestamptz,
  lock_expires_at timestamptz,
  lock_token bigint not null default 0,
  priority integer not null default 0,
  attempts integer not null default 0,
  state messages.message_state not null default 'waiting',
  queue text not null default 'default',
  type text,
  locked_by text,
  dedup_key text,
  message jsonb not null,
  headers jsonb not null default '{}',
  details text,
  key text,
  max_attempts integer,
  awaited boolean not null default false,
  handler_attempts integer,
  dedup_scope text,
  given_up_key text,
  blockers integer,
  constraint message_id_pk primary key (id),
  constraint message_locked_ck check (
    (state = 'locked') = (lock_expires_at is not null and locked_at is not null)
  ),
  -- No more of them: each statement that publishes or claims reads all anew.
  constraint message_headers_ck check (jsonb_typeof(headers) = 'object')
) with (
  -- Each claim and each heartbeat writes a new row version: room on the page keeps heartbeats HOT.
  fillfactor = 70,
  -- A queue table is small and turns over all the time, so the usual 20 % would come far too late.
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);

-- lock_expires_at is in no index and no index predicate, else heartbeats could not be HOT: "locked"
-- is told by state, and the reaper reads the few locked rows.
create index if not exists message_waiting_idx
  on messages.message (queue, priority desc, id) where state = 'waiting';
create index if not exists message_scheduled_idx
  on messages.message (queue, available_at) where state = 'scheduled';
create index if not exists message_locked_idx
  on messages.message (id) where state = 'locked';
create unique index if not exists message_dedup_key_uq
  on messages.message (queue, dedup_key) where dedup_key is not null;

comment on table messages.message is
  'Live messages. Inserting into column message alone is a full publish.';
comment on column messages.message.available_at is 'Not handed out before this instant.';
comment on column messages.message.locked_at is 'When the present lock was granted.';
comment on column messages.message.lock_expires_at is
  'When the present lock ends, unless extended.';
comment on column messages.message.lock_token is
  'Rises with every lock granted or given up; whoever settles must show the present one.';
comment on column messages.message.priority is 'Larger is handed out first.';
comment on column messages.message.attempts is 'Claims used up, the present one included.';
comment on column messages.message.locked_by is 'The worker that holds the lock, by its own name.';
comment on column messages.message.dedup_key is
  'At most one message of a queue has a given key while it is live, or as dedup_scope says.';
comment on column messages.message.details is 'Why the last attempt ended without success.';
comment on column messages.message.key is
  'What the message is about: order, limits and shares of a queue may go by it.';
comment on column messages.message.max_attempts is
  'Claims that this message may use up; null: as many as its queue says.';
comment on column messages.message.dedup_scope is
  'waiting: the message has its dedup_key until it is claimed; null: as long as it is live.';
comment on column messages.message.given_up_key is
  'The dedup_key that it had until it was claimed, where its scope is waiting.';
comment on column messages.message.blockers is
  'How many messages must end before this one is due; null: it waits for none.';
comment on column messages.message.awaited is
  'Whether somebody waits for the end: finished_message rings for it.';
comment on column messages.message.handler_attempts is
  'Claims that the handler allows which has the message, or had it last; null: it does not say. '
  'Negative for a relay, which goes before the message''s own.';

-- Of the same shape, so that it can be a child of messages.message: whatever reads or settles live
-- messages then finds these as well. It is one while some queue is not durable, see
-- queue/volatile.sql: a standby cannot read a table that has an unlogged child.
create unlogged table if not exists notifyq.message_volatile (
  like messages.message including defaults including constraints including comments,
  constraint message_volatile_id_pk primary key (id)
) with (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);
create index if not exists message_volatile_waiting_idx
  on notifyq.message_volatile (queue, priority desc, id) where state = 'waiting';
create index if not exists message_volatile_scheduled_idx
  on notifyq.message_volatile (queue, available_at) where state = 'scheduled';
create index if not exists message_volatile_locked_idx
  on notifyq.message_volatile (id) where state = 'locked';
create unique index if not exists message_volatile_dedup_key_uq
  on notifyq.message_volatile (queue, dedup_key) where dedup_key is not null;
create index if not exists message_volatile_key_waiting_idx
  on notifyq.message_volatile (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1),
    priority desc, id
  )
  where state = 'waiting' and key is not null;
create index if not exists message_volatile_key_idx
  on notifyq.message_volatile (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1), id
  )
  where key is not null;

comment on table notifyq.message_volatile is
  'Messages of queues that are not durable, part of messages.message while there is such a queue.';

create unlogged table if not exists notifyq.volatile_room (
  queue text not null,
  number bigint not null,
  room bigint not null,
  constraint volatile_room_queue_number_pk primary key (queue, number)
);
comment on table notifyq.volatile_room is
  'How many messages a volatile queue surely takes before those that are there are counted again.';
comment on column notifyq.volatile_room.queue is 'Name of the queue.';
comment on column notifyq.volatile_room.number is 'Rises with every change.';
comment on column notifyq.volatile_room.room is 'Messages.';

create unlogged table if not exists notifyq.volatile_count (
  queue text not null,
  finished bigint not null,
  dropped bigint not null
);
comment on table notifyq.volatile_count is
  'What became of messages of volatile queues without a row in the archive; to be added up.';
comment on column notifyq.volatile_count.queue is 'Name of the queue.';
comment on column notifyq.volatile_count.finished is 'Messages that ended as success.';
comment on column notifyq.volatile_count.dropped is
  'Messages that gave way to later ones as the queue was full.';

-- A row for each session and not for each message: it is written once, however much a session does.
create table if not exists notifyq.owner_session (
  pid integer not null,
  number integer not null,
  opened_at timestamptz not null default clock_timestamp(),
  constraint owner_session_pid_number_pk primary key (pid, number)
);

comment on table notifyq.owner_session is
  'Sessions that own messages for as long as they last, see messages.wait().';
comment on column notifyq.owner_session.pid is 'The server process.';
comment on column notifyq.owner_session.number is
  'Half of the advisory lock (730542, number) that it holds until it ends.';
comment on column notifyq.owner_session.opened_at is 'When it owned its first message.';

-- Publishing: what is remembered of it beside the messages.

-- A table of its own, because rows of the archive never change: readers follow it by transaction
-- and would not see that an old row has become a different one.
create table if not exists notifyq.redrive (
  archive_id bigint not null,
  message_id bigint not null,
  redriven_at timestamptz not null default clock_timestamp(),
  constraint redrive_archive_id_pk primary key (archive_id)
);

create index if not exists redrive_message_id_idx on notifyq.redrive (message_id);

comment on table notifyq.redrive is
  'One row for each dead message that was published again; it goes when its archived row goes.';
comment on column notifyq.redrive.archive_id is 'The dead message, by its id in the archive.';
comment on column notifyq.redrive.message_id is 'The new message that it was published as.';

create table if not exists notifyq.dedup (
  queue text not null,
  dedup_key text not null,
  id bigint not null,
  expires_at timestamptz not null,
  constraint dedup_queue_dedup_key_pk primary key (queue, dedup_key)
);

create index if not exists dedup_expires_at_idx on notifyq.dedup (expires_at);

comment on table notifyq.dedup is
  'Keys that were published with a window, until it is over; messages.maintain() removes them.';
comment on column notifyq.dedup.queue is 'The queue in which the key is taken.';
comment on column notifyq.dedup.dedup_key is 'The key that is taken.';
comment on column notifyq.dedup.id is 'The message that was published under the key.';
comment on column notifyq.dedup.expires_at is 'From then on the key may be published again.';

create table if not exists notifyq.dependency (
  message_id bigint not null,
  after_id bigint not null,
  position integer not null,
  status messages.message_status,
  available_at timestamptz,
  delay interval,
  on_failure text not null,
  constraint dependency_message_id_after_id_pk primary key (message_id, after_id),
  constraint dependency_on_failure_ck check (on_failure in ('cancel', 'run', 'hold'))
);

create index if not exists dependency_after_id_idx on notifyq.dependency (after_id);

comment on table notifyq.dependency is
  'Which messages wait for the end of which; the rows of one go when it succeeds, or with its '
  'archived row.';
comment on column notifyq.dependency.message_id is 'The message that waits.';
comment on column notifyq.dependency.after_id is 'The message that it waits for.';
comment on column notifyq.dependency.position is 'The place of the latter among all of them.';
comment on column notifyq.dependency.status is 'How the latter ended; null: it has not yet.';
comment on column notifyq.dependency.available_at is 'The message is not due before this instant.';
comment on column notifyq.dependency.delay is 'How long after the last of them it is due.';
comment on column notifyq.dependency.on_failure is
  'What becomes of the message if the latter dies. cancel: it is archived as rejected; run: it '
  'runs all the same; hold: it waits until somebody decides.';
