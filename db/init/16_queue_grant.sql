-- Queue grant: which roles may use a queue that is not open to all publishers and workers.
--
-- owns:    messages.queue_grant
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.queue_grant (
  queue text not null,
  -- A name and no oid: restored into a server that lacks the role, a grant to it still keeps the
  -- queue from everybody else.
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
