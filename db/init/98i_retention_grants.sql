-- Retention grants: who may see what is kept, and who may change it.
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
  grant execute on function
    messages.retention_info(),
    messages.archive_info(),
    messages.archive_extent(timestamptz, timestamptz)
    to notifyq_reader, notifyq_admin;
  grant execute on function messages.alter_archive(interval, interval, integer) to notifyq_admin;
end;
$$;
