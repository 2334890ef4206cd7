-- Bell: publishers stay silent while a worker attends, see 23_attend.sql.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Queues that are there keep their bell: whoever listens to it may not be a worker of ours.
alter table messages.queue
  alter column bell set default 'auto',
  drop constraint queue_bell_ck,
  add constraint queue_bell_ck check (bell in ('auto', 'always', 'off'));

comment on column messages.queue.bell is
  'auto: a statement that publishes rings new_message once, unless a busy worker attends; always: '
  'it rings whoever attends; off: workers find messages by polling.';

-- It was a trigger of the statement, which 40_triggers.sql cannot make one of the row in place.
drop trigger published on messages.message;

-- Beside the new ones, which have one more argument, each call would be ambiguous.
drop function
  messages.publish_many(text, jsonb[], integer, interval, timestamptz, text, jsonb),
  messages.claim(text[], integer, interval, text, jsonpath);
