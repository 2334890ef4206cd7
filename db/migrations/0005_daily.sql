-- Daily: what a team needs every day.
-- breaking: no
-- needs: owner
--
-- owns:    tables attempt, relay_receipt, schedule, dedup, dependency, share, flow* of messages
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- What a message is about, and how often it may be tried.
alter table messages.message
  add column key text,
  add column max_attempts integer;
alter table messages.message_archive
  add column key text,
  add column max_attempts integer;

comment on column messages.message.key is
  'What the message is about: order, limits and shares of a queue may go by it.';
comment on column messages.message.max_attempts is
  'Claims that this message may use up; null: as many as its queue says.';

-- They have more arguments now. Coming from version 1, the second was never made.
drop function messages.publish(text, jsonb, integer, interval, timestamptz, text, jsonb, text);
do $$
begin
  if to_regprocedure(
    'messages.publish_many(text, jsonb[], int, interval, timestamptz, text, jsonb, text[])'
  ) is not null then
    drop function
      messages.publish_many(text, jsonb[], integer, interval, timestamptz, text, jsonb, text[]);
  end if;
end;
$$;

-- Results: whose end rings, and what there is to read of it.
alter table messages.message
  add column awaited boolean not null default false;
alter table messages.message_archive
  add column awaited boolean not null default false;

comment on column messages.message.awaited is
  'Whether somebody waits for the end: finished_message rings for it.';

create type messages.message_report as (
  id bigint,
  queue text,
  state text,
  attempts integer,
  available_at timestamptz,
  archived_at timestamptz,
  details text,
  result jsonb
);
comment on type messages.message_report is
  'How far a message is: its state or, once finished, its status, and then its result.';

-- Attempts: how many a handler allows, and what became of those that did not succeed.
alter table messages.message add column handler_attempts integer;
comment on column messages.message.handler_attempts is
  'Claims that the handler allows which has the message, or had it last; null: it does not say.';

create table messages.attempt (
  message_id bigint not null,
  lock_token bigint not null,
  locked_at timestamptz not null,
  ended_at timestamptz not null default clock_timestamp(),
  retry_at timestamptz,
  number integer not null,
  status messages.message_status not null,
  queue text not null,
  handled_by text,
  error_type text,
  details text,
  traceback text,
  constraint attempt_message_id_lock_token_ended_at_pk
    primary key (message_id, lock_token, ended_at)
) partition by range (ended_at);

create table messages.attempt_default
  partition of messages.attempt default;

comment on table messages.attempt is
  'One row for each attempt that did not succeed; read it with messages.attempts().';
comment on column messages.attempt.message_id is 'The message, live or archived.';
comment on column messages.attempt.lock_token is 'The lock that the attempt was made under.';
comment on column messages.attempt.locked_at is 'When the attempt began.';
comment on column messages.attempt.ended_at is
  'When it ended; for a worker that died, when its lock was found expired.';
comment on column messages.attempt.retry_at is
  'When the message was to be handed out again; null: this was the last attempt.';
comment on column messages.attempt.number is 'Which attempt of the message it was, from 1 on.';
comment on column messages.attempt.status is 'How it ended; the status of the last one is final.';
comment on column messages.attempt.queue is 'The queue of the message.';
comment on column messages.attempt.handled_by is 'The worker that held the lock.';
comment on column messages.attempt.error_type is
  'The class of the error; null where there was none, or the worker did not tell.';
comment on column messages.attempt.details is 'The text of the error, or what else went wrong.';
comment on column messages.attempt.traceback is
  'Where the error came from, with the errors that caused it.';

-- Now, not with the rest: the functions that make their days act with the rights of the owner.
do $$
declare
  v_table text;
begin
  for v_table in select unnest(array['attempt', 'attempt_default'])
  loop
    execute format(
      'alter table messages.%I owner to %I', v_table,
      (select pg_get_userbyid(n.nspowner) from pg_namespace as n where n.nspname = 'messages')
    );
  end loop;
end;
$$;

-- What was received from elsewhere, so that it is received once.
create type messages.receipt_report as (
  published integer,
  merged integer,
  known integer
);
comment on type messages.receipt_report is 'What messages.receive() did with what it was sent.';

create table messages.relay_receipt (
  source text not null,
  place text not null,
  received_at timestamptz not null default clock_timestamp(),
  message_id bigint,
  constraint relay_receipt_source_place_pk primary key (source, place)
);

-- Receipts go by age.
create index relay_receipt_received_at_idx
  on messages.relay_receipt (received_at);

comment on table messages.relay_receipt is
  'One row for each message received from elsewhere, written with it: what comes again is known. '
  'It goes after 90 days.';
comment on column messages.relay_receipt.source is 'Where it came from: a table of a database.';
comment on column messages.relay_receipt.place is 'Which one it was there.';
comment on column messages.relay_receipt.received_at is 'When it was received.';
comment on column messages.relay_receipt.message_id is 'The message that it was published as.';

-- Limits, order and shares of a queue.
alter table messages.queue
  add column concurrency integer,
  add column key_concurrency integer,
  add column rate integer,
  add column rate_period interval not null default '1 second',
  add column rate_burst integer,
  add column key_rate integer,
  add column key_rate_period interval not null default '1 second',
  add column key_rate_burst integer,
  add column ordered boolean not null default false,
  add column fair boolean not null default false,
  add column capacity integer,
  add column overflow text not null default 'reject';
alter table messages.queue
  add column is_limited boolean not null generated always as (
    concurrency is not null or key_concurrency is not null or rate is not null
    or key_rate is not null or ordered or fair
  ) stored,
  add constraint queue_limits_ck check (
    concurrency > 0 and key_concurrency > 0 and rate > 0 and rate_burst > 0 and key_rate > 0
    and key_rate_burst > 0 and capacity > 0
  ),
  add constraint queue_rate_period_ck check (
    rate_period > interval '0' and key_rate_period > interval '0'
  ),
  add constraint queue_overflow_ck check (overflow in ('reject', 'drop_oldest'));

comment on column messages.queue.concurrency is
  'Most messages of the queue that are locked at a time, in the whole fleet; null: no limit.';
comment on column messages.queue.key_concurrency is
  'Most messages of one key that are locked at a time; null: no limit.';
comment on column messages.queue.rate is
  'Most messages handed out in each rate_period, in the whole fleet; null: no limit.';
comment on column messages.queue.rate_period is 'The time that rate is for.';
comment on column messages.queue.rate_burst is
  'Most messages handed out at once after a lull; null: a tenth of a second''s worth, at least 1.';
comment on column messages.queue.key_rate is
  'Most messages of one key handed out in each key_rate_period; null: no limit.';
comment on column messages.queue.key_rate_period is 'The time that key_rate is for.';
comment on column messages.queue.key_rate_burst is 'As rate_burst, for each key.';
comment on column messages.queue.ordered is
  'Whether a message waits until all earlier ones of its key are archived.';
comment on column messages.queue.fair is
  'Whether keys have equal shares, or those of messages.share, whatever waits of each.';
comment on column messages.queue.capacity is
  'Most messages that wait or are scheduled; null: no limit.';
comment on column messages.queue.overflow is
  'What happens beyond capacity. reject: publishing fails; drop_oldest: the oldest of the lowest '
  'priority are archived as rejected.';
comment on column messages.queue.is_limited is 'Whether claims must go by limits, order or shares.';

-- Its rows are locks: whoever hands out or publishes what is limited holds one to the end of the
-- transaction. They hardly ever change, so that they are found at once whatever vacuum is held by.
create table messages.flow (
  queue text not null,
  part text not null,
  is_held boolean not null default false,
  held_at timestamptz,
  constraint flow_queue_part_pk primary key (queue, part),
  constraint flow_part_ck check (part in ('claim', 'publish'))
);

comment on table messages.flow is
  'One row for each queue with limits and each end of it: taken by one transaction at a time.';
comment on column messages.flow.queue is 'Name of the queue.';
comment on column messages.flow.part is
  'claim: of those who hand out; publish: of those who fill a queue that has a capacity.';
comment on column messages.flow.is_held is
  'Whether something waits for a limit, so that whoever ends a lock rings.';
comment on column messages.flow.held_at is 'When that was so last.';

-- In the three tables below a change raises the number, and the largest is read: while vacuum is
-- held up old versions gather, and they lie behind the present one.
create table messages.flow_state (
  queue text not null,
  number bigint not null,
  turn double precision not null default 0,
  natural_look integer not null default 10000,
  paid_at timestamptz not null default '-infinity',
  counted_at timestamptz not null default '-infinity',
  after_key text not null default '',
  running bigint[] not null default '{}',
  kept integer not null default 0,
  keys text[] not null default '{}',
  scan_at timestamptz not null default '-infinity',
  walk_at timestamptz not null default '-infinity',
  place bigint[],
  constraint flow_state_queue_number_pk primary key (queue, number)
);

comment on table messages.flow_state is 'What the claims of a queue with limits leave to the next.';
comment on column messages.flow_state.queue is 'Name of the queue.';
comment on column messages.flow_state.number is 'Rises with every change.';
comment on column messages.flow_state.turn is
  'How far the shares are: what a key without a turn of its own begins with.';
comment on column messages.flow_state.natural_look is
  'How many messages to look at in their order before the keys are gone through.';
comment on column messages.flow_state.paid_at is 'When the bucket of the rate is full again.';
comment on column messages.flow_state.counted_at is 'When all locked messages were counted last.';
comment on column messages.flow_state.after_key is 'The key behind which the next look begins.';
comment on column messages.flow_state.running is
  'Ids that were handed out; those of them that are locked still are what the limits count.';
comment on column messages.flow_state.kept is
  'How many of them were left when those that are locked no more were last taken out.';
comment on column messages.flow_state.keys is 'Keys of a fair queue of which something waits.';
comment on column messages.flow_state.scan_at is 'When to look for such keys again.';
comment on column messages.flow_state.walk_at is
  'When to look again for messages of a fair queue without a key.';
comment on column messages.flow_state.place is
  'The priority and the id behind which to look for messages without a key.';

create table messages.flow_key (
  queue text not null,
  key text not null,
  number bigint not null,
  turn double precision not null,
  paid_at timestamptz not null,
  constraint flow_key_queue_key_number_pk primary key (queue, key, number)
);

comment on table messages.flow_key is
  'How far a key is ahead of the shares or of its rate; it goes when it is neither.';
comment on column messages.flow_key.queue is 'Name of the queue.';
comment on column messages.flow_key.key is 'The key of messages.';
comment on column messages.flow_key.number is 'Rises with every change.';
comment on column messages.flow_key.turn is 'Messages handed out, by weight.';
comment on column messages.flow_key.paid_at is 'When the bucket of the rate is full again.';

create table messages.flow_room (
  queue text not null,
  number bigint not null,
  room bigint not null,
  constraint flow_room_queue_number_pk primary key (queue, number)
);

comment on table messages.flow_room is
  'How many messages may surely be published before those that are there are counted again.';

comment on column messages.flow_room.queue is 'Name of the queue.';
comment on column messages.flow_room.number is 'Rises with every change.';
comment on column messages.flow_room.room is
  'Messages; what was promised to a transaction is taken off already.';

create table messages.share (
  queue text not null,
  key text not null,
  weight double precision not null,
  constraint share_queue_key_pk primary key (queue, key),
  constraint share_weight_ck check (weight between 0.001 and 1000000)
);

comment on table messages.share is
  'Keys of a fair queue that get more or less than others, which have the weight 1.';

comment on column messages.share.queue is 'Name of the queue.';
comment on column messages.share.key is 'The key of messages.';
comment on column messages.share.weight is 'How many times as many as without it.';

-- Messages without a key are in neither.
create index message_key_waiting_idx
  on messages.message (queue, key, priority desc, id)
  where state = 'waiting' and key is not null;
create index message_key_idx
  on messages.message (queue, key, id) where key is not null;

alter type messages.queue_report
  add attribute concurrency integer,
  add attribute key_concurrency integer,
  add attribute rate integer,
  add attribute rate_period interval,
  add attribute rate_burst integer,
  add attribute key_rate integer,
  add attribute key_rate_period interval,
  add attribute key_rate_burst integer,
  add attribute ordered boolean,
  add attribute fair boolean,
  add attribute capacity integer,
  add attribute overflow text,
  add attribute blocked bigint;

-- Beside the new ones, which have more arguments, each call would be ambiguous. Those that came
-- after the version that is upgraded are not there.
do $$
declare
  v_old text;
begin
  for v_old in
    select to_regprocedure(s.signature)
    from unnest(array[
      'messages.claim(text[], integer, interval, text, jsonpath, boolean)',
      'messages.retry(bigint, bigint, interval, text, messages.message_status)',
      'messages._requeue(messages.message, messages.queue, interval, text)',
      'messages._make_partition(date)',
      'messages._partition_name(date)',
      'messages.create_queue(text,interval,integer,interval,interval,text,interval,integer)',
      'messages.alter_queue(text,interval,integer,interval,interval,text,interval,integer)'
    ]) as s (signature)
    where to_regprocedure(s.signature) is not null
  loop
    execute format('drop function %s', v_old);
  end loop;
end;
$$;

-- Schedules.
create table messages.schedule (
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  cron text not null,
  timezone text not null,
  queue text not null,
  message jsonb not null,
  headers jsonb not null default '{}',
  type text,
  priority integer not null default 0,
  key text,
  max_attempts integer,
  jitter interval not null default interval '0',
  overlap text not null default 'allow',
  backfill integer not null default 1,
  grace interval not null default interval '5 minutes',
  enabled boolean not null default true,
  next_at timestamptz not null,
  last_at timestamptz,
  last_id bigint,
  skipped_at timestamptz,
  failed_at timestamptz,
  last_error text,
  constraint schedule_name_pk primary key (name),
  constraint schedule_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint schedule_headers_ck check (jsonb_typeof(headers) = 'object'),
  constraint schedule_max_attempts_ck check (max_attempts between 1 and 1000),
  constraint schedule_jitter_ck check (jitter between interval '0' and interval '1 day'),
  constraint schedule_overlap_ck check (overlap in ('allow', 'skip_waiting', 'skip')),
  constraint schedule_backfill_ck check (backfill between 0 and 100),
  constraint schedule_grace_ck check (grace >= interval '0')
);

create index schedule_next_idx on messages.schedule (next_at) where enabled;

comment on table messages.schedule is
  'What is published again and again; change it through the schedule functions.';
comment on column messages.schedule.name is
  '1 to 200 bytes, without control characters or outer blanks.';
comment on column messages.schedule.created_at is 'When it was first defined.';
comment on column messages.schedule.cron is
  'When: five fields, six with leading seconds, @daily and the like, or @every with an interval.';
comment on column messages.schedule.timezone is
  'The time zone whose clocks the expression means, as pg_timezone_names has it.';
comment on column messages.schedule.queue is 'Where its messages go.';
comment on column messages.schedule.message is 'The payload of each.';
comment on column messages.schedule.headers is
  'Headers of each, beside `schedule` (the name) and `due` (the time it was meant for).';
comment on column messages.schedule.type is 'Type of each.';
comment on column messages.schedule.priority is 'Priority of each.';
comment on column messages.schedule.key is 'Key of each.';
comment on column messages.schedule.max_attempts is
  'Claims that each may use up; null: as many as its queue says.';
comment on column messages.schedule.jitter is
  'Each becomes available up to this much later, at random.';
comment on column messages.schedule.overlap is
  'allow: messages may pile up; skip_waiting: a run is left out while the last one waits to be '
  'claimed; skip: a run is left out while the last one is live.';
comment on column messages.schedule.backfill is
  'How many runs at most are made up for after nobody was there to fire them; the latest count.';
comment on column messages.schedule.grace is 'A run that is late by less was not missed.';
comment on column messages.schedule.enabled is 'A disabled schedule does not fire.';
comment on column messages.schedule.next_at is 'The time of the next run.';
comment on column messages.schedule.last_at is 'The time that the last run was meant for.';
comment on column messages.schedule.last_id is 'The message of the last run.';
comment on column messages.schedule.skipped_at is
  'The last run that was left out: missed, or because of an earlier one, see backfill and overlap.';
comment on column messages.schedule.failed_at is
  'When it could last not be fired; it is tried again every minute. Null: all is well.';
comment on column messages.schedule.last_error is 'Why not.';

-- Unique messages: how long a key is taken. The index stays as it is: whoever calls publish() now
-- waits for this transaction in the function as it was, and that names the index by its predicate.
alter table messages.message
  add column dedup_scope text,
  add column given_up_key text,
  add column blockers integer;

comment on column messages.message.dedup_key is
  'At most one message of a queue has a given key while it is live, or as dedup_scope says.';
comment on column messages.message.dedup_scope is
  'waiting: the message has its dedup_key until it is claimed; null: as long as it is live.';
comment on column messages.message.given_up_key is
  'The dedup_key that it had until it was claimed, where its scope is waiting.';
comment on column messages.message.blockers is
  'How many messages must end before this one is due; null: it waits for none.';

create table messages.dedup (
  queue text not null,
  dedup_key text not null,
  id bigint not null,
  expires_at timestamptz not null,
  constraint dedup_queue_dedup_key_pk primary key (queue, dedup_key)
);

create index dedup_expires_at_idx on messages.dedup (expires_at);

comment on table messages.dedup is
  'Keys that were published with a window, until it is over; messages.maintain() removes them.';
comment on column messages.dedup.queue is 'The queue in which the key is taken.';
comment on column messages.dedup.dedup_key is 'The key that is taken.';
comment on column messages.dedup.id is 'The message that was published under the key.';
comment on column messages.dedup.expires_at is 'From then on the key may be published again.';

-- Messages that wait for others.
create table messages.dependency (
  message_id bigint not null,
  after_id bigint not null,
  position integer not null,
  status messages.message_status,
  available_at timestamptz,
  delay interval,
  on_failure text not null,
  constraint dependency_message_id_after_id_pk primary key (message_id, after_id),
  constraint dependency_on_failure_ck check (on_failure in ('cancel', 'run', 'hold'))
);

create index dependency_after_id_idx on messages.dependency (after_id);

comment on table messages.dependency is
  'Which messages wait for the end of which; the rows of one go when it succeeds, or with its '
  'archived row.';
comment on column messages.dependency.message_id is 'The message that waits.';
comment on column messages.dependency.after_id is 'The message that it waits for.';
comment on column messages.dependency.position is 'The place of the latter among all of them.';
comment on column messages.dependency.status is 'How the latter ended; null: it has not yet.';
comment on column messages.dependency.available_at is 'The message is not due before this instant.';
comment on column messages.dependency.delay is 'How long after the last of them it is due.';
comment on column messages.dependency.on_failure is
  'What becomes of the message if the latter dies. cancel: it is archived as rejected; run: it '
  'runs all the same; hold: it waits until somebody decides.';
