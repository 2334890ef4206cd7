-- Daily: what a team needs every day.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- What a message is about, and how often it may be tried.
alter table messages.message
  add column key text,
  add column max_attempts integer,
  add constraint message_max_attempts_ck check (max_attempts between 1 and 1000);
alter table messages.message_archive
  add column key text,
  add column max_attempts integer;

comment on column messages.message.key is
  'What the message is about: order, limits and shares of a queue may go by it.';
comment on column messages.message.max_attempts is
  'Claims that this message may use up; null: as many as its queue says.';

-- They have more arguments now.
drop function if exists
  messages.publish(text, jsonb, integer, interval, timestamptz, text, jsonb, text),
  messages.publish_many(text, jsonb[], integer, interval, timestamptz, text, jsonb, text[]);

-- Results: whose end rings, and what there is to read of it.
alter table messages.message
  add column awaited boolean not null default false;

comment on column messages.message.awaited is
  'Whether somebody waits for the end: finished_message rings for it.';

create type messages.message_report as (
  id bigint,
  queue text,
  state text,
  attempts integer,
  available_at timestamptz,
  archived_at timestamptz,
  details text,
  result jsonb
);
comment on type messages.message_report is
  'How far a message is: its state or, once finished, its status, and then its result.';
