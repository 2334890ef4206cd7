-- Types: states of a message, and rows that functions report.

do $$
begin
  if to_regtype('messages.message_status') is null then
    create type messages.message_status as enum ('success', 'rejected', 'failed', 'lock_expired');
  end if;
  if to_regtype('messages.message_state') is null then
    create type messages.message_state as enum ('waiting', 'scheduled', 'locked');
  end if;
  if to_regtype('messages.queue_report') is null then
    create type messages.queue_report as (
      queue text, paused boolean,
      waiting bigint, scheduled bigint, locked bigint, expired bigint,
      oldest_waiting_at timestamptz,
      lock_duration interval, max_attempts integer, backoff interval, backoff_max interval,
      notify text, retention interval, max_bytes integer,
      concurrency integer, key_concurrency integer,
      rate integer, rate_period interval, rate_burst integer,
      key_rate integer, key_rate_period interval, key_rate_burst integer,
      ordered boolean, fair boolean, capacity integer, overflow text, blocked bigint,
      durable boolean, payload_type text, payload_schema jsonb,
      finished bigint, dropped bigint, retention_dead interval, resumes_at timestamptz,
      parked bigint, aging interval, encrypted boolean
    );
  end if;
  if to_regtype('messages.summary_report') is null then
    create type messages.summary_report as (
      queue text, status messages.message_status, messages bigint,
      first_created_at timestamptz, last_archived_at timestamptz,
      wait_p50 interval, wait_p95 interval, wait_p99 interval,
      run_p50 interval, run_p95 interval, run_p99 interval
    );
  end if;
  if to_regtype('messages.maintenance_report') is null then
    create type messages.maintenance_report as (
      reaped integer, staged integer, notified integer,
      partitions_made integer, partitions_dropped integer
    );
  end if;
  if to_regtype('messages.receipt_report') is null then
    create type messages.receipt_report as (published integer, merged integer, known integer);
  end if;
  if to_regtype('notifyq.relay_report') is null then
    create type notifyq.relay_report as (ids bigint[], merged integer, known integer);
  end if;
  if to_regtype('messages.message_report') is null then
    create type messages.message_report as (
      id bigint, queue text, state text, attempts integer,
      available_at timestamptz, archived_at timestamptz, details text, result jsonb
    );
  end if;
  if to_regtype('messages.batch_event') is null then
    create type messages.batch_event as (
      id bigint, created_at timestamptz, type text, key text, message jsonb, headers jsonb,
      retries integer, reason text
    );
  end if;
  if to_regtype('messages.stream_report') is null then
    create type messages.stream_report as (
      stream text, created_at timestamptz, subscribers integer,
      segments integer, bytes bigint, oldest_at timestamptz,
      last_tick bigint, last_tick_at timestamptz,
      retention interval, max_lag interval, max_events bigint, max_bytes integer,
      notify text, paused boolean, durable boolean, payload_type text, payload_schema jsonb,
      encrypted boolean
    );
  end if;
  if to_regtype('messages.subscription_report') is null then
    create type messages.subscription_report as (
      stream text, subscriber text, lag interval, pending bigint, last_seen_at timestamptz,
      last_tick bigint, current_batch bigint, next_tick bigint,
      retries bigint, dead bigint, members integer
    );
  end if;
  if to_regtype('messages.forward_report') is null then
    create type messages.forward_report as (
      stream text, subscriber text, queue text, filter jsonpath,
      created_at timestamptz, failed_at timestamptz, last_error text
    );
  end if;
  if to_regtype('messages.capture_report') is null then
    create type messages.capture_report as (
      relation regclass, stream text, operations text[], columns text[], condition text,
      is_by_row boolean, is_enabled boolean, triggers text[], problem text
    );
  end if;
  if to_regtype('messages.batch_report') is null then
    create type messages.batch_report as (
      batch bigint, stream text, subscriber text, member text,
      opened_at timestamptz, ended_at timestamptz, is_retry boolean,
      first_id bigint, last_id bigint, seen pg_snapshot, upto pg_snapshot,
      previous_tick bigint, tick bigint, previous_tick_at timestamptz, tick_at timestamptz,
      lag interval
    );
  end if;
end;
$$;

comment on type messages.message_status is 'How a message ended; all but success are dead.';
comment on type messages.message_state is
  'State of a live message: waiting to be claimed, scheduled for later, or locked by a worker.';
comment on type messages.queue_report is 'One queue, as messages.queue_info() reports it.';
comment on type messages.summary_report is
  'Counts, and percentiles of wait (created to locked) and run (locked to archived) time.';
comment on type messages.maintenance_report is 'What one call of messages.maintain() did.';
comment on type messages.receipt_report is
  'What messages.receive() did with the messages that it was sent.';
comment on type notifyq.relay_report is
  'What notifyq.receive_many() did: ids of the messages in the order given, how many were merged '
  'with live messages of the same dedup_key, and how many had been received before.';
comment on type messages.message_report is
  'State of a message or, once it is finished, its status and result.';
comment on type messages.batch_event is
  'An event, as batch_events() returns it; retries and reason are null the first time.';
comment on type messages.stream_report is 'One stream, as messages.stream_info() reports it.';
comment on type messages.subscription_report is
  'One subscription, as messages.subscription_info() reports it.';
comment on type messages.batch_report is 'One batch, as messages.batch_info() reports it.';
comment on type messages.forward_report is
  'One subscription that forwards, as messages.forwards() reports it.';
comment on type messages.capture_report is 'One captured table, as messages.captures() reports it.';
