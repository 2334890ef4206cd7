-- Stream grants: who may publish by insert, and take the place of a reader that is gone.
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

  -- Who inserts into a view draws the defaults of the table, and calls what its rule does.
  grant insert (stream, type, key, message, headers) on messages.stream_event
    to notifyq_publisher, notifyq_admin;
  grant usage on sequence messages.event_id_seq to notifyq_publisher, notifyq_admin;
  grant execute on function messages.admit_event(text, jsonb, jsonb)
    to notifyq_publisher, notifyq_admin;
end;
$$;
