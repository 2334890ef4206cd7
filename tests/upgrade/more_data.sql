-- What makes tables or moves them: a queue that is not durable, whose table is a child of the other
-- while there is one; and a stream.

select messages.create_queue('quick', durable => false);
select messages.publish('quick', '"quick"');
select messages.create_stream('log');
select messages.subscribe('log', 'reader');
insert into messages.stream_event (stream, message) values ('log', '1'), ('log', '2');
