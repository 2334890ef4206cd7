-- Grants: what each role may call, read and insert; nothing is granted to public.
--
-- raises: nothing

revoke all on schema messages, notifyq from public;
revoke all on all tables in schema messages, notifyq from public;
revoke all on all sequences in schema messages, notifyq from public;
revoke execute on all routines in schema messages, notifyq from public;

-- Roles and the functions that they may call, with any arguments. notifyq_admin may call all of
-- these. Functions that are not listed are internal: only their owner may call them.
do $$
declare
  v_others text;
  v_schema text;
  v_names text;
  v_name text;
  v_roles text;
  v_calls text;
begin
  -- Without CREATEROLE bootstrap/roles.sql could not create the roles; the owner then grants to
  -- roles of its own.
  if to_regrole('notifyq_admin') is null then
    return;
  end if;
  for v_others, v_schema, v_names in
    values
      ('publisher worker reader', 'messages', 'version result value_of payload_type'),
      ('publisher worker reader', 'notifyq', 'oldest_client encrypted_names'),
      ('publisher worker', 'messages', 'await_result'),

      -- Publish.
      ('publisher', 'messages', 'publish publish_many is_duplicate enqueue payload_schema'),
      -- A trigger, and the rule of a view, call them with the rights of the role that inserts.
      ('publisher', 'notifyq', 'check_inserted admit_event'),
      ('publisher', 'notifyq', 'noted_duplicates receive_many receive_dead relay_target'),
      -- A table can be captured by its owner, who needs the right to publish into the stream.
      ('publisher', 'messages', 'capture capture_sql uncapture captures'),
      ('publisher', 'notifyq', 'capture_rows capture_updates capture_each'),
      (
        'publisher', 'notifyq',
        'check_targets begin_load begin_attempt commit_load drop_attempts load_rejects drop_load'
      ),

      -- Consume from queues. With archive_find a worker checks a finish whose answer was lost.
      (
        'worker', 'messages',
        'claim claim_id take wait owned finish_owned release_owned finish finish_many retry '
        'retry_many release release_many extend extend_many reap stage_due maintain archive_find '
        'attempts logs queue_info dependencies'
      ),
      (
        'worker', 'notifyq',
        'claim_owned release_orphans suppress unsuppress is_transaction_over take_wake_slots '
        'leave_wake_slots next_due wake_all rate_limit_wait renotify fire_schedules next_schedule '
        'relay_source relay_claim relay_finish relay_marks relay_forget diagnose worker_heartbeat '
        'remove_worker maintain reap_and_stage keep_logs'
      ),

      -- Durable work. The right to see a result includes progress and output.
      (
        'worker', 'messages', 'step sleep await_signal await_any await_end emit'
      ),
      ('worker', 'notifyq', 'record_step record_steps recorded_steps step_origin wait_for_ends'),
      ('publisher worker', 'messages', 'signal'),
      ('publisher worker reader', 'messages', 'progress output'),
      ('worker reader', 'messages', 'steps parked'),

      -- Consume from streams.
      (
        'worker', 'messages',
        'subscribe next_batch batch_events retry_event retry_batch fail_event finish_batch '
        'release_batch recover_batch tick register unregister dequeue dequeued run_broker '
        'start_broker stop_broker'
      ),
      (
        'worker', 'notifyq',
        'suppress_stream unsuppress_streams next_retry forward_pending broker_next broker_note '
        'broker_done want_broker'
      ),
      (
        'worker reader', 'messages',
        'stream_info subscription_info batch_info captures forwards status_broker'
      ),

      -- Read.
      (
        'reader', 'messages',
        'queue_info queue_grants queue_shares queue_limits dependencies message_list message_find '
        'archive_list archive_find archive_summary archive_info retention_info attempts logs '
        'dead_list dead_count dead_since current_position known_position events_since '
        'schedule_info cron_next audit_list lakes lake_files'
      ),
      (
        'reader', 'notifyq',
        'diagnose snapshot_of search_live search_archive dead_groups count_dead_matching '
        'count_live_matching '
        'open_batches message_relatives queue_list archive_extent archive_hours archive_parts '
        'archive_hashes archive_days prune_obstacle lake_batches lake_changes lake_removed '
        'lake_tables lake_stream_of error_fingerprint rolled_up rollup_range rollup_summary '
        'rollup_errors rollup_workers replay_counts'
      ),
      -- Workers report these as metrics. They may not list messages of other workers, which may be
      -- in queues that they have no right to.
      (
        'worker reader', 'messages',
        'backlog throughput activity cron_entries health'
      ),
      (
        'worker reader', 'notifyq',
        'subscription_lags table_sizes notification_counters failing_duties late_sequences '
        'wal_position'
      ),
      ('reader', 'messages', 'workers'),

      -- Read what was granted: each of these calls notifyq.readable_names() or may_read().
      (
        'viewer', 'messages',
        'queue_info queue_grants queue_shares queue_limits dependencies message_list message_find '
        'archive_list archive_find archive_summary attempts logs steps parked dead_list '
        'dead_count dead_since events_since schedule_info stream_info subscription_info forwards '
        'backlog throughput health'
      ),
      (
        'viewer', 'notifyq',
        'search_live search_archive dead_groups message_relatives open_batches queue_list '
        'archive_extent subscription_lags'
      ),
      ('viewer reader', 'notifyq', 'archive_names'),
      -- These show nothing of a queue.
      ('viewer', 'messages', 'version current_position known_position cron_next'),
      ('viewer', 'notifyq', 'oldest_client snapshot_of error_fingerprint'),

      -- Administer.
      (
        '', 'messages',
        'create_queue alter_queue drop_queue pause_queue resume_queue set_share set_limit '
        'grant_queue revoke_queue grant_read revoke_read cancel amend unblock run_now redrive '
        'receive adopt dead_retry dead_retry_from dead_delete '
        'dead_retry_matching dead_delete_matching cancel_matching run_now_matching '
        'move_matching amend_matching forget schedule unschedule pause_schedule '
        'resume_schedule run_schedule create_stream alter_stream drop_stream pause_stream '
        'resume_stream unsubscribe seek forward unforward alter_archive forget_lake'
      ),
      -- Retention relies on the rows that these write; replays read messages of any queue; reports
      -- of anomalies create a queue.
      (
        '', 'notifyq',
        'create_lake hold_lake note_lake commit_lake advance_lake forget_files prune_day roll_up '
        'add_rollup forget_rollup begin_replay redrive_ids replay_rows replay_archive '
        'report_anomalies note_audit sealed_columns sealed_texts replace_sealed forget_archived '
        'match_payloads forget_samples'
      )
  loop
    v_roles := array_to_string(
      array(
        select 'notifyq_' || r.role
        from string_to_table(v_others, ' ') as r (role)
        where r.role <> ''
      ) || array['notifyq_admin'],
      ', '
    );
    foreach v_name in array string_to_array(v_names, ' ') loop
      select string_agg(p.oid::regprocedure::text, ', ') into v_calls
      from pg_proc as p
      where p.pronamespace = v_schema::regnamespace and p.proname = v_name;
      if v_calls is null then
        raise exception 'no function %.% to grant', v_schema, v_name;
      end if;
      execute format('grant execute on routine %s to %s', v_calls, v_roles);
    end loop;
  end loop;

  grant usage on schema messages, notifyq
    to notifyq_publisher, notifyq_worker, notifyq_viewer, notifyq_reader, notifyq_admin;

  grant insert (
      queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts
    )
    on messages.message to notifyq_publisher, notifyq_admin;
  -- The trigger of such an insert reads them.
  grant select on sequence
    notifyq.announced_first_seq, notifyq.announced_last_seq, notifyq.announced_queue_seq
    to notifyq_publisher, notifyq_admin;
  -- An insert into the view uses the defaults of its table.
  grant insert (stream, type, key, message, headers) on messages.stream_event
    to notifyq_publisher, notifyq_admin;
  grant usage on sequence messages.event_id_seq to notifyq_publisher, notifyq_admin;
  -- A row belongs to a load by the number of an attempt, which only begin_attempt() gives out.
  grant insert on notifyq.load_row to notifyq_publisher, notifyq_admin;
  -- register() is such an insert; it leaves out the registrar, which is the role that inserts.
  grant select, insert (stream, subscriber, procedure, position)
    on messages.subscriber_procedure to notifyq_worker, notifyq_admin;
  grant select on all tables in schema messages, notifyq to notifyq_reader, notifyq_admin;
  grant select on notifyq.readable_archive to notifyq_viewer;
  -- Who knows these names and numbers can act as that relay or load.
  revoke select on notifyq.relay_self, notifyq.load_attempt, notifyq.load_row from notifyq_reader;
end;
$$;

-- Types: roles may use them in their own views and tables.
do $$
declare
  v_type text;
begin
  for v_type in
    select format('%s.%I', t.typnamespace::regnamespace, t.typname)
    from pg_type as t
    left join pg_class as c on c.oid = t.typrelid
    where t.typnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and (t.typtype in ('e', 'd') or c.relkind = 'c')
    order by 1
  loop
    execute format('revoke all on type %s from public', v_type);
    if to_regrole('notifyq_admin') is not null then
      execute format(
        'grant usage on type %s to notifyq_publisher, notifyq_worker, notifyq_viewer, '
        'notifyq_reader, notifyq_admin', v_type
      );
    end if;
  end loop;
end;
$$;
