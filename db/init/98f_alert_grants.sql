-- Alert grants: who may look for anomalies, and who may have them told.
--
-- owns:    nothing
-- writes:  privileges
-- calls:   nothing
-- raises:  nothing

do $$
begin
  if to_regrole('notifyq_admin') is null then
    return;
  end if;
  grant execute on function messages.archive_hours(timestamptz, timestamptz)
    to notifyq_reader, notifyq_admin;
  -- It may create a queue.
  grant execute on function messages.report_anomalies(jsonb, text) to notifyq_admin;
end;
$$;
