-- Events: publish into a stream, and notify its subscribers.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ008 too large, NQ020 stream not
-- found, NQ024 stream paused

create or replace function notifyq.stream_key(stream text)
  returns bigint language plpgsql immutable
as $$
begin
  return hashtextextended(stream, 7305427005);
end;
$$;

create or replace function notifyq.notify_stream(stream messages.stream)
  returns void language plpgsql
as $$
begin
  -- A full notification queue would fail the commit, where nothing can catch the error.
  if stream.notify <> 'off' and pg_notification_queue_usage() < 0.5 then
    perform pg_notify('new_event', stream.name), nextval('notifyq.event_notification_seq');
    perform notifyq.notify_forwards(stream) where exists (select from notifyq.forward);
  end if;
end;
$$;

-- publish() has options for messages that events do not have.
create or replace function notifyq.check_event_options(
  priority integer, is_later boolean, is_bound boolean, max_attempts integer
)
  returns void language plpgsql
as $$
begin
  if priority <> 0 or is_later or is_bound or max_attempts is not null then
    perform notifyq.raise_invalid(
      'an event of a stream has no priority, delay, dedup_key, after, expires_in or max_attempts',
      'give type, headers and key only, or publish into a queue'
    );
  end if;
end;
$$;

create or replace function notifyq.check_events(
  stream messages.stream,
  payloads jsonb[],
  keys text[],
  type text,
  headers jsonb,
  is_allowed boolean default false
)
  returns void language plpgsql
as $$
declare
  v_headers text := headers::text;
  v_bytes bigint;
  v_error text;
begin
  -- A transaction that has published before may not know of a new segment: it takes no lock again
  -- that it holds, and only a new lock makes it read changed definitions. This call takes one.
  perform pg_relation_is_updatable('notifyq.schema_version', false);
  if stream.paused and current_setting('session_replication_role') <> 'replica' then
    raise exception using
      errcode = 'NQ024',
      message = format('publishing into stream %L is paused', stream.name),
      hint = format('an admin can resume it: select messages.resume_stream(%L)', stream.name);
  end if;
  if not is_allowed and exists (select from messages.queue_grant) then
    perform notifyq.check_access(stream.name, 'publish into');
  end if;
  if jsonb_typeof(headers) <> 'object' then
    perform notifyq.raise_invalid(
      format('headers must be an object: %s', left(headers::text, 100))
    );
  end if;
  select max(octet_length(p.payload_text))::bigint + coalesce(octet_length(v_headers), 0),
    min(notifyq.content_error(p.payload, p.payload_text, headers, v_headers, type, p.key))
      filter (where octet_length(concat(p.payload_text, v_headers, type, p.key)) > 200)
  into v_bytes, v_error
  from (
    select e.payload, e.payload::text as payload_text, e.key
    from (select unnest(payloads) as payload, unnest(keys) as key) as e
    offset 0
  ) as p;
  if v_bytes > stream.max_bytes then
    v_error := format(
      'an event has %s bytes with its headers, stream %L allows %s', v_bytes, stream.name,
      stream.max_bytes
    );
  end if;
  if v_error is not null then
    perform notifyq.raise_limit(
      v_error,
      'raise the size with `notifyq stream alter --max-bytes` or messages.alter_stream()'
    );
  end if;
  perform notifyq.check_payload(
    stream.name, stream.payload_type, stream.payload_schema::jsonb, stream.encrypted, p.payload
  )
  from unnest(payloads) as p (payload)
  where stream.encrypted or coalesce(stream.payload_type, stream.payload_schema) is not null;
end;
$$;

-- One event for each payload, in the order of the arrays. unnest() is in a select list: in a from
-- clause all its rows would be stored before the first one is read. The transaction id is drawn
-- before the event ids, as current_horizon() requires. It is also drawn before the suppression key
-- is tried: a session that ends suppression waits for all transactions with an id.
create or replace function notifyq.publish_events(
  name text,
  payloads jsonb[],
  keys text[],
  type text,
  headers jsonb,
  is_allowed boolean default false
)
  returns bigint[] language plpgsql
as $$
declare
  v_stream messages.stream := notifyq.find_stream(name);
  v_ids bigint[];
begin
  perform notifyq.check_events(v_stream, payloads, keys, type, headers, is_allowed);
  perform pg_current_xact_id();
  v_ids := array(
    select nextval('messages.event_id_seq') from generate_series(1, cardinality(payloads))
  );
  insert into messages.event (id, segment, type, key, message, headers)
  select p.id, v_stream.segment, publish_events.type, p.key, p.payload, coalesce(headers, '{}')
  from (
    select unnest(v_ids) as id, unnest(payloads) as payload, unnest(keys) as key
  ) as p;
  if v_stream.notify = 'always'
    or pg_try_advisory_xact_lock_shared(notifyq.stream_key(v_stream.name))
  then
    perform notifyq.notify_stream(v_stream);
  end if;
  return v_ids;
end;
$$;

create or replace function notifyq.suppress_stream(stream text, eager boolean default true)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream := notifyq.find_stream(stream);
begin
  perform notifyq.check_access(v_stream.name, 'consume from');
  if v_stream.notify <> 'auto' then
    return false;
  end if;
  return notifyq.extend_suppression(notifyq.stream_key(v_stream.name), eager);
end;
$$;
comment on function notifyq.suppress_stream(text, boolean) is
  'Suppress notifications of the stream: this session calls next_batch() every few milliseconds. '
  'Publishers skip NOTIFY until unsuppress_streams() or the end of the session, and each batch '
  'that this session opens notifies the other subscribers. Returns what suppress() does. Raises '
  'NQ020 for an unknown stream.';

create or replace function notifyq.unsuppress_streams(streams text[])
  returns xid8 language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_unlock(notifyq.stream_key(u.name)) from unnest(streams) as u (name);
  return pg_current_xact_id();
end;
$$;
comment on function notifyq.unsuppress_streams(text[]) is
  'End the suppression of notifications, in a transaction of its own. Once is_transaction_over() '
  'is true for the returned transaction id, one more poll finds all that was published without '
  'NOTIFY.';

-- Stream event: a view of the events of all streams; a plain insert into it publishes.
--
-- The rule makes one statement of the insert and the common checks, which costs less than a
-- function call; admit_event() does the other checks, also of what content_error() may refuse. A
-- rule repeats an expression wherever its column is named, so each is named once, in a sub-select.
-- Its `offset 0` keeps the planner from merging it with the rest: a function declared stable would
-- be called for the check and again for the row. Functions and defaults run with the rights of the
-- caller, tables are read with those of the owner.

-- The transaction id is drawn before the suppression key is tried, as in publish_events().
create or replace function notifyq.admit_event(
  stream text, message jsonb, headers jsonb, type text default null, key text default null
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_stream messages.stream;
  v_text text := message::text;
begin
  select s.* into v_stream from messages.stream as s where s.name = admit_event.stream;
  if not found then
    perform notifyq.raise_invalid(
      format('%L is a queue', stream), 'insert into messages.message, or call messages.publish()'
    )
    from messages.queue as q
    where q.name = admit_event.stream;
    v_stream := notifyq.find_stream(stream);
  end if;
  -- Most calls come here because no subscriber suppresses notifications.
  if (
    jsonb_typeof(coalesce(headers, '{}')) = 'object'
    and octet_length(v_text) + octet_length(coalesce(headers, '{}')::text)
      <= v_stream.unchecked_bytes
    and octet_length(headers::text) > 200 is not true
    and octet_length(concat(type, key)) <= 200
    and not jsonb_path_exists(message, '$.**{101}')
    and (octet_length(v_text) <= 4000 or v_text !~ '[0-9]{255}')
  ) is not true then
    if message is null then
      perform notifyq.raise_invalid(
        'message must not be null', 'publish the JSON value null instead'
      );
    end if;
    perform notifyq.check_events(v_stream, array[message], array[key], type, headers);
  end if;
  if v_stream.notify = 'always'
    or pg_current_xact_id() is not null
      and pg_try_advisory_xact_lock_shared(hashtextextended(stream, 7305427005))
  then
    perform notifyq.notify_stream(v_stream);
  end if;
  return v_stream.segment;
end;
$$;
comment on function notifyq.admit_event is
  'Called by an insert into messages.stream_event, for a stream with conditions or without '
  'suppressed notifications: checks the event, notifies, and returns the segment to write to. Not '
  'for direct use.';

create or replace view messages.stream_event as
select e.id, s.name as stream, e.created_at, e.type, e.key, e.message, e.headers
from messages.event as e
join notifyq.segment as g on g.id = e.segment
join messages.stream as s on s.id = g.stream;

comment on view messages.stream_event is
  'The events of all streams. A plain insert of stream, message, type, key and headers publishes '
  'with the checks and errors of publish(), and costs less.';
comment on column messages.stream_event.id is 'Given by the database; the ids of a session rise.';
comment on column messages.stream_event.stream is 'The stream that it was published into.';
comment on column messages.stream_event.type is 'What kind of event it is.';
comment on column messages.stream_event.key is 'What the event is about.';
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
          -- First, as admit_event() checks what subscribers are notified of.
          and case
            when pg_current_xact_id() is null
              or pg_try_advisory_xact_lock_shared(hashtextextended(n.stream, 7305427005)) then false
            else
              octet_length(n.message::text)
                + case
                    when n.headers is null then 0
                    when jsonb_typeof(n.headers) = 'object' and octet_length(n.headers::text) <= 200
                      then octet_length(n.headers::text)
                  end
                <= s.unchecked_bytes
              and (n.type is null or octet_length(n.type) <= 200)
              and (n.key is null or octet_length(n.key) <= 200)
              and not jsonb_path_exists(n.message, '$.**{101}')
              and (octet_length(n.message::text) <= 4000 or n.message::text !~ '[0-9]{255}')
          end
      ),
      notifyq.admit_event(n.stream, n.message, n.headers, n.type, n.key)
    ),
    n.type, n.key, n.message, coalesce(n.headers, '{}')
  from (
    select new.stream as stream, new.type as type, new.key as key, new.message as message,
      new.headers as headers
    offset 0
  ) as n
  returning
    id,
    (
      select s.name
      from notifyq.segment as g
      join messages.stream as s on s.id = g.stream
      where g.id = event.segment
    ),
    created_at, type, key, message, headers;
