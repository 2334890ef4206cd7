-- Views: functions may read those of these schemas in every database.

-- Since 2024 a server may refuse to expand views that are not its own.
do $$
declare
  v_function regprocedure;
begin
  if current_setting('restrict_nonsystem_relation_kind', true) is null then
    return;
  end if;
  for v_function in
    select p.oid
    from pg_proc as p
    where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and p.prosrc ~ (
        '(from|join)[[:space:]]+'
        '(messages[.]dead_message|notifyq[.](timed_message|day_partition|retryable_message))'
      )
    order by p.oid
  loop
    execute format('alter function %s set restrict_nonsystem_relation_kind = %L', v_function, '');
  end loop;
end;
$$;
