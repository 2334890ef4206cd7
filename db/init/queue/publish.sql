-- Publish: put one message, or an array of messages, into a queue or a stream.
--
-- raises: NQ001 queue not found, NQ002 message not found, NQ003 invalid argument, NQ007 no right to
-- the queue or stream, NQ008 too large, NQ024 stream paused

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
  on_failure text default 'cancel',
  expires_in interval default null,
  cost integer default null
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_due timestamptz := now();
  v_id bigint;
  v_segment bigint;
  v_room integer;
  v_text text;
begin
  if publish.cost is not null then
    publish.headers := notifyq.with_cost(publish.headers, publish.cost);
  end if;
  -- Most publishers pay the price of a single event, and each function that a condition names is
  -- resolved once per transaction, called or not: an event that needs no further checks is written
  -- here, as publish_events() would, and the functions for other cases stand apart.
  select s.segment, s.unchecked_bytes into v_segment, v_room
  from messages.stream as s
  where s.name = publish.queue;
  if v_room is not null then
    v_text := publish.message::text;
    if publish.headers is not null then
      v_room := case
        when jsonb_typeof(publish.headers) = 'object' and octet_length(publish.headers::text) <= 200
          then v_room - octet_length(publish.headers::text)
      end;
    end if;
    if octet_length(v_text) <= v_room
      and (publish.type is null or octet_length(publish.type) <= 200)
      and (publish.key is null or octet_length(publish.key) <= 200)
      and not jsonb_path_exists(publish.message, '$.**{101}')
      and (octet_length(v_text) <= 4000 or v_text !~ '[0-9]{255}')
      and publish.priority = 0
      and publish.delay is null and publish.available_at is null
      and publish.dedup_key is null and publish.after is null and publish.max_attempts is null
      and publish.expires_in is null
      and publish.on_duplicate = 'keep'
      and publish.dedup_scope is null and publish.dedup_window is null
      -- Called for a side effect, see check_events().
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
    v_due := notifyq.due_at(publish.delay, publish.available_at);
  end if;
  if publish.message is null then
    perform notifyq.raise_invalid(
      'message must not be null', 'publish the JSON value null instead'
    );
  end if;
  if publish.queue is null then
    perform notifyq.raise_invalid('queue must not be null', 'name a queue, as in ''default''');
  end if;
  if v_segment is not null then
    perform notifyq.check_unique(
      case when publish.dedup_key is not null then array[publish.dedup_key] end,
      publish.dedup_scope, publish.dedup_window, publish.on_duplicate, v_due > now()
    );
    perform notifyq.check_event_options(
      publish.priority, v_due > now(),
      num_nonnulls(publish.dedup_key, publish.after, publish.expires_in) > 0, publish.max_attempts
    );
    return (
      notifyq.publish_events(
        publish.queue, array[publish.message], array[publish.key], publish.type, publish.headers
      )
    )[1];
  end if;
  if publish.max_attempts is not null then
    perform notifyq.check_between('max_attempts', publish.max_attempts, 1, 1000);
  end if;
  -- Rare options cost all other calls only these tests for null.
  if publish.on_duplicate is distinct from 'keep' or num_nonnulls(
    publish.dedup_scope, publish.dedup_window, publish.after, publish.expires_in
  ) > 0 then
    return (
      select messages.publish_many(
        publish.queue, array[publish.message], publish.priority, publish.delay,
        publish.available_at, publish.type, publish.headers,
        case when publish.dedup_key is not null then array[publish.dedup_key] end,
        array[publish.key], publish.max_attempts, publish.dedup_scope, publish.dedup_window,
        publish.on_duplicate, publish.after, publish.on_failure, publish.expires_in
      )
    );
  end if;
  -- The existing message may be finished, and its key free, before the query below: try again.
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
      -- Diverted into message_unlogged, with the id that was drawn here.
      return currval('messages.message_id_seq');
    end if;
    select m.id into v_id
    from messages.message as m
    where m.queue = publish.queue
      and m.dedup_key = publish.dedup_key;
    if v_id is not null then
      -- Unless it is new, and was diverted into message_unlogged.
      if v_id <> currval('messages.message_id_seq') then
        perform notifyq.note_duplicates(array[v_id]);
      end if;
      exit;
    end if;
  end loop;
  return v_id;
end;
$$;
comment on function messages.publish is
  'Publish one message and return its id. delay counts from now, available_at is an instant; a '
  'larger priority goes first. key is what the message is about; max_attempts (1 to 1000): how '
  'often it may be claimed, null: as set by its queue. While a message of the queue has the same '
  'dedup_key, the id of that message is returned, and is_duplicate() is true for it. dedup_scope: '
  'it has the key while it is live, '
  'or until it is claimed (waiting); null: live with keep, else waiting. dedup_window: and for '
  'that long after it was published, finished or not. on_duplicate: keep publishes nothing; '
  'replace gives the existing message this payload, headers, type and priority, unless a worker '
  'has locked it; debounce also moves its due time to that of this one, at most dedup_window '
  'after it was first published. after: the message waits for the end of those messages, and is '
  'due then, or at available_at, or after delay. on_failure: what happens if one of them does not '
  'succeed. cancel archives this message, and those that wait for it, as rejected; run lets it '
  'run; hold keeps it until unblock() or cancel(), or until the dead message was published again '
  'and succeeded. expires_in: a new message that nobody has claimed by then is archived as '
  'rejected, with the details `expired`. cost (1 to 1000000000, null: 1): how many tokens each '
  'attempt takes from the rates of its queue and key; it is the header `cost`. Raises NQ001 for an '
  'unknown queue, NQ002 for an unknown message in after, and NQ003 for options that exclude each '
  'other.';

create or replace function notifyq.check_keys(name text, keys text[], messages jsonb[])
  returns void language plpgsql
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
  on_failure text default 'cancel',
  expires_in interval default null,
  cost integer default null
)
  returns setof bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_queue messages.queue;
  v_due timestamptz := notifyq.due_at(delay, available_at);
  v_null integer := array_position(publish_many.messages, null);
  v_scope text;
  template messages.message;
begin
  if publish_many.cost is not null then
    publish_many.headers := notifyq.with_cost(publish_many.headers, publish_many.cost);
  end if;
  v_scope := notifyq.check_unique(
    publish_many.dedup_keys, publish_many.dedup_scope, publish_many.dedup_window,
    publish_many.on_duplicate, v_due > now()
  );
  if v_null is not null then
    perform notifyq.raise_invalid(
      format('message %s is null', v_null), 'publish the JSON value null instead'
    );
  end if;
  perform notifyq.check_between('max_attempts', publish_many.max_attempts, 1, 1000),
    notifyq.check_keys('keys', publish_many.keys, publish_many.messages),
    notifyq.check_keys('dedup_keys', publish_many.dedup_keys, publish_many.messages);
  if exists (select from messages.stream as s where s.name = publish_many.queue) then
    perform notifyq.check_event_options(
      publish_many.priority, v_due > now(),
      num_nonnulls(publish_many.dedup_keys, publish_many.after, publish_many.expires_in) > 0,
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
  if num_nonnulls(publish_many.dedup_keys, publish_many.after, publish_many.expires_in) > 0 then
    template.queue := publish_many.queue;
    template.priority := coalesce(publish_many.priority, 0);
    template.available_at := v_due;
    template.type := publish_many.type;
    template.headers := coalesce(publish_many.headers, '{}');
    template.max_attempts := publish_many.max_attempts;
    template.dedup_scope := v_scope;
    return query
    select unnest(
      notifyq.publish_all(
        v_queue, template, publish_many.messages, publish_many.keys, publish_many.dedup_keys,
        publish_many.dedup_window, publish_many.on_duplicate, publish_many.after,
        publish_many.on_failure, publish_many.available_at, publish_many.delay,
        notifyq.expires_at(publish_many.expires_in, v_due)
      )
    );
  elsif v_queue.durable then
    -- Ids that are drawn together cost less. Rows of a function keep their order.
    return query
    insert into messages.message as m
      (id, queue, message, priority, available_at, type, headers, key, max_attempts)
    overriding system value
    select
      p.id, publish_many.queue, p.message, coalesce(publish_many.priority, 0), v_due,
      publish_many.type, coalesce(publish_many.headers, '{}'), p.key, publish_many.max_attempts
    from unnest(
      array(select nextval('messages.message_id_seq') from unnest(publish_many.messages)),
      publish_many.messages, publish_many.keys
    ) as p (id, message, key)
    returning m.id;
  else
    return query
    insert into notifyq.message_unlogged as m
      (id, queue, message, priority, available_at, type, headers, key, max_attempts)
    select
      p.id, publish_many.queue, p.message, coalesce(publish_many.priority, 0), v_due,
      publish_many.type, coalesce(publish_many.headers, '{}'), p.key, publish_many.max_attempts
    from unnest(
      array(select nextval('messages.message_id_seq') from unnest(publish_many.messages)),
      publish_many.messages, publish_many.keys
    ) as p (id, message, key)
    returning m.id;
  end if;
end;
$$;
comment on function messages.publish_many is
  'Publish an array of messages with one statement and one notification; return their ids in the '
  'order of the array. keys has a key, or null, for each; so has dedup_keys, and for a message '
  'whose key is taken the id of the existing one is returned. max_attempts, dedup_scope, '
  'dedup_window, on_duplicate, after, on_failure, expires_in and cost are for all, as in '
  'publish(). Of several messages in the array with one dedup_key the first is published, with '
  'replace and debounce the last. Raises NQ001 for an unknown queue, NQ002 for an unknown message '
  'in after, and NQ003 where the arrays differ in length; then nothing is published.';
