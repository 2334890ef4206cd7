-- Audit grants: who acts notes it, who reads may read it; and what the dashboard reads beside.
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
  grant execute on function messages.audit_list(bigint, text, text, text, integer, timestamptz)
    to notifyq_reader, notifyq_admin;
  grant execute on function messages.queue_list(text) to notifyq_reader, notifyq_admin;
  grant execute on function messages.audit(text, text, text, jsonb, text) to notifyq_admin;
end;
$$;
