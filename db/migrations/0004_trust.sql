-- Trust: who may use which queue, bounds of a payload, and which server the positions are of.
-- breaking: no
-- needs: owner
--
-- owns:    messages.origin, messages.queue_grant
-- writes:  messages.message_archive (numbers that are still to come)
-- calls:   nothing
-- raises:  nothing

-- Where a dump was restored before: with the number of an old server a row would count as new for
-- as long as this one takes to get there.
update messages.message_archive as a
set xid = '1'
where a.xid >= pg_snapshot_xmax(pg_current_snapshot());

create table messages.origin (
  epoch integer not null,
  system_identifier bigint not null,
  timeline integer not null,
  reached xid8 not null,
  noted_at timestamptz not null default clock_timestamp(),
  constraint origin_epoch_timeline_pk primary key (epoch, timeline)
);

comment on table messages.origin is
  'The lives of this database: one row for each epoch and timeline; the largest epoch is in force.';
comment on column messages.origin.epoch is
  'Raised by messages.adopt(): the database came from another server, with its positions.';
comment on column messages.origin.system_identifier is
  'The server as initdb named it; its physical copies have the same.';
comment on column messages.origin.timeline is
  'Of the write-ahead log; each promotion of a standby and each restore to a moment begins one.';
comment on column messages.origin.reached is
  'All smaller numbers were given to transactions on this timeline, or before it.';
comment on column messages.origin.noted_at is 'When that was so; the upkeep notes it.';

-- Queues that are there go on taking what they took: their publishers have not been asked.
alter table messages.queue
  add column max_bytes integer not null default 268435456,
  add constraint queue_max_bytes_ck check (max_bytes between 4096 and 268435456);
alter table messages.queue alter column max_bytes set default 1048576;

comment on column messages.queue.max_bytes is
  'Most bytes of a message and its headers together, as JSON text.';

alter type messages.queue_report add attribute max_bytes integer;

create table messages.queue_grant (
  queue text not null,
  role text not null,
  granted_at timestamptz not null default clock_timestamp(),
  may_publish boolean not null,
  may_consume boolean not null,
  constraint queue_grant_queue_role_pk primary key (queue, role),
  constraint queue_grant_may_ck check (may_publish or may_consume)
);

comment on table messages.queue_grant is
  'Which roles may use a queue; one without a row here is open to all who may publish or work.';
comment on column messages.queue_grant.queue is 'Name of the queue.';
comment on column messages.queue_grant.role is
  'The role, by its name; what it may, all of its members may.';
comment on column messages.queue_grant.granted_at is 'When it was granted, or last changed.';
comment on column messages.queue_grant.may_publish is 'Whether it may put messages in.';
comment on column messages.queue_grant.may_consume is
  'Whether it may claim, take and settle messages.';

-- Beside the new ones, which have one more argument, each call would be ambiguous; and upkeep locks
-- a row now.
drop function
  messages.create_queue(text, interval, integer, interval, interval, text, interval),
  messages.alter_queue(text, interval, integer, interval, interval, text, interval),
  messages._upkeep_key();
