-- Encryption: envelopes instead of payloads, results, errors, steps and output.
--
-- Programs encrypt and decrypt, the database has no keys: it checks the form of an envelope, and
-- for which queue and which use it was made. Both are also authenticated with the ciphertext, so an
-- envelope that is put elsewhere cannot be decrypted. What the database writes itself, such as
-- `expired`, has no payload and stays plain.
--
-- raises: NQ003 invalid argument

-- The envelope of a text: of details, a traceback or a note. Null: it is no JSON object.
create or replace function notifyq.envelope_of(value text)
  returns jsonb language plpgsql immutable
as $$
begin
  return case when value like '{"$encrypted": {%' then value::jsonb end;
exception
  when data_exception then
    return null;
end;
$$;

-- Whether the value is an envelope, and nothing else. `error`, the class of an error, stays plain.
create or replace function notifyq.is_envelope(value jsonb, queue text, use text)
  returns boolean language plpgsql immutable
as $$
declare
  v_seal jsonb := value -> '$encrypted';
begin
  return coalesce(
    jsonb_typeof(value) = 'object'
      and value = jsonb_build_object('$encrypted', jsonb_strip_nulls(jsonb_build_object(
        'key', v_seal ->> 'key', 'nonce', v_seal ->> 'nonce', 'data', v_seal ->> 'data',
        'queue', is_envelope.queue, 'use', is_envelope.use, 'error', v_seal ->> 'error'
      )))
      and v_seal ->> 'key' ~ '^[A-Za-z0-9._-]{1,100}$'
      and v_seal ->> 'nonce' ~ '^[A-Za-z0-9+/]{16}$'
      and v_seal ->> 'data' ~ '^[A-Za-z0-9+/]{20,}={0,2}$'
      and octet_length(v_seal ->> 'data') % 4 = 0
      and (v_seal -> 'error' is null or use in ('details', 'traceback'))
      and (v_seal ->> 'error' ~ '^[[:alnum:]_.<>]{1,200}$') is not false,
    false
  );
end;
$$;

create or replace function notifyq.check_envelope(queue text, use text, value jsonb)
  returns void language plpgsql
as $$
begin
  if not notifyq.is_envelope(value, queue, use) then
    perform notifyq.raise_invalid(
      case when jsonb_typeof(value -> '$encrypted') = 'object' then
        format(
          '%L is encrypted and does not take this envelope as %s: it is not whole, or was made '
          'for another queue or use', left(queue, 200), use
        )
      else format('%L is encrypted and takes no %s in plain text', left(queue, 200), use) end,
      'programs encrypt with the keys in NOTIFYQ_KEYS, NOTIFYQ_KEYS_FILE or App(encryption=...)'
    );
  end if;
end;
$$;

-- For what a program gives with these messages; null: it gives none. Only failures come here.
create or replace function notifyq.check_texts(ids bigint[], use text, texts text[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  if texts is null or not exists (select from messages.queue as q where q.encrypted) then
    return;
  end if;
  perform notifyq.check_envelope(
    m.queue, check_texts.use, coalesce(notifyq.envelope_of(u.value), to_jsonb(u.value))
  )
  from unnest(check_texts.ids, check_texts.texts) as u (id, value)
  join messages.message as m on m.id = u.id
  join messages.queue as q on q.name = m.queue and q.encrypted
  where m.id = any (check_texts.ids)
    and u.value is not null;
end;
$$;

-- The archive of encrypted queues has this trigger, see limits/triggers.sql. Maintenance moves old
-- rows between partitions, which may be from before the queue was encrypted.
create or replace function notifyq.check_result()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if new.result is not null and new.xid = pg_current_xact_id() then
    perform notifyq.check_envelope(new.queue, 'result', new.result);
  end if;
  return new;
end;
$$;

-- For what reads payloads in the database.
create or replace function notifyq.check_readable(names text[], what text)
  returns void language plpgsql
as $$
begin
  perform notifyq.raise_invalid(
    format('%L is encrypted: it cannot have %s', left(u.name, 200), what),
    'the database cannot read its payloads'
  )
  from unnest(check_readable.names) as u (name)
  where exists (select from messages.queue as q where q.name = u.name and q.encrypted)
    or exists (select from messages.stream as s where s.name = u.name and s.encrypted);
end;
$$;

-- A queue that becomes encrypted must have no sources of plaintext in the database.
create or replace function notifyq.check_sources(queue text)
  returns void language plpgsql
as $$
begin
  if exists (select from notifyq.forward as f where f.queue = check_sources.queue)
    or exists (select from messages.schedule as s where s.queue = check_sources.queue)
  then
    perform notifyq.raise_invalid(
      format('queue %L has schedules, or streams are forwarded into it', check_sources.queue),
      'these publish plain text: remove them before the queue is encrypted'
    );
  end if;
end;
$$;

-- Whether keys must be known to use the queue or stream, for programs that have some.
create or replace function notifyq.encrypted_names()
  returns setof text language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select q.name from messages.queue as q where q.encrypted
  union all
  select s.name from messages.stream as s where s.encrypted;
$$;
comment on function notifyq.encrypted_names() is
  'The names of queues and streams that take encrypted payloads only.';
