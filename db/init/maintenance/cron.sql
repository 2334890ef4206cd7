-- Cron: pg_cron runs the upkeep, so that locks are reaped with no worker alive.

do $$
begin
  -- The extension may be left of a time when its library was loaded; nothing can be called then.
  if not exists (select from pg_extension as e where e.extname = 'pg_cron')
    or current_setting('cron.database_name', true) is null
  then
    return;
  end if;
  -- Names of jobs are unique for each user only.
  if exists (
    select from cron.job as j
    where j.jobname = 'notifyq maintain' and j.username <> current_user
  ) then
    raise notice 'pg_cron does the upkeep already, as another user';
    return;
  end if;
  begin
    perform cron.schedule('notifyq maintain', '10 seconds', 'select messages.maintain()');
  exception
    -- Up to 1.4 (Debian 12) pg_cron knows minutes only, and says so in an error of no class.
    when others then
      perform cron.schedule('notifyq maintain', '* * * * *', 'select messages.maintain()');
  end;
  -- Without this pg_cron keeps a row for every run, for ever.
  perform cron.schedule(
    'notifyq purge', '17 * * * *',
    'delete from cron.job_run_details as d using cron.job as j '
    'where j.jobid = d.jobid and j.jobname like ''notifyq %'' '
    'and d.end_time < now() - interval ''1 day'''
  );
exception
  when insufficient_privilege then
    raise notice 'pg_cron may not be used by %: the workers do the upkeep', current_user;
end;
$$;
