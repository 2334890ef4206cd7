-- Origin: on which server the numbers of transactions count, see 27_origin.sql.
--
-- owns:    messages.origin
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.origin (
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
