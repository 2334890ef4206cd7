-- Extensions: pg_cron where this server offers it to this database.
--
-- raises: nothing; without pg_cron the workers do maintenance

do $$
begin
  -- Only the database in cron.database_name can have the extension; the setting exists only where
  -- the library is loaded.
  if current_setting('cron.database_name', true) is distinct from current_database() then
    raise notice 'pg_cron does not serve this database: the workers do maintenance';
    return;
  end if;
  create extension if not exists pg_cron;
exception
  when insufficient_privilege then
    raise notice 'pg_cron was not created, it needs a superuser: the workers do maintenance';
end;
$$;
