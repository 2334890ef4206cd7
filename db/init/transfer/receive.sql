-- Receive: publish messages of another database, each once.
--
-- Receipts belong to the role that receives: with a shared one, a role that may only publish could
-- write the receipt of a message that it has never seen, and the message would be lost.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ008 over a
-- limit, NQ010 queue full, NQ024 stream paused, NQ905 receipts lost

create or replace function messages.receive(source text, messages jsonb)
  returns messages.receipt_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_role text := notifyq.calling_role();
  v_sent record;
  v_fresh text[];
  v_report messages.receipt_report := row(0, 0, 0);
begin
  if receive.source is null or receive.source = '' then
    perform notifyq.raise_invalid('source must not be empty', 'name the system of the messages');
  end if;
  if jsonb_typeof(receive.messages) is distinct from 'array' then
    perform notifyq.raise_invalid('messages must be an array of objects');
  end if;
  if jsonb_path_exists(
    receive.messages, '$[*] ? (!exists(@.position ? (@ != null)) || !exists(@.queue))'
  ) then
    perform notifyq.raise_invalid('each message must have a position and a queue');
  end if;
  -- First, and ordered: a session that receives the same messages at the same time waits here for
  -- the end of this transaction, and then finds the receipts.
  with fresh as (
    insert into notifyq.relay_receipt (role, source, position)
    select distinct v_role, receive.source, s.position
    from jsonb_to_recordset(receive.messages) as s (position text)
    order by s.position
    on conflict do nothing
    returning position
  )
  select coalesce(array_agg(f.position), '{}') into v_fresh from fresh as f;
  for v_sent in
    select s.*, row_number() over (partition by s.position order by e.ordinal) as nth
    from jsonb_array_elements(receive.messages) with ordinality as e (one, ordinal)
    cross join lateral jsonb_to_record(e.one) as s (
      position text, queue text, message jsonb, priority integer, available_at timestamptz,
      type text, headers jsonb, dedup_key text, key text, max_attempts integer
    )
    where s.position = any (v_fresh)
    order by e.ordinal
  loop
    continue when v_sent.nth > 1;
    v_report.merged := v_report.merged + notifyq.receive_one(
      v_role, receive.source, v_sent.position, v_sent.queue,
      -- jsonb_to_recordset() turns the JSON null into the SQL null.
      coalesce(v_sent.message, 'null'), v_sent.priority, v_sent.available_at, v_sent.type,
      v_sent.headers, v_sent.key, v_sent.dedup_key, null, v_sent.max_attempts
    );
    v_report.published := v_report.published + 1;
  end loop;
  v_report.known := jsonb_array_length(receive.messages) - v_report.published;
  v_report.published := v_report.published - v_report.merged;
  return v_report;
end;
$$;
comment on function messages.receive(text, jsonb) is
  'Publish messages from another system, each once. source identifies the system; messages is an '
  'array of objects with position (which one it is there), queue, message, and as in publish '
  'priority, available_at, type, headers, dedup_key, key, max_attempts. All in the transaction of '
  'the caller, with a receipt for each in relay_receipt; messages for which the same role has a '
  'receipt are left out. Returns how many were published, merged (a live message has that '
  'dedup_key) and known. Receipts are kept for 90 days. Raises NQ001 for an unknown queue, NQ003 '
  'for an invalid array, and the errors of publish; then nothing was received.';

-- Publish a message that has its receipt already; returns 1 if a live one has its dedup_key.
create or replace function notifyq.receive_one(
  role text,
  source text,
  "position" text,
  queue text,
  message jsonb,
  priority integer,
  available_at timestamptz,
  type text,
  headers jsonb,
  key text,
  dedup_key text,
  dedup_scope text,
  max_attempts integer
)
  returns integer language plpgsql
  set enable_seqscan = off
as $$
declare
  v_is_there boolean := dedup_key is not null and exists (
    select from messages.message as m
    where m.queue = receive_one.queue and m.dedup_key = receive_one.dedup_key
  );
  v_id bigint := messages.publish(
    queue => queue, message => message, priority => priority, available_at => available_at,
    type => type, headers => headers, dedup_key => dedup_key, key => key,
    max_attempts => max_attempts, dedup_scope => dedup_scope
  );
begin
  update notifyq.relay_receipt as r
  set message_id = v_id
  where r.role = receive_one.role
    and r.source = receive_one.source
    and r.position = receive_one.position;
  return v_is_there::integer;
end;
$$;

-- Keep a message that its queue or stream refuses, as a dead one, with a receipt.
create or replace function notifyq.receive_dead(
  source text,
  receipt text,
  queue text,
  message jsonb,
  type text,
  headers jsonb,
  key text,
  details text,
  remember interval default '90 days'
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_role text := notifyq.calling_role();
  v_id bigint;
begin
  perform notifyq.check_given('source', receive_dead.source is not null),
    notifyq.check_given('receipt', receive_dead.receipt is not null),
    notifyq.check_given('message', receive_dead.message is not null),
    notifyq.check_given('headers', receive_dead.headers is not null),
    notifyq.check_given('remember', receive_dead.remember is not null),
    notifyq.check_positive('remember', receive_dead.remember);
  perform notifyq.check_target(receive_dead.queue);
  -- No plaintext is kept where the database refuses it.
  perform notifyq.check_envelope(receive_dead.queue, 'payload', receive_dead.message)
  where exists (
    select from messages.queue as q where q.name = receive_dead.queue and q.encrypted
    union all
    select from messages.stream as s where s.name = receive_dead.queue and s.encrypted
  );
  insert into notifyq.relay_receipt as r (role, source, position, forget_at)
  values (
    v_role, receive_dead.source, receive_dead.receipt, clock_timestamp() + receive_dead.remember
  )
  on conflict do nothing;
  if found then
    v_id := notifyq.archive_event(
      receive_dead.queue, null, null, clock_timestamp(), receive_dead.type, receive_dead.key,
      receive_dead.message, receive_dead.headers, 1, receive_dead.details, 'rejected'
    );
    update notifyq.relay_receipt as r
    set message_id = v_id
    where r.role = v_role
      and r.source = receive_dead.source
      and r.position = receive_dead.receipt;
    return v_id;
  end if;
  return (
    select r.message_id
    from notifyq.relay_receipt as r
    where r.role = v_role
      and r.source = receive_dead.source
      and r.position = receive_dead.receipt
  );
end;
$$;
comment on function notifyq.receive_dead(
  text, text, text, jsonb, text, jsonb, text, text, interval
) is
  'Archive a message that receive_many() refused, as a dead message of its queue or stream with '
  'the reason in details, once: a message for which the same role has a receipt is left out. '
  'Returns its id. Raises NQ001 for an unknown queue, NQ003 for plaintext where the queue is '
  'encrypted, NQ007 for a queue without the right to publish, NQ024 for a paused stream.';

-- Delete old receipts and marks.
create or replace function notifyq.forget_receipts(quantity integer)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  delete from notifyq.relay_receipt as r
  where r.ctid = any (array(
    select o.ctid
    from notifyq.relay_receipt as o
    where o.forget_at < now()
    order by o.forget_at
    limit forget_receipts.quantity
    for update skip locked
  ));
  -- The latest mark alone would not do: parallel relays record theirs in any order.
  delete from notifyq.relay_mark as k
  where k.ctid = any (array(
    select o.ctid
    from (
      select m.ctid, m.noted_at,
        row_number() over (
          partition by m.role, m.target, m.source order by m.noted_at desc
        ) as nth
      from notifyq.relay_mark as m
    ) as o
    where o.nth > 20
      and o.noted_at < now() - interval '1 minute'
    limit forget_receipts.quantity
  ));
end;
$$;

create or replace function notifyq.check_receipts(role text, source text, positions text[])
  returns void language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
declare
  v_missing text := (
    select u.position
    from unnest(positions) as u (position)
    where not exists (
      select from notifyq.relay_receipt as r
      where r.role = check_receipts.role
        and r.source = check_receipts.source
        and r.position = u.position
      -- Each is looked up, as in receive_many().
      offset 0
    )
    limit 1
  );
begin
  if v_missing is not null then
    raise exception using
      errcode = 'NQ905',
      message = format(
        'this database lacks receipts of messages that it has received, as of %s: it was restored '
        'to an earlier state', v_missing
      ),
      hint = 'messages relayed since then are lost here and finished at the source: publish them '
        'again from the archive there, then run `notifyq relay --accept-restored`';
  end if;
end;
$$;

create or replace function notifyq.receive_many(
  source text,
  positions text[],
  queues text[],
  messages jsonb[],
  priorities integer[],
  types text[],
  headers jsonb[],
  keys text[],
  dedup_keys text[],
  dedup_scopes text[],
  max_attempts integer[],
  after text[] default null,
  remember interval default '90 days'
)
  returns notifyq.relay_report language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_role text := notifyq.calling_role();
  v_report notifyq.relay_report := row('{}'::bigint[], 0, 0);
  v_sent integer := cardinality(receive_many.positions);
  v_drawn bigint[];
  v_ids bigint[];
  v_are_new boolean;
  v_one record;
  v_streams text[];
begin
  if receive_many.source is null or receive_many.source = '' then
    perform notifyq.raise_invalid('source must not be empty', 'name the system of the messages');
  end if;
  perform notifyq.check_positive('remember', receive_many.remember);
  if exists (
    select from unnest(array[
      cardinality(receive_many.queues), cardinality(receive_many.messages),
      cardinality(receive_many.priorities), cardinality(receive_many.types),
      cardinality(receive_many.headers), cardinality(receive_many.keys),
      cardinality(receive_many.dedup_keys), cardinality(receive_many.dedup_scopes),
      cardinality(receive_many.max_attempts)
    ]) as u (length)
    where u.length is distinct from v_sent
  ) then
    perform notifyq.raise_invalid('all arrays must have the same length');
  end if;
  if v_sent > (
    select count(distinct u.position) from unnest(receive_many.positions) as u (position)
  ) then
    perform notifyq.raise_invalid('positions must be given once each, and not be null');
  end if;
  perform notifyq.check_receipts(v_role, receive_many.source, receive_many.after);
  if v_sent = 0 then
    return v_report;
  end if;
  v_streams := array(
    select s.name from messages.stream as s where s.name = any (receive_many.queues)
  );
  perform notifyq.find_queue(u.name)
  from unnest(receive_many.queues) as u (name)
  where u.name <> all (v_streams)
  group by u.name;
  -- The transaction gets its id before its message ids, see queue/find.sql.
  perform pg_current_xact_id();
  v_drawn := array(
    select nextval('messages.message_id_seq') from unnest(receive_many.positions)
  );
  -- First: a session that receives the same messages at the same time waits here for the end of
  -- this transaction, and then finds the receipts.
  with noted as (
    insert into notifyq.relay_receipt as r (role, source, position, message_id, forget_at)
    select v_role, receive_many.source, u.position, u.id, clock_timestamp() + receive_many.remember
    from unnest(receive_many.positions, v_drawn) with ordinality as u (position, id, ordinal)
    order by u.ordinal
    on conflict do nothing
    returning r.message_id
  )
  select coalesce(array_agg(n.message_id), '{}') into v_ids from noted as n;
  v_are_new := cardinality(v_ids) = v_sent;
  insert into messages.message as m
    (id, queue, message, priority, type, headers, key, max_attempts)
  overriding system value
  select
    u.id, u.queue, u.message, coalesce(u.priority, 0), u.type, coalesce(u.headers, '{}'), u.key,
    u.max_attempts
  from unnest(
    v_drawn, receive_many.queues, receive_many.messages, receive_many.priorities,
    receive_many.types, receive_many.headers, receive_many.keys, receive_many.dedup_keys,
    receive_many.max_attempts
  ) as u (id, queue, message, priority, type, headers, key, dedup_key, max_attempts)
  where u.dedup_key is null
    and u.queue <> all (v_streams)
    -- Not a join: the planner expects short arrays, and would compare each with each.
    and (v_are_new or u.id = any (v_ids))
  order by u.id;
  if v_streams <> '{}' or array_remove(receive_many.dedup_keys, null) <> '{}' then
    for v_one in
      select u.*, exists (select from messages.stream as s where s.name = u.queue) as is_event
      from unnest(
        v_drawn, receive_many.positions, receive_many.queues, receive_many.messages,
        receive_many.priorities, receive_many.types, receive_many.headers, receive_many.keys,
        receive_many.dedup_keys, receive_many.dedup_scopes, receive_many.max_attempts
      ) with ordinality as u (
        id, position, queue, message, priority, type, headers, key, dedup_key, dedup_scope,
        max_attempts, ordinal
      )
      where (u.dedup_key is not null or u.queue = any (v_streams))
        and (v_are_new or u.id = any (v_ids))
      order by u.ordinal
    loop
      v_report.merged := v_report.merged + notifyq.receive_one(
        v_role, receive_many.source, v_one.position, v_one.queue, v_one.message,
        case when v_one.is_event then 0 else v_one.priority end, null, v_one.type, v_one.headers,
        v_one.key, case when not v_one.is_event then v_one.dedup_key end,
        case when not v_one.is_event then v_one.dedup_scope end,
        case when not v_one.is_event then v_one.max_attempts end
      );
    end loop;
  elsif v_are_new then
    v_report.ids := v_drawn;
    return v_report;
  end if;
  v_report.ids := array(
    select r.message_id
    from unnest(receive_many.positions) with ordinality as u (position, ordinal)
    -- Each is looked up: a join could compare all of them with all receipts.
    left join lateral (
      select o.message_id
      from notifyq.relay_receipt as o
      where o.position = u.position and o.source = receive_many.source and o.role = v_role
      offset 0
    ) as r on true
    order by u.ordinal
  );
  v_report.known := v_sent - cardinality(v_ids);
  return v_report;
end;
$$;
comment on function notifyq.receive_many(
  text, text[], text[], jsonb[], integer[], text[], jsonb[], text[], text[], text[], integer[],
  text[], interval
) is
  'Publish messages that a relay brings, each once: source and positions identify them, the other '
  'arrays are as in publish. All in the transaction of the caller, with a receipt for each that '
  'is kept for remember; messages for which the same role has a receipt are left out. after has '
  'positions that must have a receipt by now. Returns the ids of all messages in their order. A '
  'queue may be a stream: events ignore priority, dedup_key and max_attempts. Raises NQ001 for an '
  'unknown queue, NQ905 if a receipt of after is missing, and the errors of publish; then nothing '
  'was received.';
