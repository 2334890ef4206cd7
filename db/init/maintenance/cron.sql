-- Cron: pg_cron runs maintenance, also while no worker is running.

do $$
declare
  v_name text;
  v_command text;
begin
  -- The extension can exist without its library being loaded; then it cannot be called.
  if not exists (select from pg_extension as e where e.extname = 'pg_cron')
    or current_setting('cron.database_name', true) is null
  then
    return;
  end if;
  -- Job names are unique only per user.
  if exists (
    select from cron.job as j
    where j.jobname = 'notifyq maintain' and j.username <> current_user
  ) then
    raise notice 'pg_cron runs maintenance already, as another user';
    return;
  end if;
  -- Two entries, as workers have two loops: a long retention keeps no lock from being reaped and no
  -- schedule from firing.
  for v_name, v_command in
    values
      ('notifyq maintain', 'select notifyq.maintain(urgently => false)'),
      (
        'notifyq reap',
        'select notifyq.reap_and_stage(), '
        'notifyq.run_duty(''fire schedules'', ''notifyq'', ''fire_schedules'', variadic ''{}'')'
      )
  loop
    begin
      perform cron.schedule(v_name, '10 seconds', v_command);
    exception
      -- pg_cron up to 1.4 (Debian 12) knows minutes only, and raises an error without a class.
      when others then
        perform cron.schedule(v_name, '* * * * *', v_command);
    end;
  end loop;
  -- pg_cron itself never deletes its row for each run.
  perform cron.schedule(
    'notifyq purge', '17 * * * *',
    'delete from cron.job_run_details as d using cron.job as j '
    'where j.jobid = d.jobid and j.jobname like ''notifyq %'' '
    'and d.end_time < now() - interval ''1 day'''
  );
exception
  when insufficient_privilege then
    raise notice 'pg_cron may not be used by %: the workers do maintenance', current_user;
end;
$$;
