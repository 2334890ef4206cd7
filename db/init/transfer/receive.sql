-- Receive: take over messages of another database, each once.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ008 over a
-- limit, NQ010 queue full, NQ905 receipts lost

create or replace function messages.receive(source text, messages jsonb)
  returns messages.receipt_report
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_sent record;
  v_fresh text[];
  v_id bigint;
  v_is_there boolean;
  v_report messages.receipt_report := row(0, 0, 0);
begin
  if receive.source is null or receive.source = '' then
    perform notifyq.raise_invalid('source must not be empty', 'name where the messages come from');
  end if;
  if jsonb_typeof(receive.messages) is distinct from 'array' then
    perform notifyq.raise_invalid('messages must be an array of objects');
  end if;
  if jsonb_path_exists(receive.messages, '$[*] ? (!exists(@.place) || !exists(@.queue))') then
    perform notifyq.raise_invalid('each message must have a place and a queue');
  end if;
  -- First, and in one order: whoever sends the same at the same time waits here for the end of this
  -- transaction, and knows by then what it has received.
  with fresh as (
    insert into notifyq.relay_receipt (source, place)
    select distinct receive.source, s.place
    from jsonb_to_recordset(receive.messages) as s (place text)
    order by s.place
    on conflict do nothing
    returning place
  )
  select coalesce(array_agg(f.place), '{}') into v_fresh from fresh as f;
  for v_sent in
    select s.*, row_number() over (partition by s.place order by s.position) as nth
    from rows from (
      jsonb_to_recordset(receive.messages) as (
        place text, queue text, message jsonb, priority integer, available_at timestamptz,
        type text, headers jsonb, dedup_key text, key text, max_attempts integer
      )
    ) with ordinality as s (
      place, queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts,
      position
    )
    where s.place = any (v_fresh)
    order by s.position
  loop
    continue when v_sent.nth > 1;
    v_is_there := v_sent.dedup_key is not null and exists (
      select from messages.message as m
      where m.queue = v_sent.queue
        and m.dedup_key = v_sent.dedup_key
    );
    v_id := messages.publish(
      queue => v_sent.queue,
      -- The null of JSON comes out of a record as that of SQL.
      message => coalesce(v_sent.message, 'null'),
      priority => v_sent.priority,
      available_at => v_sent.available_at,
      type => v_sent.type,
      headers => v_sent.headers,
      dedup_key => v_sent.dedup_key,
      key => v_sent.key,
      max_attempts => v_sent.max_attempts
    );
    update notifyq.relay_receipt as r
    set message_id = v_id
    where r.source = receive.source
      and r.place = v_sent.place;
    if v_is_there then
      v_report.merged := v_report.merged + 1;
    else
      v_report.published := v_report.published + 1;
    end if;
  end loop;
  v_report.known :=
    jsonb_array_length(receive.messages) - v_report.published - v_report.merged;
  return v_report;
end;
$$;
comment on function messages.receive(text, jsonb) is
  'Publish messages from elsewhere, each once: source names where from, messages is an array of '
  'objects with place (which one it is there), queue, message, and as for publish priority, '
  'available_at, type, headers, dedup_key, key, max_attempts. All in the transaction of the '
  'caller, with a receipt for each in relay_receipt; what has one is left out. Returns how many '
  'were published, merged (a live message has that dedup_key) and known. Receipts are kept for 90 '
  'days. Raises NQ001 for an unknown queue, NQ003 for what is not such an array, and what publish '
  'raises; then nothing was received.';

-- Publish a message that has its receipt already; returns 1 if a live one has its dedup_key.
create or replace function notifyq.receive_one(
  source text,
  place text,
  queue text,
  message jsonb,
  priority integer,
  type text,
  headers jsonb,
  key text,
  dedup_key text,
  dedup_scope text,
  max_attempts integer
)
  returns integer
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_is_there boolean := false;
  v_id bigint;
begin
  if exists (select from messages.stream as s where s.name = receive_one.queue) then
    v_id := messages.publish(
      queue => receive_one.queue, message => receive_one.message, type => receive_one.type,
      headers => receive_one.headers, key => receive_one.key
    );
  else
    v_is_there := dedup_key is not null and exists (
      select from messages.message as m
      where m.queue = receive_one.queue and m.dedup_key = receive_one.dedup_key
    );
    v_id := messages.publish(
      queue => receive_one.queue, message => receive_one.message,
      priority => receive_one.priority, type => receive_one.type,
      headers => receive_one.headers, dedup_key => receive_one.dedup_key,
      key => receive_one.key, max_attempts => receive_one.max_attempts,
      dedup_scope => receive_one.dedup_scope
    );
  end if;
  update notifyq.relay_receipt as r
  set message_id = v_id
  where r.source = receive_one.source
    and r.place = receive_one.place;
  return v_is_there::integer;
end;
$$;

-- Receipts and marks that are of no more use.
create or replace function notifyq.forget_receipts(quantity integer)
  returns void
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
begin
  delete from notifyq.relay_receipt as r
  where (r.source, r.place) in (
    select o.source, o.place
    from notifyq.relay_receipt as o
    where o.forget_at < now()
    order by o.forget_at
    limit forget_receipts.quantity
    for update skip locked
  );
  -- Relays beside one another note theirs in no order: so the latest one alone would not do.
  delete from notifyq.relay_mark as k
  where (k.target, k.source, k.place) in (
    select o.target, o.source, o.place
    from (
      select m.target, m.source, m.place, m.noted_at,
        row_number() over (partition by m.target, m.source order by m.noted_at desc) as nth
      from notifyq.relay_mark as m
    ) as o
    where o.nth > 20
      and o.noted_at < now() - interval '1 minute'
    limit forget_receipts.quantity
  );
end;
$$;

-- Receive many: what a relay brings, each message once, a batch in one statement.

create or replace function notifyq.check_receipts(source text, places text[])
  returns void
  language plpgsql
  stable
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_missing text := (
    select u.place
    from unnest(places) as u (place)
    where not exists (
      select from notifyq.relay_receipt as r where r.source = check_receipts.source
        and r.place = u.place
    )
    limit 1
  );
begin
  if v_missing is not null then
    raise exception using
      errcode = 'NQ905',
      message = format(
        'this database lacks what it has received before, as message %s: it was restored to an '
        'earlier state', v_missing
      ),
      hint = 'what was relayed since then is gone here, and finished at the source: publish it '
        'again from the archive there, then go on with `notifyq relay --accept-restored`';
  end if;
end;
$$;

create or replace function notifyq.receive_many(
  source text,
  places text[],
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
  returns notifyq.relay_report
  language plpgsql
  security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_report notifyq.relay_report := row('{}'::bigint[], 0, 0);
  v_sent integer := cardinality(receive_many.places);
  v_drawn bigint[];
  v_ids bigint[];
  v_are_new boolean;
  v_one record;
  -- Those for which a plain insert is not a publish: streams, and queues that are not durable.
  v_others text[];
begin
  if receive_many.source is null or receive_many.source = '' then
    perform notifyq.raise_invalid('source must not be empty', 'name where the messages come from');
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
  if v_sent > (select count(distinct u.place) from unnest(receive_many.places) as u (place)) then
    perform notifyq.raise_invalid('a place is null, or there twice');
  end if;
  perform notifyq.check_receipts(receive_many.source, receive_many.after);
  if v_sent = 0 then
    return v_report;
  end if;
  v_others := array(
    select s.name from messages.stream as s where s.name = any (receive_many.queues)
    union all
    select q.name from messages.queue as q
    where not q.durable and q.name = any (receive_many.queues)
  );
  perform notifyq.find_queue(u.name)
  from unnest(receive_many.queues) as u (name)
  where u.name <> all (v_others)
  group by u.name;
  -- The number of the transaction comes before its ids, see queue/find.sql.
  perform pg_current_xact_id();
  v_drawn := array(
    select nextval('messages.message_id_seq') from generate_series(1, v_sent)
  );
  -- First: whoever sends the same at the same time waits here for the end of this transaction, and
  -- knows by then what it has received.
  with noted as (
    insert into notifyq.relay_receipt as r (source, place, message_id, forget_at)
    select receive_many.source, u.place, u.id, clock_timestamp() + receive_many.remember
    from unnest(receive_many.places, v_drawn) with ordinality as u (place, id, position)
    order by u.position
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
    and u.queue <> all (v_others)
    -- Not a join: of two arrays, which are thought to be short, each would be compared with each.
    and (v_are_new or u.id = any (v_ids))
  order by u.id;
  if v_others <> '{}' or array_remove(receive_many.dedup_keys, null) <> '{}' then
    for v_one in
      select u.*
      from unnest(
        v_drawn, receive_many.places, receive_many.queues, receive_many.messages,
        receive_many.priorities, receive_many.types, receive_many.headers, receive_many.keys,
        receive_many.dedup_keys, receive_many.dedup_scopes, receive_many.max_attempts
      ) with ordinality as u (
        id, place, queue, message, priority, type, headers, key, dedup_key, dedup_scope,
        max_attempts, position
      )
      where (u.dedup_key is not null or u.queue = any (v_others))
        and (v_are_new or u.id = any (v_ids))
      order by u.position
    loop
      v_report.merged := v_report.merged + notifyq.receive_one(
        receive_many.source, v_one.place, v_one.queue, v_one.message, v_one.priority, v_one.type,
        v_one.headers, v_one.key, v_one.dedup_key, v_one.dedup_scope, v_one.max_attempts
      );
    end loop;
  elsif v_are_new then
    v_report.ids := v_drawn;
    return v_report;
  end if;
  v_report.ids := array(
    select r.message_id
    from unnest(receive_many.places) with ordinality as u (place, position)
    left join notifyq.relay_receipt as r on r.source = receive_many.source and r.place = u.place
    order by u.position
  );
  v_report.known := v_sent - cardinality(v_ids);
  return v_report;
end;
$$;
comment on function notifyq.receive_many(
  text, text[], text[], jsonb[], integer[], text[], jsonb[], text[], text[], text[], integer[],
  text[], interval
) is
  'Publish messages that a relay brings, each once: source and places tell them, the other arrays '
  'are as for publish. All in the transaction of the caller, with a receipt for each that is kept '
  'for remember; what has one is left out. after has places that must have a receipt by now. '
  'Returns the ids of all of them in their order. A queue may be a stream: its events '
  'have no priority, dedup_key and max_attempts. Raises NQ001 for an unknown queue, NQ905 where a '
  'receipt of after is missing, and what publish raises; then nothing was received.';
