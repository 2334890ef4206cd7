-- Logins for each duty, from the environment; entrypoint.sh runs this with psql at each start.
--
-- A login whose password is not given is neither made nor changed. None is a superuser, and each has
-- one role of notifyq. What is granted to a login beside that stays.

\set ON_ERROR_STOP on
\getenv publisher NOTIFYQ_PUBLISHER_PASSWORD
\getenv worker NOTIFYQ_WORKER_PASSWORD
\getenv reader NOTIFYQ_READER_PASSWORD
\getenv admin NOTIFYQ_ADMIN_PASSWORD
\getenv dashboard NOTIFYQ_DASHBOARD_DB_PASSWORD
\getenv dashboard_role NOTIFYQ_DASHBOARD_ROLE

\if :{?publisher}
\else
  \set publisher ''
\endif
\if :{?worker}
\else
  \set worker ''
\endif
\if :{?reader}
\else
  \set reader ''
\endif
\if :{?admin}
\else
  \set admin ''
\endif
\if :{?dashboard}
\else
  \set dashboard ''
\endif
\if :{?dashboard_role}
\else
  \set dashboard_role notifyq_reader
\endif

-- A statement that fails must not put a password into the log of the server.
set log_statement = 'none';
set log_min_duration_statement = -1;
set log_min_error_statement = 'panic';
set password_encryption = 'scram-sha-256';

begin;

create temporary table login (name text, role text, password text) on commit drop;
insert into login (name, role, password)
values
  ('queue_publisher', 'notifyq_publisher', :'publisher'),
  ('queue_worker', 'notifyq_worker', :'worker'),
  ('queue_reader', 'notifyq_reader', :'reader'),
  ('queue_admin', 'notifyq_admin', :'admin'),
  ('queue_dashboard', coalesce(nullif(:'dashboard_role', ''), 'notifyq_reader'), :'dashboard');
delete from login where password = '';

do $$
declare
  l record;
begin
  if exists (
    select from login as i
    where i.name = 'queue_dashboard' and i.role not in ('notifyq_reader', 'notifyq_admin')
  ) then
    raise exception 'NOTIFYQ_DASHBOARD_ROLE must be notifyq_reader or notifyq_admin';
  end if;
  for l in select i.name, i.role, i.password from login as i loop
    if not exists (select from pg_roles as r where r.rolname = l.name) then
      execute format('create role %I', l.name);
    end if;
    execute format(
      'alter role %I login nosuperuser nocreatedb nocreaterole noreplication nobypassrls password %L',
      l.name, l.password
    );
  end loop;
  -- The dashboard has one of two.
  for l in
    select m.roleid::regrole as role, m.member::regrole as name
    from pg_auth_members as m
    join login as i on i.name = 'queue_dashboard'
    where m.member = to_regrole('queue_dashboard')
      and m.roleid in (to_regrole('notifyq_reader'), to_regrole('notifyq_admin'))
      and m.roleid <> to_regrole(i.role)
  loop
    execute format('revoke %s from %s', l.role, l.name);
  end loop;
  for l in select i.name, i.role from login as i loop
    execute format('grant %I to %I', l.role, l.name);
  end loop;
end;
$$;

commit;
