-- Broker: procedures of the database as subscribers.
--
-- raises: NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found; 42804
-- another type, 55000 outside of a procedure, 55006 a broker of the role runs

-- The broker of the role that registered a procedure calls it, in a session of that role: no role
-- can use the rights of another one.

-- Why the broker does not call a procedure, or null. A procedure that another role has put in its
-- place would run with the rights of the registrar.
create or replace function notifyq.procedure_problem(registered messages.subscriber_procedure)
  returns text language plpgsql stable
as $$
declare
  v_name text[] := parse_ident(registered.procedure);
  v_found record;
begin
  select p.oid, p.prokind, p.pronargs + coalesce(cardinality(p.proallargtypes), 0) as arguments,
    pg_get_userbyid(p.proowner) as owner, n.oid as namespace
  into v_found
  from pg_proc as p
  join pg_namespace as n on n.oid = p.pronamespace
  where n.nspname = v_name[1]
    and p.proname = v_name[2]
  order by arguments
  limit 1;
  return case
    when v_found.oid is null then format('there is no procedure %s', registered.procedure)
    when v_found.prokind <> 'p' then format('%s is no procedure', registered.procedure)
    when v_found.arguments > 0 then format('procedure %s has arguments', registered.procedure)
    when v_found.owner <> registered.owner then format(
      'procedure %s belongs to %I now, and to %I when it was registered',
      registered.procedure, v_found.owner, registered.owner
    )
    when to_regrole(quote_ident(registered.registrar)) is null
    then format('there is no role %I', registered.registrar)
    when not has_schema_privilege(registered.registrar, v_found.namespace, 'usage')
      or not has_function_privilege(registered.registrar, v_found.oid, 'execute')
    then format('role %I may not call %s', registered.registrar, registered.procedure)
  end;
end;
$$;

create or replace function notifyq.check_registration()
  returns trigger language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_name text[];
  v_obstacle text;
  v_known messages.subscriber_procedure;
begin
  perform notifyq.check_given('procedure', new.procedure is not null);
  begin
    v_name := parse_ident(new.procedure);
  exception
    when invalid_parameter_value then v_name := '{}';
  end;
  if cardinality(v_name) <> 2 then
    perform notifyq.raise_invalid(
      format('there is no procedure %s without arguments', new.procedure),
      'create it first: create procedure app.ship() language plpgsql as ...'
    );
  end if;
  new.procedure := format('%I.%I', v_name[1], v_name[2]);
  new.owner := (
    select pg_get_userbyid(p.proowner)::text
    from pg_proc as p
    join pg_namespace as n on n.oid = p.pronamespace
    where n.nspname = v_name[1] and p.proname = v_name[2]
    order by p.pronargs
    limit 1
  );
  v_obstacle := notifyq.procedure_problem(new);
  if v_obstacle is not null then
    perform notifyq.raise_invalid(
      v_obstacle, 'the broker calls procedures without arguments that the registrar may call'
    );
  end if;
  perform notifyq.check_readable(array[new.stream], 'procedures');
  perform messages.subscribe(new.stream, new.subscriber, new.position);
  new.subscription := (notifyq.find_subscription(new.stream, new.subscriber)).id;
  select p.* into v_known
  from messages.subscriber_procedure as p
  where p.subscription = new.subscription;
  if (v_known.procedure, v_known.registrar) = (new.procedure, new.registrar) then
    return null;
  elsif v_known.subscription is not null then
    perform notifyq.raise_invalid(
      format(
        'subscriber %L of stream %L has procedure %s, registered by %I', new.subscriber,
        new.stream, v_known.procedure, v_known.registrar
      ),
      format('select messages.unregister(%L, %L) first', new.stream, new.subscriber)
    );
  end if;
  return new;
end;
$$;

create or replace trigger check_registration
  before insert on messages.subscriber_procedure
  for each row
  execute function notifyq.check_registration();

-- Runs as its caller, with all names in full. The registrar is the default of a column that no role
-- may set, so it is the role that inserts. A function with the owner's rights could only use the
-- session role, and a superuser's session may run code of others, as in an index expression.
create or replace function messages.register(
  stream text, subscriber text, procedure text, "position" text default 'last'
)
  returns boolean language plpgsql
as $$
declare
  v_name pg_catalog.text := pg_catalog.btrim(procedure);
begin
  if pg_catalog.right(v_name, 1) operator(pg_catalog.<>) ')' then
    v_name := pg_catalog.concat(v_name, '()');
  end if;
  insert into messages.subscriber_procedure (stream, subscriber, procedure, position)
  select
    register.stream, register.subscriber,
    coalesce(
      (
        -- Found by the search path of the caller.
        select pg_catalog.format('%I.%I', n.nspname, p.proname)
        from pg_catalog.pg_proc as p
        join pg_catalog.pg_namespace as n on n.oid operator(pg_catalog.=) p.pronamespace
        where p.oid operator(pg_catalog.=) pg_catalog.to_regprocedure(v_name)::pg_catalog.oid
      ),
      register.procedure
    ),
    coalesce(register.position, 'last')
  on conflict do nothing;
  return found;
end;
$$;
comment on function messages.register(text, text, text, text) is
  'Register a procedure for a subscriber: the broker calls it for each event, as the role that '
  'registers it, see start_broker(). The procedure has no arguments and reads its event with '
  'dequeue() or dequeued(). Creates the subscription at position if there is none. False: it was '
  'registered already. Raises NQ003 if there is no such procedure or the subscriber has another '
  'one, NQ007 without the right to consume, NQ020 for an unknown stream.';

create or replace function messages.unregister(
  stream text, subscriber text, unsubscribe boolean default true
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_known messages.subscriber_procedure;
begin
  select p.* into v_known
  from messages.subscriber_procedure as p
  where p.stream = unregister.stream
    and p.subscriber = unregister.subscriber;
  if not found then
    return false;
  end if;
  if not (notifyq.has_role(v_known.registrar) or notifyq.has_role('notifyq_admin')) then
    raise exception insufficient_privilege using
      message = format(
        'role %I may not unregister what role %I has registered', notifyq.calling_role(),
        v_known.registrar
      );
  end if;
  delete from messages.subscriber_procedure as p where p.subscription = v_known.subscription;
  if unsubscribe then
    perform messages.unsubscribe(stream, subscriber);
  end if;
  return true;
end;
$$;
comment on function messages.unregister(text, text, boolean) is
  'Remove the procedure of the subscriber and, by default, end its subscription. False: none was '
  'registered. SQLSTATE 42501 if another role has registered it and the caller is no admin.';

-- The steps of a broker.
--
-- One transaction opens a batch; the next one handles it and finishes it, so effects and position
-- are committed together. If a run finds a batch open that it has not opened, a session ended in
-- it. Then each event is marked in a transaction of its own before it is tried, and an event that
-- ends the session each time is found and archived.

create or replace function notifyq.broker_next(run bigint, after bigint)
  returns notifyq.broker_turn language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_turn notifyq.broker_turn;
  v_row messages.subscriber_procedure;
  v_batch bigint;
  v_event bigint;
  v_starts integer;
begin
  v_turn.slot := notifyq.take_broker_slot(notifyq.calling_role());
  v_turn.act := 'stop';
  if notifyq.is_stopped(notifyq.calling_role()) then
    return v_turn;
  end if;
  for v_row in
    select p.*
    from messages.subscriber_procedure as p
    where p.registrar = notifyq.calling_role()
    -- First the batch that was begun: the end of this session must not count against another
    -- one.
    order by p.run = broker_next.run and (p.event is not null or p.done = 0) and p.batch is not null
      desc nulls last, p.subscription <= after, p.subscription
    for update skip locked
  loop
    continue when notifyq.procedure_problem(v_row) is not null
      or not notifyq.is_allowed(v_row.stream, 'consume from');
    v_batch := messages.next_batch(v_row.stream, v_row.subscriber, 200);
    continue when v_batch is null;
    v_turn.act := 'open';
    v_turn.subscription := v_row.subscription;
    v_turn.stream := v_row.stream;
    v_turn.subscriber := v_row.subscriber;
    v_turn.procedure := parse_ident(v_row.procedure);
    v_turn.batch := v_batch;
    v_turn.done := v_row.done;
    if v_row.batch is distinct from v_batch then
      update messages.subscriber_procedure as p
      set batch = v_batch, run = broker_next.run, is_careful = false, done = 0, event = null
      where p.subscription = v_row.subscription;
    elsif v_row.run = run and (v_row.event is not null or not v_row.is_careful) then
      v_turn.act := 'handle';
      v_turn.event := v_row.event;
    else
      v_event := (
        select min(e.id) from messages.batch_events(v_batch) as e where e.id > v_row.done
      );
      v_starts := case when v_row.event = v_event then v_row.event_starts + 1 else 1 end;
      if v_event is null then
        v_turn.act := 'handle';
      elsif v_starts > 2 then
        perform messages.fail_event(
          v_batch, v_event,
          format('the session ended each time that %s was called', v_row.procedure)
        );
      end if;
      update messages.subscriber_procedure as p
      set run = broker_next.run,
        is_careful = true,
        event = case when v_starts <= 2 then v_event end,
        event_starts = v_starts,
        done = case when v_starts > 2 then v_event else p.done end,
        failed = p.failed + (v_starts > 2)::integer
      where p.subscription = v_row.subscription;
    end if;
    return v_turn;
  end loop;
  v_turn.act := 'idle';
  return v_turn;
end;
$$;
comment on function notifyq.broker_next(bigint, bigint) is
  'The next step of the broker of the calling role. For run_broker() only.';

create or replace function notifyq.broker_note(
  subscription bigint, batch bigint, event bigint, reason text
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- The procedure may have ended its own subscription, or moved it.
  if not exists (
    select from messages.subscriber_procedure as p
    where p.subscription = broker_note.subscription
      and p.registrar = notifyq.calling_role()
      and p.batch = broker_note.batch
  ) or exists (
    select from notifyq.batch_end as e where e.batch = broker_note.batch
  ) then
    return false;
  end if;
  if reason is not null then
    perform messages.fail_event(batch, event, reason);
  end if;
  return not notifyq.is_stopped(notifyq.calling_role());
exception
  when sqlstate 'NQ020' or sqlstate 'NQ021' or sqlstate 'NQ022' or sqlstate 'NQ023' then
    return false;
end;
$$;
comment on function notifyq.broker_note(bigint, bigint, bigint, text) is
  'Record the result of a procedure for an event. False: continue with another batch. For '
  'run_broker() only.';

create or replace function notifyq.broker_done(
  subscription bigint,
  batch bigint,
  done bigint,
  handled integer,
  failed integer,
  is_finished boolean
)
  returns void language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  update messages.subscriber_procedure as p
  set batch = case when not is_finished then p.batch end,
    event = null,
    done = greatest(p.done, broker_done.done),
    handled = p.handled + broker_done.handled,
    failed = p.failed + broker_done.failed
  where p.subscription = broker_done.subscription
    and p.registrar = notifyq.calling_role()
    and p.batch = broker_done.batch;
  if found and is_finished then
    perform messages.finish_batch(batch);
  end if;
exception
  when sqlstate 'NQ020' or sqlstate 'NQ021' or sqlstate 'NQ022' then
    null;  -- the procedure has finished it, or its subscription
end;
$$;
comment on function notifyq.broker_done(bigint, bigint, bigint, integer, integer, boolean) is
  'Record how far the broker is in a batch. For run_broker() only.';

create or replace function messages.dequeued()
  returns messages.handled_event language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  -- Grants nothing: a session that sets it reads what it has set.
  v_event text := current_setting('notifyq.event', true);
begin
  if coalesce(v_event, '') = '' then
    raise object_not_in_prerequisite_state using
      message = 'this session handles no event',
      hint = 'call dequeue() and dequeued() in procedures that the broker calls, see register()';
  end if;
  return jsonb_populate_record(null::messages.handled_event, v_event::jsonb);
end;
$$;
comment on function messages.dequeued() is
  'The event for which the broker has called this procedure: its id, type, key and headers, and '
  'its payload, which dequeue() returns as a value. SQLSTATE 55000 in any other place.';

-- Runs as its caller, like value_of(): the type is the caller's.
create or replace function messages.dequeue(type anyelement)
  returns anyelement language plpgsql stable
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_event messages.handled_event := messages.dequeued();
  v_type text := messages.payload_type(v_event.stream);
  -- A declared variable would be checked as a domain before it has a value.
  v_value alias for $0;
begin
  if v_type <> pg_typeof(type)::text then
    raise datatype_mismatch using
      message = format(
        'the events of stream %L are of type %s, not %s', v_event.stream, v_type, pg_typeof(type)
      );
  end if;
  if v_type is not null or jsonb_typeof(v_event.message) = 'string' then
    return messages.value_of(v_event.message, type);
  elsif pg_typeof(type) = 'jsonb'::regtype then
    execute format('select %L::jsonb', v_event.message) into v_value;
    return v_value;
  end if;
  -- The stream allows any JSON: read the text of the value.
  return messages.value_of(to_jsonb(v_event.message #>> '{}'), type);
end;
$$;
comment on function messages.dequeue(anyelement) is
  'The payload of the event for which the broker has called this procedure, as a value of the '
  'type of the argument: dequeue(null::integer). The same each time within a call. SQLSTATE 42804 '
  'if the stream has another type, 55000 outside of a procedure.';
