-- Audit: what people have done to queues and messages, and who they were.
--
-- owns:    messages.audit
-- writes:  nothing
-- raises:  nothing

create table if not exists messages.audit (
  id bigint generated always as identity,
  acted_at timestamptz not null default clock_timestamp(),
  role text not null,
  actor text not null,
  action text not null,
  subject text not null,
  origin text,
  details jsonb,
  constraint audit_id_pk primary key (id)
);

create index if not exists audit_acted_at_idx on messages.audit (acted_at);

comment on table messages.audit is
  'What people have done with the dashboard and other tools, each in the transaction that did it.';
comment on column messages.audit.acted_at is 'When.';
comment on column messages.audit.role is 'The role of the database that did it.';
comment on column messages.audit.actor is 'Who was logged in, as the tool says.';
comment on column messages.audit.action is 'What: queue.pause, message.retry.';
comment on column messages.audit.subject is 'Which: the name of a queue, the id of a message.';
comment on column messages.audit.origin is 'From where: the address of a browser, the tool.';
comment on column messages.audit.details is 'More: counts, what was changed; never payloads.';
