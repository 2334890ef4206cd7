-- Transfer: the origin of this database, receipts of relays, loads and replays.

create table if not exists notifyq.origin (
  epoch integer not null,
  system_identifier bigint not null,
  timeline integer not null,
  reached xid8 not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint origin_epoch_timeline_pk primary key (epoch, timeline)
);

comment on table notifyq.origin is
  'One row for each epoch and timeline of this database; the largest epoch is in force.';
comment on column notifyq.origin.epoch is
  'Raised by messages.adopt(), when the database came from another server with its positions.';
comment on column notifyq.origin.system_identifier is
  'The server as initdb named it; physical copies have the same.';
comment on column notifyq.origin.timeline is
  'Timeline of the write-ahead log; each promotion and each point-in-time restore begins one.';
comment on column notifyq.origin.reached is
  'All smaller transaction ids were given on this timeline or before it.';

-- The key begins with the position: before its first ANALYZE, the planner expects few rows of a
-- source, and would read them all.
create table if not exists notifyq.relay_receipt (
  role text not null,
  source text not null,
  position text not null,
  received_at timestamptz not null default clock_timestamp(),
  message_id bigint,
  forget_at timestamptz not null default now() + interval '90 days',
  constraint relay_receipt_position_source_role_pk primary key (position, source, role)
);

create index if not exists relay_receipt_forget_at_idx on notifyq.relay_receipt (forget_at);

comment on table notifyq.relay_receipt is
  'One row for each received message, written with it: a message that comes again is recognised.';
comment on column notifyq.relay_receipt.role is
  'The role that received it. A receipt counts for this role alone: one that another role can '
  'write would keep a message from being received.';
comment on column notifyq.relay_receipt.source is
  'Where the messages come from: a table of a database, or the relay_source() of a database.';
comment on column notifyq.relay_receipt.position is 'Identifies the message within its source.';
comment on column notifyq.relay_receipt.message_id is 'The message as it was published here.';
comment on column notifyq.relay_receipt.forget_at is
  'When the receipt is deleted; a message that comes later is received again.';

create table if not exists notifyq.relay_self (
  is_here boolean not null default true,
  name uuid not null default gen_random_uuid(),
  constraint relay_self_is_here_pk primary key (is_here),
  constraint relay_self_is_here_ck check (is_here)
);

comment on table notifyq.relay_self is
  'The name by which relays identify this database: one row, created by the first relay. A '
  'restored copy has the same name, as it has the same messages.';

create table if not exists notifyq.relay_mark (
  role text not null,
  target text not null,
  source text not null,
  position text not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint relay_mark_role_target_source_position_pk
    primary key (role, target, source, position)
);

comment on table notifyq.relay_mark is
  'What a target received last from here. If it lacks the receipts, it was restored.';
comment on column notifyq.relay_mark.role is 'The role of the relay; others do not see the mark.';
comment on column notifyq.relay_mark.target is 'The relay_target() of the database.';
comment on column notifyq.relay_mark.source is 'As in the receipt.';
comment on column notifyq.relay_mark.position is 'As in the receipt.';
comment on column notifyq.relay_mark.noted_at is
  'When the message was finished here; the latest ones of each pair are kept.';

create table if not exists notifyq.load (
  name text not null,
  owner text not null,
  created_at timestamptz not null default clock_timestamp(),
  used_at timestamptz not null default clock_timestamp(),
  committed_at timestamptz,
  epoch bigint,
  published bigint not null default 0,
  merged bigint not null default 0,
  constraint load_name_pk primary key (name),
  constraint load_name_ck check (octet_length(name) between 1 and 200)
);

comment on table notifyq.load is
  'Loads: each name is published once, however often it is tried; see notifyq.begin_load().';
comment on column notifyq.load.owner is 'The role that began it; only this role may continue it.';
comment on column notifyq.load.committed_at is 'When it was last published; null: not yet.';
comment on column notifyq.load.epoch is
  'The last epoch that was published; null: the load has none.';
comment on column notifyq.load.merged is
  'Rows that were not published, because a live message had their dedup_key.';

create table if not exists notifyq.load_attempt (
  id bigint not null,
  load text not null,
  begun_at timestamptz not null default clock_timestamp(),
  constraint load_attempt_id_pk primary key (id)
);
create index if not exists load_attempt_load_idx on notifyq.load_attempt (load);

comment on table notifyq.load_attempt is
  'Attempts to stage rows. They end with their load; then the rows are deleted.';
comment on column notifyq.load_attempt.id is
  'A random number: other roles cannot add rows to the attempt.';

-- Unlogged: a crash only costs staging again, and commit_load() counts the rows.
create unlogged table if not exists notifyq.load_row (
  attempt bigint not null,
  position bigint not null,
  origin_id bigint,
  available_at timestamptz,
  delay double precision,
  priority integer,
  max_attempts integer,
  queue text not null,
  message text not null,
  type text,
  key text,
  headers text,
  dedup_key text,
  constraint load_row_attempt_position_pk primary key (attempt, position),
  constraint load_row_delay_ck check (delay between -31557600000 and 31557600000)
) with (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0
);
-- Rows are read once: compression would not pay.
alter table notifyq.load_row alter column message set storage external;

comment on table notifyq.load_row is
  'Rows that are staged for a load, and rows of ended attempts until they are deleted.';
comment on column notifyq.load_row.available_at is 'When it is due; null: see delay.';
comment on column notifyq.load_row.origin_id is
  'The archived message that a replay publishes again.';
comment on column notifyq.load_row.delay is 'Seconds after the publication.';
comment on column notifyq.load_row.queue is 'The queue or stream.';

create table if not exists notifyq.replay (
  id bigint generated always as identity,
  name text not null,
  owner text not null,
  target text,
  created_at timestamptz not null default clock_timestamp(),
  used_at timestamptz not null default clock_timestamp(),
  due_at timestamptz,
  published bigint not null default 0,
  is_closed boolean not null default false,
  constraint replay_id_pk primary key (id),
  constraint replay_name_uq unique (name),
  constraint replay_name_ck check (octet_length(name) between 1 and 200)
);

comment on table notifyq.replay is
  'Replays: each publishes an archived message once; see notifyq.begin_replay().';
comment on column notifyq.replay.owner is 'The role that began it; only this role may continue it.';
comment on column notifyq.replay.target is
  'The queue or stream that it publishes into; null: each message into its own queue.';
comment on column notifyq.replay.due_at is
  'When the last message that it published at a rate is due.';
comment on column notifyq.replay.is_closed is
  'Whether it has forgotten which messages it published; it cannot be continued.';

create table if not exists notifyq.replayed (
  replay bigint not null,
  archive_id bigint not null,
  constraint replayed_replay_archive_id_pk primary key (replay, archive_id),
  constraint replayed_replay_fk foreign key (replay) references notifyq.replay (id)
);

comment on table notifyq.replayed is
  'Messages that a replay has published, kept for 30 days after its last use.';
comment on column notifyq.replayed.archive_id is 'Id of the message in the archive.';

do $$
begin
  if to_regtype('notifyq.load_report') is null then
    create type notifyq.load_report as (
      name text,
      epoch bigint,
      is_new boolean,
      published bigint,
      merged bigint,
      committed_at timestamptz
    );
    comment on type notifyq.load_report is
      'The result of a load. is_new: whether this call has published it, or must.';
    create type notifyq.load_reject as (
      attempt bigint,
      "position" bigint,
      queue text,
      message text,
      reason text
    );
    comment on type notifyq.load_reject is 'A staged row that cannot be published, and why.';
    create type notifyq.replay_report as (
      published bigint,
      known bigint,
      total bigint,
      due_at timestamptz,
      last_at timestamptz,
      last_id bigint,
      refused bigint,
      reason text
    );
    comment on type notifyq.replay_report is
      'What a step of a replay published, what was known already, what the replay published in '
      'total, when the last message is due, where the next step begins, how many messages their '
      'queue or stream refused, and why the first one.';
    create type notifyq.replay_count as (
      queue text,
      type text,
      status messages.message_status,
      day date,
      messages bigint,
      known bigint
    );
    comment on type notifyq.replay_count is
      'How many messages a replay would publish, and how many were published already.';
  end if;
end;
$$;
