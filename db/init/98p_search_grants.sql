-- Search grants: who may look for messages, and act on all that are found.
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
    messages.search_live(jsonb, integer, bigint, interval),
    messages.search_archive(jsonb, integer, timestamptz, bigint, interval),
    messages.dead_groups(jsonb, integer, timestamptz, bigint, interval),
    messages.dead_matching(jsonb, integer, timestamptz, bigint, interval),
    messages.open_batches(text, integer),
    messages.relatives(bigint, integer)
    to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.dead_retry_matching(jsonb, integer, timestamptz, bigint, interval),
    messages.dead_delete_matching(jsonb, integer, timestamptz, bigint, interval),
    messages.run_now(bigint)
    to notifyq_admin;
end;
$$;
