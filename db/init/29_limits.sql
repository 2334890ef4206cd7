-- Limits: what a message may be, so that every client can read it and no table drowns in one.
--
-- owns:    trigger bound of messages.message
-- writes:  nothing
-- calls:   messages._check_attempts
-- raises:  NQ003 invalid argument, NQ008 over a limit

-- What of a value is over the limits, or null.
create or replace function messages._excess(what text, value jsonb)
  returns text
  language plpgsql
  immutable
as $$
begin
  if jsonb_path_exists(value, '$.**{101}') then
    return format('the %s is nested more than 100 levels deep', what);
  end if;
  if exists (
    select from jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') as n (number)
    where octet_length(n.number::text) > 4000
  ) then
    return format('the %s has a number of more than 4000 characters', what);
  end if;
  return null;
end;
$$;

create or replace function messages._bound()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_message text := new.message::text;
  v_headers text := new.headers::text;
  v_bytes bigint := octet_length(v_message)::bigint + octet_length(v_headers)::bigint;
  v_most integer;
  v_excess text;
begin
  if new.max_attempts is not null then
    perform messages._check_attempts(new.max_attempts);
  end if;
  -- PostgreSQL keeps 1e5000 in a few bytes and writes it out in full; Python reads 4300 digits. A
  -- number that long has 255 digits in a row, as few texts do: only then is it worth while to look.
  if jsonb_path_exists(new.message, '$.**{101}')
    or octet_length(v_message) > 4000 and v_message ~ '[0-9]{255}'
  then
    v_excess := messages._excess('message', new.message);
  end if;
  if octet_length(v_headers) > 200 then
    v_excess := coalesce(v_excess, messages._excess('header', new.headers));
  end if;
  if octet_length(new.type) > 200 then
    v_excess := 'type has more than 200 bytes';
  elsif octet_length(new.dedup_key) > 1000 then
    v_excess := 'dedup_key has more than 1000 bytes';
  elsif octet_length(new.key) > 200 then
    v_excess := 'key has more than 200 bytes';
  end if;
  -- No queue allows less than 4096.
  if v_bytes > 4096 then
    v_most := (select q.max_bytes from messages.queue as q where q.name = new.queue);
    if v_bytes > v_most then
      v_excess := format(
        'the message has %s bytes, queue %L takes %s', v_bytes, left(new.queue, 200), v_most
      );
    end if;
  end if;
  if v_excess is not null then
    raise exception using
      errcode = 'NQ008',
      message = v_excess,
      hint = 'publish a reference to what is large, and as a string what is deep or long; '
        '`notifyq queues alter --max-bytes` raises the size';
  end if;
  return new;
end;
$$;

-- Each statement that publishes reads this condition anew, so a short one costs least: with one
-- call for all five a lone insert is a seventh quicker than with five. It only says that something
-- might be over a limit; nothing is, that has 200 characters in all. As text, since the size in the
-- table is small for 1e5000 and for whatever is compressed.
create or replace trigger bound
  before insert on messages.message
  for each row
  when (
    octet_length(concat(new.message, new.headers, new.type, new.dedup_key, new.key)) > 200
    or new.max_attempts is not null
  )
  execute function messages._bound();
