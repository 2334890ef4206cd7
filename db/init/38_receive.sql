-- Receive: take over messages from elsewhere, each once, however often they are sent.
--
-- owns:    nothing
-- writes:  messages.relay_receipt, messages.message, messages.relay_mark (_forget_receipts)
-- calls:   messages.publish, messages._invalid
-- raises:  NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue, NQ008 over a
--          limit

create or replace function messages.receive(source text, messages jsonb)
  returns messages.receipt_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
    perform messages._invalid('source must not be empty', 'name where the messages come from');
  end if;
  if jsonb_typeof(receive.messages) is distinct from 'array' then
    perform messages._invalid('messages must be an array of objects');
  end if;
  if jsonb_path_exists(receive.messages, '$[*] ? (!exists(@.place) || !exists(@.queue))') then
    perform messages._invalid('each message must have a place and a queue');
  end if;
  -- First, and in one order: whoever sends the same at the same time waits here for the end of this
  -- transaction, and knows by then what it has received.
  with fresh as (
    insert into messages.relay_receipt (source, place)
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
    update messages.relay_receipt as r
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
create or replace function messages._receive_one(
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
  if exists (select from messages.stream as s where s.name = _receive_one.queue) then
    v_id := messages.publish(
      queue => _receive_one.queue, message => _receive_one.message, type => _receive_one.type,
      headers => _receive_one.headers, key => _receive_one.key
    );
  else
    v_is_there := dedup_key is not null and exists (
      select from messages.message as m
      where m.queue = _receive_one.queue and m.dedup_key = _receive_one.dedup_key
    );
    v_id := messages.publish(
      queue => _receive_one.queue, message => _receive_one.message,
      priority => _receive_one.priority, type => _receive_one.type,
      headers => _receive_one.headers, dedup_key => _receive_one.dedup_key,
      key => _receive_one.key, max_attempts => _receive_one.max_attempts,
      dedup_scope => _receive_one.dedup_scope
    );
  end if;
  update messages.relay_receipt as r
  set message_id = v_id
  where r.source = _receive_one.source
    and r.place = _receive_one.place;
  return v_is_there::integer;
end;
$$;

-- Receipts and marks that are of no more use.
create or replace function messages._forget_receipts(quantity integer)
  returns void
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
begin
  delete from messages.relay_receipt as r
  where (r.source, r.place) in (
    select o.source, o.place
    from messages.relay_receipt as o
    where o.forget_at < now()
    order by o.forget_at
    limit _forget_receipts.quantity
    for update skip locked
  );
  -- Relays beside one another note theirs in no order: so the latest one alone would not do.
  delete from messages.relay_mark as k
  where (k.target, k.source, k.place) in (
    select o.target, o.source, o.place
    from (
      select m.target, m.source, m.place, m.noted_at,
        row_number() over (partition by m.target, m.source order by m.noted_at desc) as nth
      from messages.relay_mark as m
    ) as o
    where o.nth > 20
      and o.noted_at < now() - interval '1 minute'
    limit _forget_receipts.quantity
  );
end;
$$;
