-- Extensions: pg_cron where this server offers it to this database.
--
-- raises: nothing; without pg_cron the workers do the upkeep

do $$
begin
  -- The setting exists only where the library is loaded, and names the one database that may hold
  -- the extension; `create extension` fails anywhere else.
  if current_setting('cron.database_name', true) is distinct from current_database() then
    raise notice 'pg_cron does not serve this database: the workers do the upkeep';
    return;
  end if;
  create extension if not exists pg_cron;
exception
  when insufficient_privilege then
    raise notice 'pg_cron was not created, it needs a superuser: the workers do the upkeep';
end;
$$;
