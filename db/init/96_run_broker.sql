-- Run: the loop of the broker, and its place, of which each role has one in a database.
--
-- owns:    nothing
-- writes:  messages.broker
-- calls:   messages.broker_next, messages.batch_events, messages.broker_note,
--          messages.broker_done
-- raises:  42501 not a session of the role itself; 55006 a broker of the role runs

-- The place of the broker, 11; or 12, which whoever wants it to stop holds for a moment.
create or replace function messages._broker_key(role text, kind integer)
  returns bigint
  language sql
  immutable
as $$
  select hashtextextended(role, 7305427000 + kind);
$$;

-- Who holds the key, of those who may stop a broker of the role. Anybody can take an advisory key,
-- so what others hold says nothing.
create or replace function messages._holder(key bigint, role text)
  returns integer
  language plpgsql
  volatile
as $$
begin
  perform pg_stat_clear_snapshot();
  return (
    select l.pid
    from pg_locks as l
    join pg_stat_activity as a on a.pid = l.pid
    where l.locktype = 'advisory'
      and l.database = (select d.oid from pg_database as d where d.datname = current_database())
      and l.classid::bigint = (key >> 32 & 4294967295)
      and l.objid::bigint = (key & 4294967295)
      and l.objsubid = 1
      and l.granted
      and (
        pg_has_role(a.usesysid, to_regrole(quote_ident(role))::oid, 'usage')
        or pg_has_role(a.usesysid, to_regrole('notifyq_admin')::oid, 'usage')
      )
    order by l.pid
    limit 1
  );
end;
$$;

create or replace function messages._take_place(role text)
  returns bigint
  language plpgsql
as $$
declare
  v_key bigint := messages._broker_key(role, 11);
  v_holder integer;
begin
  if not pg_try_advisory_xact_lock(v_key) then
    v_holder := messages._holder(v_key, role);
    if v_holder is not null then
      raise object_in_use using
        message = format('a broker of role %I runs in this database already', role),
        detail = format('It is process %s.', v_holder),
        hint = 'select messages.stop_broker() ends it';
    end if;
  end if;
  -- Only where it is new: the lock of the row would last as long as a procedure does.
  if not exists (
    select from messages.broker as b where b.role = _take_place.role and b.pid = pg_backend_pid()
  ) then
    insert into messages.broker as b (role, pid, started_at)
    values (_take_place.role, pg_backend_pid(), clock_timestamp())
    on conflict on constraint broker_role_pk
    do update set pid = excluded.pid, started_at = excluded.started_at;
  end if;
  return v_key;
end;
$$;

create or replace function messages._is_stopped(role text)
  returns boolean
  language plpgsql
as $$
declare
  v_key bigint := messages._broker_key(role, 12);
begin
  -- Given back at once: who wants to stop us waits for it.
  if pg_try_advisory_lock_shared(v_key) then
    perform pg_advisory_unlock_shared(v_key);
    return false;
  end if;
  return messages._holder(v_key, role) is not null;
end;
$$;

-- With the rights of who calls it, as what it calls must have no others; and without a search path,
-- with which it could not commit: hence all names in full. Procedures get that of the session.
create or replace procedure messages.run_broker(
  idle interval default null, inout stopped boolean default null
)
  language plpgsql
as $$
declare
  v_path pg_catalog.text := pg_catalog.current_setting('search_path');
  v_run pg_catalog.int8 := pg_catalog.hashtextextended(
    pg_catalog.concat(pg_catalog.pg_backend_pid(), pg_catalog.clock_timestamp()), 0
  );
  v_turn messages.broker_turn;
  v_event messages.batch_event;
  v_until pg_catalog.timestamptz;
  v_done pg_catalog.int8;
  v_handled pg_catalog.int4;
  v_failed pg_catalog.int4;
  v_is_finished pg_catalog.bool;
  v_is_kept pg_catalog.bool := false;
  v_waited pg_catalog.float8 := 0::pg_catalog.float8;
  v_pause pg_catalog.float8;
  v_reason pg_catalog.text;
  v_message pg_catalog.text;
  v_state pg_catalog.text;
  v_context pg_catalog.text;
begin
  if current_user operator(pg_catalog.<>) session_user then
    raise insufficient_privilege using message = pg_catalog.format(
      'a broker of role %I must be a session of that role, not of %I', current_user, session_user
    );
  end if;
  perform pg_catalog.set_config('application_name', 'notifyq broker', false);
  stopped := false;
  loop
    v_turn := messages.broker_next(v_run, v_turn.subscription);
    if v_is_kept then
      perform pg_catalog.pg_advisory_unlock(v_turn.place);
    end if;
    if v_turn.act operator(pg_catalog.=) 'stop' then
      stopped := true;
      exit;
    elsif v_turn.act operator(pg_catalog.=) 'idle' then
      exit when v_waited operator(pg_catalog.>=) extract(epoch from idle)::pg_catalog.float8;
      -- Each pause holds a snapshot: hence half a second at most.
      v_pause := least(0.01 operator(pg_catalog.+) v_waited operator(pg_catalog./) 4, 0.5);
      perform pg_catalog.pg_sleep(v_pause);
      v_waited := v_waited operator(pg_catalog.+) v_pause;
    elsif v_turn.act operator(pg_catalog.=) 'handle' then
      v_waited := 0::pg_catalog.float8;
      v_done := v_turn.done;
      v_handled := 0;
      v_failed := 0;
      v_is_finished := true;
      -- A transaction takes this long, unless one call alone takes longer.
      v_until := pg_catalog.clock_timestamp() operator(pg_catalog.+) interval '0.2 s';
      for v_event in
        select e.id, e.created_at, e.type, e.key, e.message, e.headers, e.retries, e.reason
        from messages.batch_events(v_turn.batch) as e
        where e.id operator(pg_catalog.>) v_turn.done
          and (v_turn.event is null or e.id operator(pg_catalog.=) v_turn.event)
        order by e.id
      loop
        perform pg_catalog.set_config('notifyq.event', pg_catalog.to_jsonb(row(
          v_turn.stream, v_turn.subscriber, v_event.id, v_event.created_at, v_event.type,
          v_event.key, v_event.message, v_event.headers, v_event.retries
        )::messages.handled_event)::pg_catalog.text, false);
        v_reason := null;
        begin
          execute pg_catalog.format('call %I.%I()', v_turn.procedure[1], v_turn.procedure[2]);
          v_handled := v_handled operator(pg_catalog.+) 1;
        exception
          when others or assert_failure then
            get stacked diagnostics v_message = message_text, v_state = returned_sqlstate,
              v_context = pg_exception_context;
            v_failed := v_failed operator(pg_catalog.+) 1;
            -- fail_event() writes it to the log.
            v_reason := pg_catalog.format('%I.%I: %s (SQLSTATE %s), %s', v_turn.procedure[1],
              v_turn.procedure[2], v_message, v_state,
              pg_catalog.split_part(v_context, pg_catalog.chr(10), 1));
        end;
        -- What a procedure leaves behind is not for the next one, nor for us.
        perform pg_catalog.set_config('notifyq.event', '', false);
        if current_user operator(pg_catalog.<>) session_user then
          perform pg_catalog.set_config('role', 'none', false);
        end if;
        if pg_catalog.current_setting('search_path') operator(pg_catalog.<>) v_path then
          perform pg_catalog.set_config('search_path', v_path, false);
        end if;
        v_done := v_event.id;
        if not messages.broker_note(v_turn.subscription, v_turn.batch, v_event.id, v_reason)
          or v_turn.event is not null
          or pg_catalog.clock_timestamp() operator(pg_catalog.>) v_until
        then
          v_is_finished := false;
          exit;
        end if;
      end loop;
      perform messages.broker_done(
        v_turn.subscription, v_turn.batch, v_done, v_handled, v_failed, v_is_finished
      );
    end if;
    -- Across the commit the session keeps the place, and otherwise the transaction: so it is free
    -- when the call ends with an error, though the session goes on.
    v_is_kept := pg_catalog.pg_try_advisory_lock(v_turn.place);
    commit;
  end loop;
end;
$$;
comment on procedure messages.run_broker(interval, boolean) is
  'Be the broker of the role of this session: call the procedures that it has registered, for each '
  'event that their subscribers see, in short transactions. Without idle until stop_broker(), else '
  'until there was nothing to do for so long; stopped tells which. SQLSTATE 55006 if one runs.';
