-- Encoding: a database with SQL_ASCII stores any bytes, but clients of notifyq read UTF-8.
--
-- raises: NQ003 for a message or an event with other bytes

create or replace function notifyq.is_utf8(text text)
  returns boolean language plpgsql immutable
as $$
begin
  perform convert_from(convert_to(text, 'SQL_ASCII'), 'UTF8');
  return true;
exception
  when character_not_in_repertoire or untranslatable_character then
    return false;
end;
$$;

create or replace function notifyq.check_utf8()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_row jsonb := to_jsonb(new);
  v_column text;
begin
  foreach v_column in array tg_argv loop
    if not notifyq.is_utf8(v_row ->> v_column) then
      perform notifyq.raise_invalid(
        format('%s has bytes that are not UTF-8, which no client can read', v_column),
        'set client_encoding to the encoding of the text, and have it converted to UTF8'
      );
    end if;
  end loop;
  return new;
end;
$$;

-- Details come from errors: they must not keep a message from being archived.
create or replace function notifyq.escape_details()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  if not notifyq.is_utf8(new.details) then
    new.details := encode(convert_to(new.details, 'SQL_ASCII'), 'escape');
  end if;
  return new;
end;
$$;

-- Only there: elsewhere the server checks the encoding itself, and a trigger costs time.
do $$
begin
  if current_setting('server_encoding') = 'SQL_ASCII' then
    create or replace trigger utf8
      before insert or update on messages.message
      for each row
      execute function notifyq.check_utf8(message, headers, type, key, dedup_key);
    create or replace trigger utf8
      before insert on messages.event
      for each row
      execute function notifyq.check_utf8(message, headers, type, key);
    create or replace trigger utf8
      before insert on messages.message_archive
      for each row
      execute function notifyq.escape_details();
  end if;
  if current_setting('server_encoding') <> 'UTF8' then
    raise notice 'the encoding of this database is %, not UTF8: %',
      current_setting('server_encoding'),
      case current_setting('server_encoding')
        when 'SQL_ASCII' then 'messages must be UTF-8 all the same'
        else 'payloads with other characters are refused'
      end;
  end if;
end;
$$;
