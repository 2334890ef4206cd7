-- Bell: how many bells were rung, as numbers that no transaction takes back.
--
-- A number of a row would be a place where all publishers wait for each other, and a dead row for
-- each bell. What a sequence says is about right: up to 32 too many after a crash.
--
-- And which of its messages a session has announced last, see _published(): the value of a sequence
-- in a session is what nextval() and setval() have given it there, out of reach of its user, who
-- could set a setting to anything.
--
-- owns:    sequences messages.message_bell_seq, messages.event_bell_seq,
--          messages.announced_first_seq, messages.announced_last_seq, messages.announced_queue_seq
--          and messages.session_key_seq
-- writes:  nothing
-- raises:  nothing

create sequence if not exists messages.message_bell_seq;
create sequence if not exists messages.event_bell_seq;
create sequence if not exists messages.announced_first_seq;
create sequence if not exists messages.announced_last_seq;
create sequence if not exists messages.announced_queue_seq;
create sequence if not exists messages.session_key_seq;
