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
