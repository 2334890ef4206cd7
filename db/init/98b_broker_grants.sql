-- Broker grants: who may register procedures and run brokers.
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
  -- What register() gives; the registrar is not among it, so it is who inserts.
  grant select, insert (stream, subscriber, procedure, position)
    on messages.subscriber_procedure to notifyq_worker, notifyq_admin;
  grant execute on function
    messages.register(text, text, text, text),
    messages.unregister(text, text, boolean),
    messages.dequeued(),
    messages.dequeue(anyelement),
    messages.broker_next(bigint, bigint),
    messages.broker_note(bigint, bigint, bigint, text),
    messages.broker_done(bigint, bigint, bigint, integer, integer, boolean),
    messages.want_broker(text, boolean),
    messages.start_broker(),
    messages.stop_broker(text, interval)
    to notifyq_worker, notifyq_admin;
  grant execute on routine messages.run_broker(interval, boolean)
    to notifyq_worker, notifyq_admin;
  grant execute on function messages.status_broker(text)
    to notifyq_worker, notifyq_reader, notifyq_admin;
end;
$$;
