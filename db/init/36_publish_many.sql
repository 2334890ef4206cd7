-- Publish many: put an array of messages into a queue with one statement and one bell.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_volatile; insert triggers check the queue and ring
-- calls:   messages._invalid, messages._check_due, messages._queue, messages._check_attempts,
--          messages._check_unique,
--          messages._template, messages._publish_all, messages._check_plain,
--          messages._publish_events
-- raises:  NQ001 queue not found, NQ002 message not found, NQ003 invalid argument, NQ007 no right
--          to the queue

create or replace function messages._check_keys(name text, keys text[], messages jsonb[])
  returns void
  language plpgsql
as $$
begin
  if cardinality(keys) <> cardinality(messages) then
    perform messages._invalid(
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
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_queue messages.queue;
  v_due timestamptz;
  v_null integer := array_position(publish_many.messages, null);
  v_scope text;
begin
  perform messages._check_due(publish_many.delay, publish_many.available_at);
  v_due := coalesce(
    publish_many.available_at,
    case when publish_many.delay > interval '0' then clock_timestamp() + publish_many.delay end,
    now()
  );
  v_scope := messages._check_unique(
    publish_many.dedup_keys, publish_many.dedup_scope, publish_many.dedup_window,
    publish_many.on_duplicate, v_due > now()
  );
  if v_null is not null then
    perform messages._invalid(
      format('message %s is null', v_null), 'publish the JSON value null instead'
    );
  end if;
  perform messages._check_attempts(publish_many.max_attempts);
  perform messages._check_keys('keys', publish_many.keys, publish_many.messages);
  perform messages._check_keys('dedup_keys', publish_many.dedup_keys, publish_many.messages);
  if exists (select from messages.stream as s where s.name = publish_many.queue) then
    perform messages._check_plain(
      publish_many.priority, v_due > now(),
      publish_many.dedup_keys is not null or publish_many.after is not null,
      publish_many.max_attempts
    );
    return query
    select unnest(
      messages._publish_events(
        publish_many.queue, publish_many.messages, publish_many.keys, publish_many.type,
        publish_many.headers
      )
    );
    return;
  end if;
  v_queue := messages._queue(publish_many.queue);
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
    insert into messages.message_volatile as m
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
    messages._publish_all(
      messages._template(
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
