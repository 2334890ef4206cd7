-- Grants: nothing for everybody, then one list for each role.
--
-- owns:    nothing
-- writes:  privileges
-- calls:   nothing
-- raises:  nothing

revoke all on schema messages from public;
revoke all on all tables in schema messages from public;
revoke all on all sequences in schema messages from public;
revoke execute on all routines in schema messages from public;

do $$
declare
  v_type text;
begin
  for v_type in
    select format('messages.%I', t.typname)
    from pg_type as t
    left join pg_class as c on c.oid = t.typrelid
    where t.typnamespace = 'messages'::regnamespace
      and (t.typtype in ('e', 'd') or c.relkind = 'c')
    order by t.typname
  loop
    execute format('revoke all on type %s from public', v_type);
    if to_regrole('notifyq_admin') is not null then
      -- To make a view or a table of what the functions return.
      execute format(
        'grant usage on type %s '
        'to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin', v_type
      );
    end if;
  end loop;
  -- Without CREATEROLE 02_roles.sql could not make them; the owner then grants to roles of its own.
  if to_regrole('notifyq_admin') is null then
    return;
  end if;

  grant usage on schema messages
    to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin;
  grant execute on function messages.version(), messages.serves()
    to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin;

  grant execute on function messages.result(bigint)
    to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin;
  grant execute on function messages.await_result(bigint)
    to notifyq_publisher, notifyq_worker, notifyq_admin;

  grant insert (
      queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts
    )
    on messages.message to notifyq_publisher, notifyq_admin;
  grant execute on function
    messages.publish(
      text, jsonb, integer, interval, timestamptz, text, jsonb, text, text, integer, text,
      interval, text, bigint[], text
    ),
    messages.publish_many(
      text, jsonb[], integer, interval, timestamptz, text, jsonb, text[], text[], integer, text,
      interval, text, bigint[], text
    ),
    messages.receive_many(
      text, text[], text[], jsonb[], integer[], text[], jsonb[], text[], text[], text[], integer[],
      text[], interval
    ),
    messages.relay_target(),
    messages.enqueue(
      text, anyelement, integer, interval, timestamptz, text, jsonb, text, text
    ),
    messages.enqueue(text, text, integer, interval, timestamptz, text, jsonb, text, text),
    messages.enqueue(text, "char", integer, interval, timestamptz, text, jsonb, text, text),
    messages.payload_schema(text),
    -- Called by the insert trigger, with the rights of whoever inserts.
    messages.announce(bigint, text, boolean)
    to notifyq_publisher, notifyq_admin;
  -- What that trigger reads.
  grant select on sequence
    messages.announced_first_seq, messages.announced_last_seq, messages.announced_queue_seq
    to notifyq_publisher, notifyq_admin;

  grant execute on routine
    messages.wait(text[], interval, jsonpath[], text, integer, bigint, bigint, text, jsonb),
    messages.claim(text[], integer, interval, text, jsonpath, boolean, integer[], jsonpath[]),
    messages.claim_owned(text[], jsonpath[], text, boolean),
    messages.owned(),
    messages.finish_owned(messages.message_status, text, jsonb),
    messages.release_owned(interval),
    messages.claim_id(bigint, interval, text),
    messages.finish(bigint, bigint, messages.message_status, text, jsonb),
    messages.finish_many(bigint[], bigint[], messages.message_status[], text[], jsonb[]),
    messages.retry(
      bigint, bigint, interval, text, messages.message_status, text, text, text, boolean
    ),
    messages.retry_many(
      bigint[], bigint[], interval[], text[], messages.message_status[], text[], text[], text[],
      boolean[]
    ),
    messages.release(bigint, bigint, interval),
    messages.release_many(bigint[], bigint[], interval),
    messages.release_orphans(text, bigint[]),
    messages.extend(bigint, bigint, interval),
    messages.extend_many(bigint[], bigint[], interval),
    messages.take(text, integer),
    messages.attend(text, boolean),
    messages.unattend(text[]),
    messages.settled(xid8),
    messages.watch(text[], integer),
    messages.unwatch(text[], integer[], integer),
    messages.next_due(text[], interval),
    messages.summon(text[], boolean),
    messages.token_in(text[], interval),
    messages.relay_source(),
    messages.relay_claim(text[], integer, interval, text, jsonpath, boolean),
    messages.relay_finish(
      text, text, text, bigint[], bigint[], bigint[], messages.message_status[], text[], jsonb[]
    ),
    messages.relay_marks(text, text, interval),
    messages.relay_forget(text),
    messages.reap(integer),
    messages.stage_due(integer),
    messages.renotify(),
    messages.fire_schedules(integer),
    messages.next_schedule(),
    messages.maintain(),
    -- A finish whose answer was lost is looked for in the archive.
    messages.archive_find(bigint),
    messages.attempts(bigint),
    messages.queue_info(text),
    messages.dependencies(bigint),
    messages.diagnose()
    to notifyq_worker, notifyq_admin;

  grant execute on function messages.value_of(jsonb, anyelement), messages.payload_type(text, text)
    to notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin;

  grant select on all tables in schema messages to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.queue_info(text),
    messages.dependencies(bigint),
    messages.diagnose(),
    messages.message_list(text, messages.message_state, integer),
    messages.message_find(bigint),
    messages.archive_list(text, messages.message_status, integer, timestamptz),
    messages.archive_find(bigint),
    messages.archive_summary(text, timestamptz),
    messages.attempts(bigint),
    messages.dead_list(text, integer, integer, text),
    messages.dead_count(text, text),
    messages.dead_since(pg_snapshot, text, text),
    messages.current_position(),
    messages.snapshot_of(text),
    messages.known_position(text),
    messages.queue_grants(text),
    messages.queue_shares(text),
    messages.schedule_info(text),
    messages.cron_next(text, text, timestamptz)
    to notifyq_reader, notifyq_admin;

  grant execute on function
    messages.create_queue(
      text, interval, integer, interval, interval, text, interval, integer, integer, integer,
      integer, interval, integer, integer, interval, integer, boolean, boolean, integer, text,
      boolean, regtype, jsonb, interval
    ),
    messages.alter_queue(
      text, interval, integer, interval, interval, text, interval, integer, integer, integer,
      integer, interval, integer, integer, interval, integer, boolean, boolean, integer, text,
      boolean, regtype, jsonb, interval
    ),
    messages.set_share(text, text, double precision),
    messages.grant_queue(text, text, boolean, boolean),
    messages.revoke_queue(text, text),
    messages.drop_queue(text, boolean),
    messages.pause_queue(text),
    messages.resume_queue(text),
    messages.cancel(bigint),
    messages.unblock(bigint),
    messages.dead_retry(bigint[]),
    messages.redrive(text, messages.message_status, timestamptz, timestamptz, integer, text),
    messages.dead_delete(bigint[]),
    messages.receive(text, jsonb),
    messages.adopt(),
    messages.schedule(
      text, text, text, jsonb, text, text, jsonb, integer, text, integer, interval, text, integer,
      interval
    ),
    messages.unschedule(text),
    messages.enable_schedule(text),
    messages.disable_schedule(text),
    messages.run_schedule(text)
    to notifyq_admin;

  grant execute on function
    messages.subscribe(text, text, text),
    messages.next_batch(text, text, integer, text, interval),
    messages.batch_events(bigint),
    messages.retry_event(bigint, bigint, interval, text),
    messages.retry_batch(bigint, interval, text),
    messages.fail_event(bigint, bigint, text),
    messages.finish_batch(bigint),
    messages.tick(text),
    messages.attend_stream(text, boolean),
    messages.unattend_streams(text[]),
    messages.forward_pending(integer)
    to notifyq_worker, notifyq_admin;
  grant execute on function
    messages.stream_info(text),
    messages.subscription_info(text, text),
    messages.batch_info(bigint),
    messages.captures(text),
    messages.forwards(text)
    to notifyq_worker, notifyq_reader, notifyq_admin;
  grant execute on function messages.events_since(text, pg_snapshot)
    to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.create_stream(
      text, regtype, jsonb, boolean, interval, interval, bigint, text, integer
    ),
    messages.alter_stream(text, regtype, jsonb, interval, interval, bigint, text, integer),
    messages.drop_stream(text, boolean),
    messages.pause_stream(text),
    messages.resume_stream(text),
    messages.unsubscribe(text, text),
    messages.seek(text, text, text),
    messages.forward(text, text, text, text, jsonpath),
    messages.unforward(text, text, boolean)
    to notifyq_admin;
end;
$$;
