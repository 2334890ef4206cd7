-- Stream grants: who may take the place of a reader that is gone.
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
    messages.recover_batch(text, text, integer, text, boolean),
    messages.leave_batch(bigint),
    messages.next_retry(text, text)
    to notifyq_worker, notifyq_admin;
end;
$$;
