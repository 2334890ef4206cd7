-- Transfer: where this database comes from, receipts of relays, and loads.

create table if not exists notifyq.origin (
  epoch integer not null,
  system_identifier bigint not null,
  timeline integer not null,
  reached xid8 not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint origin_epoch_timeline_pk primary key (epoch, timeline)
);

comment on table notifyq.origin is
  'The lives of this database: one row for each epoch and timeline; the largest epoch is in force.';
comment on column notifyq.origin.epoch is
  'Raised by messages.adopt(): the database came from another server, with its positions.';
comment on column notifyq.origin.system_identifier is
  'The server as initdb named it; its physical copies have the same.';
comment on column notifyq.origin.timeline is
  'Of the write-ahead log; each promotion of a standby and each restore to a moment begins one.';
comment on column notifyq.origin.reached is
  'All smaller numbers were given to transactions on this timeline, or before it.';
comment on column notifyq.origin.noted_at is 'When that was so; the upkeep notes it.';

create table if not exists notifyq.relay_receipt (
  source text not null,
  place text not null,
  received_at timestamptz not null default clock_timestamp(),
  message_id bigint,
  forget_at timestamptz not null default now() + interval '90 days',
  constraint relay_receipt_source_place_pk primary key (source, place)
);

create index if not exists relay_receipt_forget_at_idx on notifyq.relay_receipt (forget_at);

comment on table notifyq.relay_receipt is
  'One row for each message received from elsewhere, written with it: what comes again is known.';
comment on column notifyq.relay_receipt.source is
  'Where it came from: a table of a database, or a database as its relay_source() says.';
comment on column notifyq.relay_receipt.place is 'Which one it was there.';
comment on column notifyq.relay_receipt.received_at is 'When it was received.';
comment on column notifyq.relay_receipt.message_id is 'The message that it was published as.';
comment on column notifyq.relay_receipt.forget_at is
  'When the receipt goes; what comes again after that is received again.';

create table if not exists notifyq.relay_self (
  is_here boolean not null default true,
  name uuid not null default gen_random_uuid(),
  constraint relay_self_is_here_pk primary key (is_here),
  constraint relay_self_is_here_ck check (is_here)
);

comment on table notifyq.relay_self is
  'By which name relays know this database: one row, made by the first of them. A copy that is '
  'restored has the same name, as it has the same messages.';

create table if not exists notifyq.relay_mark (
  target text not null,
  source text not null,
  place text not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint relay_mark_target_source_place_pk primary key (target, source, place)
);

comment on table notifyq.relay_mark is
  'What a target has received last from here: it must have the receipts, or it was restored.';
comment on column notifyq.relay_self.is_here is 'True: there is one row at most.';
comment on column notifyq.relay_self.name is 'The name, drawn by lot.';
comment on column notifyq.relay_mark.target is 'The database, as its relay_target() says.';
comment on column notifyq.relay_mark.source is 'As in the receipt.';
comment on column notifyq.relay_mark.place is 'As in the receipt.';
comment on column notifyq.relay_mark.noted_at is
  'When the message was finished here; of each pair the latest ones are kept.';

-- Load: rows that are published all together, from outside, and what was published again.

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
comment on column notifyq.load.name is 'Its name.';
comment on column notifyq.load.created_at is 'When it was begun.';
comment on column notifyq.load.owner is 'The role that has begun it; no other may go on with it.';
comment on column notifyq.load.used_at is 'When anything was done for it last.';
comment on column notifyq.load.committed_at is 'When it was published last; null: not yet.';
comment on column notifyq.load.epoch is
  'The last part that was published of a load that goes on; null for one that ends.';
comment on column notifyq.load.published is 'Messages and events published.';
comment on column notifyq.load.merged is
  'Rows that were not, as a live message had their dedup_key.';

create table if not exists notifyq.load_attempt (
  id bigint not null,
  load text not null,
  begun_at timestamptz not null default clock_timestamp(),
  constraint load_attempt_id_pk primary key (id)
);
create index if not exists load_attempt_load_idx on notifyq.load_attempt (load);

comment on table notifyq.load_attempt is
  'Attempts to stage rows, until their load is over; then the rows are removed.';
comment on column notifyq.load_attempt.id is 'At random, so that nobody else can add rows to it.';
comment on column notifyq.load_attempt.load is 'What it is for.';
comment on column notifyq.load_attempt.begun_at is 'When it began.';

-- Unlogged: what is staged is cheap to stage again, and commit_load() counts what is there.
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
-- It is read once, so to compress it is a waste.
alter table notifyq.load_row alter column message set storage external;

comment on table notifyq.load_row is
  'Rows that are staged for a load, and those of attempts that are over until they are removed.';
comment on column notifyq.load_row.attempt is 'The number that notifyq.begin_attempt() gave.';
comment on column notifyq.load_row.position is 'Its place in the attempt.';
comment on column notifyq.load_row.available_at is 'When it is due; null: see delay.';
comment on column notifyq.load_row.origin_id is 'The archived message that it was; of replays.';
comment on column notifyq.load_row.delay is 'Seconds from the publication on.';
comment on column notifyq.load_row.queue is 'The queue, or the stream.';
comment on column notifyq.load_row.message is 'The JSON, as text.';
comment on column notifyq.load_row.headers is 'A JSON object, as text.';

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
comment on column notifyq.replay.id is 'Its number.';
comment on column notifyq.replay.name is 'Its name.';
comment on column notifyq.replay.created_at is 'When it was begun.';
comment on column notifyq.replay.owner is
  'The role that has begun it; no other may go on with it.';
comment on column notifyq.replay.target is
  'The queue or stream that it publishes into; null: each message into the queue that it was of.';
comment on column notifyq.replay.used_at is 'When it published last.';
comment on column notifyq.replay.due_at is
  'When the last message is due that it published under a rate.';
comment on column notifyq.replay.published is 'Messages and events published.';
comment on column notifyq.replay.is_closed is
  'Whether it is forgotten which messages those were, so that it cannot go on.';

create table if not exists notifyq.replayed (
  replay bigint not null,
  archive_id bigint not null,
  constraint replayed_replay_archive_id_pk primary key (replay, archive_id),
  constraint replayed_replay_fk foreign key (replay) references notifyq.replay (id)
);

comment on table notifyq.replayed is
  'What a replay has published, until 30 days after it was used last.';
comment on column notifyq.replayed.replay is 'Number of the replay.';
comment on column notifyq.replayed.archive_id is 'The message, by its id in the archive.';

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
      'What became of a load. is_new: whether this call has published it, or is to.';
  end if;
  if to_regtype('notifyq.load_reject') is null then
    create type notifyq.load_reject as (
      attempt bigint,
      "position" bigint,
      queue text,
      message text,
      reason text
    );
    comment on type notifyq.load_reject is 'A staged row that cannot be published, and why.';
  end if;
  if to_regtype('notifyq.replay_report') is null then
    create type notifyq.replay_report as (
      published bigint,
      known bigint,
      total bigint,
      due_at timestamptz,
      last_at timestamptz,
      last_id bigint
    );
    comment on type notifyq.replay_report is
      'What a step of a replay has published, what it knew already, what the replay has published '
      'in all, when the last is due, and where the next step begins.';
  end if;
  if to_regtype('notifyq.replay_count') is null then
    create type notifyq.replay_count as (
      queue text,
      type text,
      status messages.message_status,
      day date,
      messages bigint,
      known bigint
    );
    comment on type notifyq.replay_count is
      'How many messages a replay would publish, and how many of these it, or another, has.';
  end if;
end;
$$;
