-- Publish: one message, or many.
--
-- raises: NQ001 queue not found (trigger), NQ002 message not found, NQ003 invalid argument, NQ007
-- no right to the stream, NQ008 too large, NQ024 stream paused, NQ001 queue not found, NQ007 no
-- right to the queue

create or replace function messages.publish(
  queue text,
  message jsonb,
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null,
  dedup_key text default null,
  key text default null,
  max_attempts integer default null,
  dedup_scope text default null,
  dedup_window interval default null,
  on_duplicate text default 'keep',
  after bigint[] default null,
  on_failure text default 'cancel'
)
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_due timestamptz;
  v_id bigint;
  v_segment bigint;
  v_room integer;
begin
  -- What a lone event costs is what most publishers pay, and each function that a test names is
  -- looked up once a transaction, asked for or not: so one that needs no other tests is written
  -- here, in the way of publish_events(), and those that it may need stand apart.
  select s.segment, s.lone_bytes into v_segment, v_room
  from messages.stream as s
  where s.name = publish.queue;
  if v_room is not null then
    if publish.headers is not null then
      v_room := case
        when jsonb_typeof(publish.headers) = 'object'
          then v_room - octet_length(publish.headers::text)
      end;
    end if;
    if octet_length(publish.message::text) <= v_room
      and publish.priority = 0
      and publish.delay is null and publish.available_at is null
      and publish.dedup_key is null and publish.after is null and publish.max_attempts is null
      -- Asked for what it does besides, see check_events().
      and pg_relation_is_updatable('notifyq.schema_version', false) is not null
    then
      insert into messages.event (segment, type, key, message, headers)
      values (
        v_segment, publish.type, publish.key, publish.message, coalesce(publish.headers, '{}')
      )
      returning id into v_id;
      if pg_try_advisory_xact_lock_shared(hashtextextended(publish.queue, 7305427005)) then
        perform notifyq.notify_stream(s) from messages.stream as s where s.name = publish.queue;
      end if;
      return v_id;
    end if;
  end if;
  if publish.delay is not null or publish.available_at is not null then
    perform notifyq.check_due(publish.delay, publish.available_at);
  end if;
  v_due := coalesce(
    publish.available_at,
    -- Not for a delay of zero: the clock is always past now(), so that would be scheduled, unrung.
    case when publish.delay > interval '0' then clock_timestamp() + publish.delay end,
    now()
  );
  if publish.message is null then
    perform notifyq.raise_invalid(
      'message must not be null', 'publish the JSON value null instead'
    );
  end if;
  if publish.queue is null then
    perform notifyq.raise_invalid('queue must not be null', 'name a queue, as in ''default''');
  end if;
  if v_segment is not null then
    perform notifyq.check_plain(
      publish.priority, v_due > now(),
      publish.dedup_key is not null or publish.after is not null, publish.max_attempts
    );
    return (
      notifyq.publish_events(
        publish.queue, array[publish.message], array[publish.key], publish.type, publish.headers
      )
    )[1];
  end if;
  if publish.max_attempts is not null then
    perform notifyq.check_attempts(publish.max_attempts);
  end if;
  -- What is seldom asked for costs the others these null tests.
  if publish.dedup_scope is not null or publish.dedup_window is not null
    or publish.on_duplicate is distinct from 'keep' or publish.after is not null
  then
    return (
      notifyq.publish_all(
        notifyq.message_template(
          publish.queue, publish.priority, v_due, publish.type, publish.headers,
          publish.max_attempts,
          notifyq.check_unique(
            case when publish.dedup_key is not null then array[publish.dedup_key] end,
            publish.dedup_scope, publish.dedup_window, publish.on_duplicate, v_due > now()
          )
        ),
        array[publish.message], array[publish.key], array[publish.dedup_key],
        publish.dedup_window, publish.on_duplicate, publish.after, publish.on_failure,
        publish.available_at, publish.delay
      )
    )[1];
  end if;
  -- A message that was there may be finished, and its key free, before the look below: try again.
  loop
    insert into messages.message
      (queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts)
    values (
      publish.queue, publish.message, coalesce(publish.priority, 0), v_due, publish.type,
      coalesce(publish.headers, '{}'), publish.dedup_key, publish.key, publish.max_attempts
    )
    on conflict (queue, dedup_key) where dedup_key is not null do nothing
    returning id into v_id;
    exit when v_id is not null;
    if publish.dedup_key is null then
      -- Diverted into message_volatile, under the number that was drawn here.
      return currval('messages.message_id_seq');
    end if;
    select m.id into v_id
    from messages.message as m
    where m.queue = publish.queue
      and m.dedup_key = publish.dedup_key;
    exit when v_id is not null;
  end loop;
  return v_id;
end;
$$;
comment on function messages.publish(
  text, jsonb, integer, interval, timestamptz, text, jsonb, text, text, integer, text, interval,
  text, bigint[], text
) is
  'Publish one message and return its id. delay counts from now, available_at is an instant; '
  'larger priority goes first. key says what the message is about; max_attempts (1 to 1000) is how '
  'often it may be claimed, null: as its queue says. While a message of the queue has the same '
  'dedup_key, the id of that one is returned. dedup_scope: it has the key while it is live, or '
  'until it is claimed (waiting); null: live with keep, else waiting. dedup_window: and for that '
  'long after it was published, finished or not. on_duplicate: keep publishes nothing; replace '
  'gives the standing message this payload, headers, type and priority, unless a worker has locked '
  'it; debounce also moves its due time to that of this one, dedup_window after its first publish '
  'at the latest. after: the message waits for the end of those, and is due then, or at '
  'available_at, or after delay. on_failure: what if one of them dies. cancel archives this one as '
  'rejected, and what waits for it; run lets it run; hold keeps it until unblock(), cancel(), or '
  'until the dead one was published again and succeeds. Raises NQ001 for an unknown queue, NQ002 '
  'for an unknown message in after, and NQ003 for options that do not go together.';

-- Publish many: put an array of messages into a queue with one statement and one bell.

create or replace function notifyq.check_keys(name text, keys text[], messages jsonb[])
  returns void
  language plpgsql
as $$
begin
  if cardinality(keys) <> cardinality(messages) then
    perform notifyq.raise_invalid(
      format('there are %s messages, but %s %s', cardinality(messages), cardinality(keys), name),
      'give a key for each message, or null where it has none'
    );
  end if;
end;
$$;

create or replace function messages.publish_many(
  queue text,
  messages jsonb[],
  priority integer default 0,
  delay interval default null,
  available_at timestamptz default null,
  type text default null,
  headers jsonb default null,
  dedup_keys text[] default null,
  keys text[] default null,
  max_attempts integer default null,
  dedup_scope text default null,
  dedup_window interval default null,
  on_duplicate text default 'keep',
  after bigint[] default null,
  on_failure text default 'cancel'
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_queue messages.queue;
  v_due timestamptz;
  v_null integer := array_position(publish_many.messages, null);
  v_scope text;
begin
  perform notifyq.check_due(publish_many.delay, publish_many.available_at);
  v_due := coalesce(
    publish_many.available_at,
    case when publish_many.delay > interval '0' then clock_timestamp() + publish_many.delay end,
    now()
  );
  v_scope := notifyq.check_unique(
    publish_many.dedup_keys, publish_many.dedup_scope, publish_many.dedup_window,
    publish_many.on_duplicate, v_due > now()
  );
  if v_null is not null then
    perform notifyq.raise_invalid(
      format('message %s is null', v_null), 'publish the JSON value null instead'
    );
  end if;
  perform notifyq.check_attempts(publish_many.max_attempts);
  perform notifyq.check_keys('keys', publish_many.keys, publish_many.messages);
  perform notifyq.check_keys('dedup_keys', publish_many.dedup_keys, publish_many.messages);
  if exists (select from messages.stream as s where s.name = publish_many.queue) then
    perform notifyq.check_plain(
      publish_many.priority, v_due > now(),
      publish_many.dedup_keys is not null or publish_many.after is not null,
      publish_many.max_attempts
    );
    return query
    select unnest(
      notifyq.publish_events(
        publish_many.queue, publish_many.messages, publish_many.keys, publish_many.type,
        publish_many.headers
      )
    );
    return;
  end if;
  v_queue := notifyq.find_queue(publish_many.queue);
  if publish_many.dedup_keys is null and publish_many.after is null and v_queue.durable then
    -- Rows of a function come in the order that it gives them. A sort would change nothing and, of
    -- very many, write a file.
    return query
    insert into messages.message as m
      (queue, message, priority, available_at, type, headers, key, max_attempts)
    select
      publish_many.queue, p.message, coalesce(publish_many.priority, 0), v_due, publish_many.type,
      coalesce(publish_many.headers, '{}'), p.key, publish_many.max_attempts
    from unnest(publish_many.messages, publish_many.keys) as p (message, key)
    returning m.id;
    return;
  end if;
  if publish_many.dedup_keys is null and publish_many.after is null then
    return query
    insert into notifyq.message_volatile as m
      (id, queue, message, priority, available_at, type, headers, key, max_attempts)
    select
      nextval('messages.message_id_seq'), publish_many.queue, p.message,
      coalesce(publish_many.priority, 0), v_due, publish_many.type,
      coalesce(publish_many.headers, '{}'), p.key, publish_many.max_attempts
    from (
      select u.* from unnest(publish_many.messages, publish_many.keys) with ordinality
        as u (message, key, position)
      order by u.position
    ) as p
    returning m.id;
    return;
  end if;
  return query
  select p.id
  from unnest(
    notifyq.publish_all(
      notifyq.message_template(
        publish_many.queue, publish_many.priority, v_due, publish_many.type, publish_many.headers,
        publish_many.max_attempts, v_scope
      ),
      publish_many.messages, publish_many.keys, publish_many.dedup_keys,
      publish_many.dedup_window, publish_many.on_duplicate, publish_many.after,
      publish_many.on_failure, publish_many.available_at, publish_many.delay
    )
  ) as p (id);
end;
$$;
comment on function messages.publish_many(
  text, jsonb[], integer, interval, timestamptz, text, jsonb, text[], text[], integer, text,
  interval, text, bigint[], text
) is
  'Publish an array of messages with one statement and one bell; return their ids in the order of '
  'the array. keys has a key, or null, for each; max_attempts is for all. dedup_keys has a key, or '
  'null, for each; the id of a message whose key is taken is that of the one that stands, and '
  'dedup_scope, dedup_window and on_duplicate are for all, as in publish. Of several in the array '
  'with one key the first is published, with replace and debounce the last. after and on_failure '
  'are for all, as in publish. Raises NQ001 for an unknown queue, NQ002 for an unknown message in '
  'after, and NQ003 where the arrays differ in length; then nothing is published.';
