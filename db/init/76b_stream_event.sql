-- Stream event: the events of all streams by name, and a plain insert that publishes.
--
-- A rule makes one statement of the insert and of all that publishing asks, which costs less than
-- the call of any function; what needs more asks admit_event(). A rule puts what was given wherever
-- it is named, so it is named once, in a sub-select: that is not taken apart where it would matter.
-- Functions and defaults are used with the rights of whoever inserts, tables with the owner's.
--
-- owns:    view messages.stream_event
-- writes:  messages.event; notifies new_event
-- calls:   messages._stream, messages._check_events, messages._ring_stream, messages._invalid
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ008 too large, NQ020 stream not
--          found, NQ024 stream paused

-- Whoever stops attending waits for the end of those that have a number: so one is drawn first.
create or replace function messages.admit_event(stream text, message jsonb, headers jsonb)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_stream messages.stream;
begin
  select s.* into v_stream from messages.stream as s where s.name = admit_event.stream;
  if not found then
    perform messages._invalid(
      format('%L is a queue', stream), 'insert into messages.message, or call messages.publish()'
    )
    from messages.queue as q
    where q.name = admit_event.stream;
    v_stream := messages._stream(stream);
  end if;
  -- Most are here because nobody attends.
  if (
    jsonb_typeof(coalesce(headers, '{}')) = 'object'
    and octet_length(message::text) + octet_length(coalesce(headers, '{}')::text)
      <= v_stream.lone_bytes
  ) is not true then
    if message is null then
      perform messages._invalid('message must not be null', 'publish the JSON value null instead');
    end if;
    perform messages._check_events(v_stream, array[message], headers);
  end if;
  if v_stream.bell = 'always'
    or pg_current_xact_id() is not null
      and pg_try_advisory_xact_lock_shared(hashtextextended(stream, 7305427005))
  then
    perform messages._ring_stream(v_stream);
  end if;
  return v_stream.segment;
end;
$$;
comment on function messages.admit_event(text, jsonb, jsonb) is
  'What an insert into messages.stream_event asks of a stream that has conditions, or that nobody '
  'attends: checks the event, rings, and returns the segment to write it to. Nothing to call.';

create or replace view messages.stream_event as
select e.id, s.name as stream, e.created_at, e.type, e.key, e.message, e.headers
from messages.event as e
join messages.segment as g on g.id = e.segment
join messages.stream as s on s.id = g.stream;

comment on view messages.stream_event is
  'The events of all streams. A plain insert of stream, message, type, key and headers publishes, '
  'as publish() does and with its errors, and costs less.';
comment on column messages.stream_event.id is 'Given by the database; ids of a session rise.';
comment on column messages.stream_event.stream is 'The stream that it was published into.';
comment on column messages.stream_event.created_at is 'When it was published.';
comment on column messages.stream_event.type is 'What kind of event it is.';
comment on column messages.stream_event.key is 'What it is about.';
comment on column messages.stream_event.message is 'The payload.';
comment on column messages.stream_event.headers is 'An object; empty if none is given.';

create or replace rule publish as
  on insert to messages.stream_event do instead
  insert into messages.event (segment, type, key, message, headers)
  select
    coalesce(
      (
        select s.segment
        from messages.stream as s
        where s.name = n.stream
          and octet_length(n.message::text)
            + case
                when n.headers is null then 0
                when jsonb_typeof(n.headers) = 'object' then octet_length(n.headers::text)
              end
            <= s.lone_bytes
          and case
            when pg_current_xact_id() is not null
              then not pg_try_advisory_xact_lock_shared(hashtextextended(n.stream, 7305427005))
          end
      ),
      messages.admit_event(n.stream, n.message, n.headers)
    ),
    n.type, n.key, n.message, coalesce(n.headers, '{}')
  from (
    select new.stream as stream, new.type as type, new.key as key, new.message as message,
      new.headers as headers
  ) as n
  returning
    id,
    (
      select s.name
      from messages.segment as g
      join messages.stream as s on s.id = g.stream
      where g.id = event.segment
    ),
    created_at, type, key, message, headers;
