-- Publish many: put an array of messages into a queue with one statement and one bell.
--
-- owns:    nothing
-- writes:  messages.message; the insert trigger of 40_triggers.sql checks the queue and rings
-- calls:   messages._invalid, messages._queue, messages._check_attempts
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages._check_keys(name text, keys text[], messages jsonb[])
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
  max_attempts integer default null
)
  returns setof bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
#variable_conflict use_column
declare
  v_due timestamptz := coalesce(
    publish_many.available_at,
    case when publish_many.delay > interval '0' then clock_timestamp() + publish_many.delay end,
    now()
  );
  v_null integer := array_position(publish_many.messages, null);
  v_sequence regclass := pg_get_serial_sequence('messages.message', 'id')::regclass;
  v_new bigint[];
  v_ids bigint[];
begin
  if publish_many.delay is not null and publish_many.available_at is not null then
    perform messages._invalid('delay and available_at exclude each other', 'give one of them');
  end if;
  if v_null is not null then
    perform messages._invalid(
      format('message %s is null', v_null), 'publish the JSON value null instead'
    );
  end if;
  perform messages._check_attempts(publish_many.max_attempts);
  perform messages._check_keys('keys', publish_many.keys, publish_many.messages);
  perform messages._check_keys('dedup_keys', publish_many.dedup_keys, publish_many.messages);
  perform messages._queue(publish_many.queue);
  if publish_many.dedup_keys is null then
    return query
    insert into messages.message as m
      (queue, message, priority, available_at, type, headers, key, max_attempts)
    select
      publish_many.queue, p.message, coalesce(publish_many.priority, 0), v_due, publish_many.type,
      coalesce(publish_many.headers, '{}'), p.key, publish_many.max_attempts
    from unnest(publish_many.messages, publish_many.keys) with ordinality
      as p (message, key, position)
    order by p.position
    returning m.id;
    return;
  end if;
  -- Ids in the order of the array, but rows in the order of the keys: whoever publishes a key waits
  -- for another that does, and two that take the same keys in another order wait for ever.
  v_new := array(
    select nextval(v_sequence)
    from generate_series(1, cardinality(publish_many.messages))
  );
  -- A message that was there may be finished, and its key free, before the look below: try again.
  loop
    insert into messages.message
      (id, queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts)
    overriding system value
    select
      p.new, publish_many.queue, p.message, coalesce(publish_many.priority, 0), v_due,
      publish_many.type, coalesce(publish_many.headers, '{}'), p.dedup_key, p.key,
      publish_many.max_attempts
    from unnest(
      v_new, publish_many.messages, publish_many.dedup_keys, publish_many.keys, v_ids
    ) as p (new, message, dedup_key, key, id)
    where p.id is null
    order by p.dedup_key, p.new
    on conflict (queue, dedup_key) where dedup_key is not null do nothing;
    v_ids := array(
      select case
        when p.id is not null then p.id
        when p.dedup_key is null then p.new
        else (
          select m.id
          from messages.message as m
          where m.queue = publish_many.queue
            and m.dedup_key = p.dedup_key
        )
      end
      from unnest(v_new, publish_many.dedup_keys, v_ids) with ordinality
        as p (new, dedup_key, id, position)
      order by p.position
    );
    exit when array_position(v_ids, null) is null;
  end loop;
  return query select p.id from unnest(v_ids) as p (id);
end;
$$;
comment on function messages.publish_many(
  text, jsonb[], integer, interval, timestamptz, text, jsonb, text[], text[], integer
) is
  'Publish an array of messages with one statement and one bell; return their ids in the order of '
  'the array. keys has a key, or null, for each; max_attempts is for all. dedup_keys has a key, or '
  'null, for each; the id of a message whose key is taken is that of the live one, as in publish. '
  'Raises NQ001 for an unknown queue, and NQ003 where the arrays differ in length; then nothing is '
  'published.';
