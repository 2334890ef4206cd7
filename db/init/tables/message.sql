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
  parked_at timestamptz,
  root_id bigint,
  -- No checks here: each statement that publishes, claims or finishes would parse all of them anew,
  -- a third of its time for a single message. Triggers check what roles may insert, the functions
  -- that change rows keep the rest in bounds.
  constraint message_id_pk primary key (id)
) with (
  -- Room on each page for a second version of each row: a claim that writes it to another page has
  -- a tenth more WAL. Heartbeats are HOT only with such room.
  fillfactor = 50,
  -- The default of 20 % would vacuum far too late: the table is small and turns over all the time.
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);

comment on table messages.message is
  'Live messages. Inserting into column message alone is a full publish.';
comment on column messages.message.available_at is 'It cannot be claimed before this time.';
comment on column messages.message.locked_at is 'When the present lock was granted.';
comment on column messages.message.lock_expires_at is
  'When the present lock ends, unless it is extended.';
comment on column messages.message.lock_token is
  'Rises whenever a lock is granted or given up; to settle, a worker must show the present one.';
comment on column messages.message.priority is 'Larger is claimed first.';
comment on column messages.message.attempts is
  'How often it was claimed, the present claim included.';
comment on column messages.message.locked_by is 'The worker that holds the lock, by its own name.';
comment on column messages.message.dedup_key is
  'At most one live message of a queue has a given key; dedup_scope may shorten that.';
comment on column messages.message.details is 'Why the last attempt did not succeed.';
comment on column messages.message.key is
  'What the message is about; order, limits and shares of a queue can go by it.';
comment on column messages.message.max_attempts is
  'How often this message may be claimed; null: as set by its handler or queue.';
comment on column messages.message.dedup_scope is
  'waiting: the message has its dedup_key until it is claimed; null: as long as it is live.';
comment on column messages.message.given_up_key is
  'The dedup_key that it had until it was claimed, where dedup_scope is waiting.';
comment on column messages.message.blockers is
  'How many messages must finish before this one is due; null: it waits for none.';
comment on column messages.message.parked_at is
  'Since when it waits for a sleep, a signal or other messages; null: it does not.';
comment on column messages.message.root_id is
  'The message whose recorded steps this one continues: itself, or the first of those that were '
  'dead and published again. null: nothing is recorded for it.';
comment on column messages.message.awaited is
  'Whether a client waits for the result: the end is notified on finished_message.';
comment on column messages.message.handler_attempts is
  'How many attempts the handler that claimed it allows; null: the handler has no setting. '
  'Negative for a relay, whose number overrides the message''s own.';

-- It has the columns of messages.message and is its child while there is an unlogged queue, see
-- queue/unlogged.sql: claims and settlements then find these messages as well. It is not always a
-- child, because a standby cannot read a table that has an unlogged child.
create unlogged table if not exists notifyq.message_unlogged (
  like messages.message including defaults including constraints including comments,
  constraint message_unlogged_id_pk primary key (id)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.05
);

-- Indexes of both tables. Heartbeats are HOT only while lock_expires_at is in no index and no index
-- predicate: the column state marks a locked row, and the reaper reads the few locked rows. The
-- first column of the last two is notifyq.key_hash(), spelled out: roles that insert need not have
-- the right to call it. Messages without a key are in neither.
do $$
declare
  v_table record;
begin
  for v_table in values ('messages', 'message'), ('notifyq', 'message_unlogged') loop
    execute format(
      $indexes$
        create index if not exists %2$s_waiting_idx
          on %1$s.%2$s (queue, priority desc, id) where state = 'waiting';
        create index if not exists %2$s_scheduled_idx
          on %1$s.%2$s (queue, available_at) where state = 'scheduled';
        create index if not exists %2$s_locked_idx
          on %1$s.%2$s (id) where state = 'locked';
        create unique index if not exists %2$s_dedup_key_uq
          on %1$s.%2$s (queue, dedup_key) where dedup_key is not null;
        create index if not exists %2$s_key_waiting_idx
          on %1$s.%2$s (
            (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1),
            priority desc, id
          )
          where state = 'waiting' and key is not null;
        create index if not exists %2$s_key_idx
          on %1$s.%2$s (
            (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1), id
          )
          where key is not null;
      $indexes$,
      v_table.column1, v_table.column2
    );
  end loop;
end;
$$;

comment on table notifyq.message_unlogged is
  'Messages of unlogged queues, part of messages.message while there is such a queue.';

create unlogged table if not exists notifyq.unlogged_room (
  queue text not null,
  number bigint not null,  -- rises with every change
  room bigint not null,
  constraint unlogged_room_queue_number_pk primary key (queue, number)
);
comment on table notifyq.unlogged_room is
  'How many messages a ring queue can take before those in it are counted again.';

create unlogged table if not exists notifyq.unlogged_count (
  queue text not null,
  finished bigint not null,  -- messages that succeeded
  dropped bigint not null  -- messages that were dropped because the queue was full
);
comment on table notifyq.unlogged_count is
  'Counts, to be added up, of messages of unlogged queues that have no row in the archive.';

-- One row for each session, not for each message: a session writes it once.
create table if not exists notifyq.owner_session (
  pid integer not null,  -- process id of the server process
  number integer not null,  -- the session holds the advisory lock (730542, number) until it ends
  opened_at timestamptz not null default clock_timestamp(),
  constraint owner_session_pid_number_pk primary key (pid, number)
);
comment on table notifyq.owner_session is
  'Sessions that own messages until they end, see messages.wait().';

-- A table of its own, because rows of the archive never change: readers follow the archive by
-- transaction and would not see a change of an old row.
create table if not exists notifyq.redrive (
  archive_id bigint not null,
  message_id bigint not null,  -- the new message
  redriven_at timestamptz not null default clock_timestamp(),
  constraint redrive_archive_id_pk primary key (archive_id)
);
create index if not exists redrive_message_id_idx on notifyq.redrive (message_id);
comment on table notifyq.redrive is
  'One row for each dead message that was published again; it is deleted with its archived row.';

create table if not exists notifyq.expiry (
  message_id bigint not null,
  expires_at timestamptz not null,
  constraint expiry_message_id_pk primary key (message_id)
);
create index if not exists expiry_expires_at_idx on notifyq.expiry (expires_at);
comment on table notifyq.expiry is
  'Messages that end if nobody claims them in time; a row stays until then.';
comment on column notifyq.expiry.message_id is 'The message.';
comment on column notifyq.expiry.expires_at is 'Until when it must be claimed.';

create table if not exists notifyq.dedup (
  queue text not null,
  dedup_key text not null,
  id bigint not null,  -- the message that was published with the key
  expires_at timestamptz not null,  -- from then on the key may be published again
  constraint dedup_queue_dedup_key_pk primary key (queue, dedup_key)
);
create index if not exists dedup_expires_at_idx on notifyq.dedup (expires_at);
comment on table notifyq.dedup is
  'Keys that were published with a dedup_window, until it ends; messages.maintain() deletes them.';

create table if not exists notifyq.dependency (
  message_id bigint not null,  -- the message that waits
  after_id bigint not null,  -- the message that it waits for
  position integer not null,  -- of after_id among all that the message waits for
  status messages.message_status,  -- how after_id ended; null: it is live
  available_at timestamptz,  -- the message is not due before this time
  delay interval,  -- between the end of the last after_id and the due time of the message
  on_failure text not null,  -- what happens to the message if after_id does not succeed
  constraint dependency_message_id_after_id_pk primary key (message_id, after_id),
  constraint dependency_on_failure_ck check (on_failure in ('cancel', 'run', 'hold'))
);
create index if not exists dependency_after_id_idx on notifyq.dependency (after_id);
comment on table notifyq.dependency is
  'Which message waits for which. Rows of a message are deleted when it succeeds, or with its '
  'archived row.';
