-- Capture grants: who may have a table captured.
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
  -- Whether a table is captured is decided by its owner, into which stream by who may publish.
  grant execute on function
    messages.capture(regclass, text, text[], text, text[]),
    messages.capture_sql(regclass, text, text[], text, text[]),
    messages.capture_rows(), messages.capture_updates(), messages.capture_each(),
    messages.uncapture(regclass, text), messages.captures(text)
    to notifyq_publisher, notifyq_admin;
end;
$$;
