-- Grants: nothing for everybody, then what each role may call.

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
  -- Without CREATEROLE bootstrap/roles.sql could not make them; the owner then grants to roles of
  -- its own.
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

-- Broker grants: who may register procedures and run brokers.

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

-- Stream grants: who may publish by insert, and take the place of a reader that is gone.

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

-- Capture grants: who may have a table captured.

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

-- Lake grants: who may move the archive to a lake and back.

do $$
begin
  if to_regrole('notifyq_admin') is null then
    return;
  end if;
  grant execute on function
    messages.lakes(),
    messages.lake_files(bigint, text),
    messages.lake_batches(bigint, text, bigint),
    messages.lake_changes(bigint),
    messages.lake_removed(bigint),
    messages.archive_parts(pg_snapshot, pg_snapshot, integer),
    messages.archive_hashes(date),
    messages.archive_days(),
    messages.prune_obstacle(bigint, date)
    to notifyq_reader, notifyq_admin;
  -- Retention trusts in what these write, and waits for it.
  grant execute on function
    messages.create_lake(text),
    messages.forget_lake(bigint),
    messages.hold_lake(bigint),
    messages.note_lake(bigint, text),
    messages.commit_lake(bigint, text, jsonb, text, bigint[], text),
    messages.forget_files(bigint, bigint[]),
    messages.prune_day(bigint, date, bigint, numeric)
    to notifyq_admin;
  grant execute on function
    messages.error_fingerprint(text),
    messages.rolled_up(bigint),
    messages.rollup_range(bigint),
    messages.rollup_summary(timestamptz, timestamptz, interval, text[], bigint),
    messages.rollup_errors(timestamptz, timestamptz, text, integer, bigint),
    messages.rollup_workers(timestamptz, timestamptz, text, integer, bigint)
    to notifyq_reader, notifyq_admin;
  grant execute on function
    messages.roll_up(bigint, bigint, bigint),
    messages.add_rollup(bigint, jsonb, jsonb, jsonb),
    messages.forget_rollup(bigint)
    to notifyq_admin;
end;
$$;

-- Alert grants: who may look for anomalies, and who may have them told.

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

-- Load grants: who may load, and who may replay.

do $$
begin
  if to_regrole('notifyq_admin') is null then
    return;
  end if;
  -- The number of an attempt is all that gives a row a place in a load.
  grant insert on messages.load_row to notifyq_publisher, notifyq_admin;
  grant execute on function
    messages.check_targets(text[]),
    messages.begin_load(text, bigint),
    messages.begin_attempt(text),
    messages.commit_load(text, bigint[], bigint[], bigint),
    messages.drop_attempts(text, bigint[]),
    messages.load_rejects(text, bigint[], integer),
    messages.drop_load(text)
    to notifyq_publisher, notifyq_admin;
  -- What is archived may be of any queue.
  grant execute on function
    messages.begin_replay(text, text),
    messages.replay_rows(text, bigint, bigint, double precision, boolean),
    messages.replay_archive(
      text, integer, bigint, text, messages.message_status[], text, timestamptz, timestamptz,
      jsonb, double precision, boolean
    )
    to notifyq_admin;
  grant execute on function messages.replay_counts(
    text, text, messages.message_status[], text, timestamptz, timestamptz, jsonb, boolean
  )
    to notifyq_reader, notifyq_admin;
end;
$$;

-- Monitor grants: who may look on.

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

-- Retention grants: who may see what is kept, and who may change it.

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

-- Search grants: who may look for messages, and act on all that are found.

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

-- Audit grants: who acts notes it, who reads may read it; and what the dashboard reads beside.

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
