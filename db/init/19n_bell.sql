-- Bell: how many bells were rung, as numbers that no transaction takes back.
--
-- A number of a row would be a place where all publishers wait for each other, and a dead row for
-- each bell. What a sequence says is about right: up to 32 too many after a crash.
--
-- owns:    sequences messages.message_bell_seq and messages.event_bell_seq
-- writes:  nothing
-- raises:  nothing

create sequence if not exists messages.message_bell_seq;
create sequence if not exists messages.event_bell_seq;
