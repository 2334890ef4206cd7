-- Owner: one role owns both schemas, and functions run with its rights.

-- The owner should be a role that cannot log in and has no other right. The installing role hands
-- the schemas over where it can; a schema that was created for another role stays with that role.
do $$
declare
  v_owner regrole := (select n.nspowner from pg_namespace as n where n.nspname = 'messages');
  v_is_superuser boolean := (select r.rolsuper from pg_roles as r where r.oid = v_owner);
begin
  if to_regrole('notifyq_owner') is null
    or not (v_owner = current_user::regrole or v_is_superuser)
  then
    return;
  end if;
  alter schema messages owner to notifyq_owner;
  alter schema notifyq owner to notifyq_owner;
exception
  -- The roles may not be this role's to use, as on a managed server: it stays the owner.
  when insufficient_privilege then null;
end;
$$;

-- Objects that a superuser has added belong to the superuser: functions of the owner could not read
-- such tables.
do $$
declare
  v_owner regrole := (select n.nspowner from pg_namespace as n where n.nspname = 'messages');
  v_statement text;
begin
  -- For objects that this role creates later; such a default cannot be limited to one schema.
  if v_owner = to_regrole('notifyq_owner') then
    alter default privileges for role notifyq_owner revoke execute on functions from public;
    alter default privileges for role notifyq_owner revoke usage on types from public;
  end if;
  for v_statement in
    select format(
      'alter %s %s.%I owner to %s',
      case c.relkind when 'c' then 'type' when 'S' then 'sequence' else 'table' end,
      c.relnamespace::regnamespace, c.relname, v_owner
    )
    from pg_class as c
    where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and c.relkind in ('r', 'p', 'v', 'c', 'S')
      and c.relowner <> v_owner
      -- The sequence of a column has the owner of its table.
      and not exists (
        select from pg_depend as d
        where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype in ('a', 'i')
          and c.relkind = 'S'
      )
    union all
    select format(
      'alter type %s.%I owner to %s', t.typnamespace::regnamespace, t.typname, v_owner
    )
    from pg_type as t
    where t.typnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and t.typtype = 'e'
      and t.typowner <> v_owner
    union all
    select format('alter routine %s owner to %s', p.oid::regprocedure, v_owner)
    from pg_proc as p
    where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and p.prokind in ('f', 'p')
      and p.proowner <> v_owner
  loop
    execute v_statement;
  end loop;
end;
$$;
