-- Register: procedures of the database as subscribers, and what they read of the present event.
--
-- A procedure is called by the broker of the role that has registered it, see 87_broker.sql, whose
-- session is one of that role: so nobody can have anything done with rights that are another's.
--
-- owns:    trigger enroll of messages.subscriber_procedure
-- writes:  messages.subscriber_procedure
-- calls:   messages._invalid, messages._caller, messages._has_role, messages._subscription,
--          messages._may, messages.subscribe, messages.unsubscribe, messages._check_given
-- raises:  NQ003 invalid argument, NQ007 no right to the stream, NQ020 stream not found; 55000
--          outside of a procedure, 42804 another type

-- What keeps the broker from calling a procedure, or null. One that somebody else has put in its
-- place would run with the rights of who has registered the former one.
create or replace function messages._obstacle(registered messages.subscriber_procedure)
  returns text
  language plpgsql
  stable
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

create or replace function messages._enroll()
  returns trigger
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_name text[];
  v_obstacle text;
  v_known messages.subscriber_procedure;
begin
  perform messages._check_given('procedure', new.procedure is not null);
  begin
    v_name := parse_ident(new.procedure);
  exception
    when invalid_parameter_value then v_name := '{}';
  end;
  if cardinality(v_name) <> 2 then
    perform messages._invalid(
      format('there is no procedure %s without arguments', new.procedure),
      'create it first, as in: create procedure app.ship() language plpgsql as ...'
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
  v_obstacle := messages._obstacle(new);
  if v_obstacle is not null then
    perform messages._invalid(v_obstacle, 'the broker calls procedures that have no arguments');
  end if;
  perform messages.subscribe(new.stream, new.subscriber, new.position);
  new.subscription := (messages._subscription(new.stream, new.subscriber)).id;
  select p.* into v_known
  from messages.subscriber_procedure as p
  where p.subscription = new.subscription;
  if (v_known.procedure, v_known.registrar) = (new.procedure, new.registrar) then
    return null;
  elsif v_known.subscription is not null then
    perform messages._invalid(
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

create or replace trigger enroll
  before insert on messages.subscriber_procedure
  for each row
  execute function messages._enroll();

-- With the rights of who calls it, and all names in full: the registrar is the default of a column
-- that nobody may set, so it is truly who inserts. A function with the owner's rights could only
-- ask for the session, and that of a superuser is also there where others have their code run
-- under it, as in the expression of an index.
create or replace function messages.register(
  stream text,
  subscriber text,
  procedure text,
  "position" text default 'last'
)
  returns boolean
  language plpgsql
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
  'Have the broker call a procedure for each event that the subscriber sees, as the role that '
  'registers it: see start_broker(). The procedure has no arguments and reads its event with '
  'dequeue() or dequeued(). A subscription that does not exist is made, from position on. False: '
  'it was registered already. Raises NQ003 where there is no such procedure or the subscriber has '
  'another one, NQ007 without the right to consume, NQ020 for an unknown stream.';

create or replace function messages.unregister(
  stream text, subscriber text, unsubscribe boolean default true
)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
  if not (messages._has_role(v_known.registrar) or messages._has_role('notifyq_admin')) then
    raise exception insufficient_privilege using
      message = format(
        'role %I may not unregister what role %I has registered', messages._caller(),
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
  'Call the procedure of the subscriber no more, and end its subscription too, unless told '
  'otherwise. False: none was registered. SQLSTATE 42501 where another role has registered it, but '
  'for admins.';
