-- Monitor grants: who may look on.
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
  -- A worker tells its metrics.
  grant execute on function
    messages.backlog(text, integer),
    messages.lags(integer),
    messages.throughput(timestamptz, timestamptz, interval, text, boolean, integer),
    messages.holders(integer),
    messages.activity(integer),
    messages.cron_entries(),
    messages.sizes(),
    messages.bells(),
    messages.health()
    to notifyq_worker, notifyq_reader, notifyq_admin;
  -- Which messages others have is not for a worker, which may have no right to their queues.
  grant execute on function messages.workers(integer) to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.note_worker(
      text, text[], text[], integer, integer, boolean, text, integer, text
    ),
    messages.forget_worker(text)
    to notifyq_worker, notifyq_admin;
end;
$$;
