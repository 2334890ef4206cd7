-- Queue: queues, their grants and weights, and the state of their limits.

create table if not exists messages.queue (
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  lock_duration interval not null default interval '1 minute',
  max_attempts integer not null default 1,
  backoff interval not null default interval '2 seconds',
  backoff_max interval not null default interval '5 minutes',
  notify text not null default 'auto',
  paused boolean not null default false,
  retention interval not null default interval '30 days',
  max_bytes integer not null default 1048576,
  concurrency integer,
  key_concurrency integer,
  rate integer,
  rate_period interval not null default '1 second',
  rate_burst integer,
  key_rate integer,
  key_rate_period interval not null default '1 second',
  key_rate_burst integer,
  ordered boolean not null default false,
  fair boolean not null default false,
  capacity integer,
  overflow text not null default 'reject',
  is_limited boolean not null generated always as (
    concurrency is not null or key_concurrency is not null or rate is not null
    or key_rate is not null or ordered or fair
  ) stored,
  payload_type text,
  payload_schema text,
  durable boolean not null default true,
  retention_dead interval,
  resumes_at timestamptz,
  has_key_limits boolean not null default false,
  aging interval,
  encrypted boolean not null default false,
  constraint queue_name_pk primary key (name),
  -- A notification has less than 8000 bytes, the name of its queue among them.
  constraint queue_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[:[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint queue_lock_duration_ck check (lock_duration > interval '0'),
  constraint queue_max_attempts_ck check (max_attempts between 1 and 1000),
  constraint queue_backoff_ck check (backoff >= interval '0' and backoff_max >= backoff),
  constraint queue_notify_ck check (notify in ('auto', 'always', 'off')),
  constraint queue_retention_ck check (retention > interval '0'),
  constraint queue_retention_dead_ck check (retention_dead > interval '0'),
  constraint queue_max_bytes_ck check (max_bytes between 4096 and 268435456),
  constraint queue_limits_ck check (
    concurrency > 0 and key_concurrency > 0 and rate > 0 and rate_burst > 0 and key_rate > 0
    and key_rate_burst > 0 and capacity > 0
  ),
  constraint queue_rate_period_ck check (
    rate_period > interval '0' and key_rate_period > interval '0'
  ),
  constraint queue_limits_most_ck check (
    greatest(
      concurrency, key_concurrency, rate, rate_burst, key_rate, key_rate_burst, capacity
    ) <= 1000000000
  ),
  constraint queue_rates_ck check (
    rate <= 1e9 * extract(epoch from rate_period)
    and key_rate <= 1e9 * extract(epoch from key_rate_period)
    and rate_burst * extract(epoch from rate_period) <= 31557600000.0 * rate
    and key_rate_burst * extract(epoch from key_rate_period) <= 31557600000.0 * key_rate
  ),
  constraint queue_payload_schema_ck check (
    jsonb_typeof(payload_schema::jsonb) in ('object', 'boolean')
  ),
  constraint queue_encrypted_ck check (
    not encrypted or num_nonnulls(payload_type, payload_schema) = 0
  ),
  constraint queue_overflow_ck check (overflow in ('reject', 'drop_oldest')),
  constraint queue_aging_ck check (aging is null or aging > interval '0' and not is_limited)
);

comment on table messages.queue is 'Registry of queues; change it with the queue functions.';
comment on column messages.queue.name is
  '1 to 200 bytes, no colon, no control characters, no blank at either end.';
comment on column messages.queue.lock_duration is
  'How long a claim locks a message; a worker may extend the lock.';
comment on column messages.queue.max_attempts is
  'How often a message may be claimed; with 1, a failure or an expired lock archives it.';
comment on column messages.queue.backoff is
  'Delay before the second attempt; it doubles with each attempt, less a random part of up to a '
  'half.';
comment on column messages.queue.backoff_max is 'Upper bound of the delay between attempts.';
comment on column messages.queue.notify is
  'auto: a statement that publishes sends one notification on new_message, unless a worker '
  'suppresses notifications; always: it sends one even then; off: workers find messages by '
  'polling.';
comment on column messages.queue.paused is
  'A paused queue accepts messages, but hands none out and sends no notifications.';
comment on column messages.queue.resumes_at is
  'When a paused queue resumes by itself; null: not before resume_queue().';
comment on column messages.queue.retention is
  'How long the archive keeps its messages; from one day on, whole days are removed.';
comment on column messages.queue.retention_dead is
  'How long it keeps messages that did not succeed; null: as retention.';
comment on column messages.queue.max_bytes is
  'Maximum size of a message and its headers together, in bytes of JSON text.';
comment on column messages.queue.concurrency is
  'Maximum of messages of the queue that are locked at a time, by all workers; null: no limit.';
comment on column messages.queue.key_concurrency is
  'Maximum of messages of one key that are locked at a time; null: no limit.';
comment on column messages.queue.rate is
  'Maximum of messages claimed in each rate_period, by all workers; null: no limit.';
comment on column messages.queue.rate_period is 'The period of rate.';
comment on column messages.queue.rate_burst is
  'Maximum of messages claimed at once after a pause; null: those of a tenth of a second, at '
  'least 1.';
comment on column messages.queue.key_rate is
  'Maximum of messages of one key claimed in each key_rate_period; null: no limit.';
comment on column messages.queue.key_rate_period is 'The period of key_rate.';
comment on column messages.queue.key_rate_burst is 'As rate_burst, for each key.';
comment on column messages.queue.ordered is
  'Whether a message waits until all earlier messages of its key are archived.';
comment on column messages.queue.fair is
  'Whether claims go round the keys, by the weights in messages.share, however many messages each '
  'has.';
comment on column messages.queue.capacity is
  'Maximum of messages that wait or are scheduled; null: no limit.';
comment on column messages.queue.overflow is
  'What happens beyond capacity. reject: publishing fails; drop_oldest: the oldest messages of '
  'the lowest priority are archived as rejected.';
comment on column messages.queue.is_limited is
  'Whether claims have to follow limits, order or shares.';
comment on column messages.queue.has_key_limits is
  'Whether keys have limits of their own, in messages.queue_limit.';
comment on column messages.queue.payload_type is
  'The type of its messages: each is the text of a value, as a JSON string; null: any JSON.';
comment on column messages.queue.payload_schema is
  'The JSON Schema that its messages must satisfy, as text; null: any JSON.';
comment on column messages.queue.durable is
  'Whether its messages survive a crash of the server; else they are in notifyq.message_unlogged.';
comment on column messages.queue.aging is
  'How long a message waits to gain one level of priority; null: it gains none.';
comment on column messages.queue.encrypted is
  'Whether payloads, results, errors, steps and output are encrypted by its programs; plaintext is '
  'refused.';

insert into messages.queue (name)
values ('default')
on conflict on constraint queue_name_pk do nothing;

create table if not exists messages.queue_grant (
  queue text not null,
  -- A name, not an oid: a grant to a role that a restored server lacks must still close the queue.
  role text not null,
  granted_at timestamptz not null default clock_timestamp(),
  may_publish boolean not null,
  may_consume boolean not null,
  constraint queue_grant_queue_role_pk primary key (queue, role),
  constraint queue_grant_may_ck check (may_publish or may_consume)
);
comment on table messages.queue_grant is
  'Which roles may use a queue; a queue without a row here is open to all publishers and workers.';
comment on column messages.queue_grant.queue is 'Name of the queue.';
comment on column messages.queue_grant.role is
  'Name of the role; its members have the same rights.';
comment on column messages.queue_grant.granted_at is 'When it was granted, or last changed.';
comment on column messages.queue_grant.may_publish is 'Whether it may put messages in.';
comment on column messages.queue_grant.may_consume is
  'Whether it may claim, take and settle messages.';

create table if not exists messages.read_grant (
  queue text not null,
  role text not null,
  granted_at timestamptz not null default clock_timestamp(),
  constraint read_grant_queue_role_pk primary key (queue, role)
);
comment on table messages.read_grant is
  'What roles with notifyq_viewer may read; a row here closes nothing to publishers and workers.';
comment on column messages.read_grant.queue is 'Name of the queue or stream.';
comment on column messages.read_grant.role is
  'Name of the role; its members have the same rights.';
comment on column messages.read_grant.granted_at is 'When it was granted.';

create table if not exists messages.share (
  queue text not null,
  key text not null,
  weight double precision not null,
  constraint share_queue_key_pk primary key (queue, key),
  constraint share_weight_ck check (weight between 0.001 and 1000000)
);
comment on table messages.share is
  'Weights of keys of a fair queue; a key without a row here has the weight 1.';
comment on column messages.share.queue is 'Name of the queue.';
comment on column messages.share.key is 'The key of messages.';
comment on column messages.share.weight is
  'How many messages of the key are claimed for each message of a key with the weight 1.';

create table if not exists messages.queue_limit (
  queue text not null,
  key text not null,
  concurrency integer,
  rate integer,
  constraint queue_limit_queue_key_pk primary key (queue, key),
  constraint queue_limit_ck check (
    coalesce(concurrency, rate) is not null and least(concurrency, rate) > 0
    and greatest(concurrency, rate) <= 1000000000
  )
);
comment on table messages.queue_limit is
  'Limits of single keys; a key without a row here has those of its queue.';
comment on column messages.queue_limit.queue is 'Name of the queue.';
comment on column messages.queue_limit.key is 'The key of messages.';
comment on column messages.queue_limit.concurrency is
  'Instead of key_concurrency of the queue; null: as that.';
comment on column messages.queue_limit.rate is
  'Instead of key_rate of the queue, in the same period; null: as that.';

-- State of limits.

-- A claim or a publisher locks its row until the end of the transaction. Rows hardly ever change:
-- they are found at once even while an old snapshot holds vacuum back.
create table if not exists notifyq.limit_turn (
  queue text not null,
  part text not null,  -- claim, or publish where the queue has a capacity
  is_blocked boolean not null default false,  -- messages wait for the end of a lock: it must notify
  blocked_at timestamptz,  -- when is_blocked was last set
  constraint limit_turn_queue_part_pk primary key (queue, part),
  constraint limit_turn_part_ck check (part in ('claim', 'publish'))
);
comment on table notifyq.limit_turn is
  'Locks of queues with limits: one transaction at a time claims, or publishes, in its turn.';

-- In this table and the next ones a change raises the number, and readers take the largest number:
-- while vacuum is held back, old versions gather, and an index scan comes to them last.
create table if not exists notifyq.limit_state (
  queue text not null,
  number bigint not null,
  scan_size integer not null default 10000,  -- messages to read in queue order before going by keys
  paid_at timestamptz not null default '-infinity',  -- when the bucket of the rate is full again
  counted_at timestamptz not null default '-infinity',  -- last count of all locked messages
  running bigint[] not null default '{}',  -- claimed ids; those that are still locked count
  kept integer not null default 0,  -- how many of them were left when finished ones were removed
  keyless_scan_at timestamptz not null default '-infinity',  -- next scan for messages without a key
  position bigint[],  -- priority and id after which that scan goes on
  round bigint not null default 0,  -- rounds that all keys of a fair queue have had
  served integer not null default 0,  -- messages that after_key_hash had; 0: its turn is over
  unlisted integer not null default 0,  -- messages claimed far from the limits, not in running
  max_per_key integer not null default 1000000000,  -- upper bound of running messages of one key
  charged bigint not null default 0,  -- number of the last row of limit_charge
  booked bigint not null default 0,  -- number of the last row that limit_key includes
  keys_paid_at timestamptz not null default '-infinity',  -- when all buckets of keys are full again
  booked_paid_at timestamptz not null default '-infinity',  -- the same for limit_key alone
  after_key_hash bigint,  -- notifyq.key_hash() after which the next claim goes on; null: the first
  constraint limit_state_queue_number_pk primary key (queue, number)
);
comment on table notifyq.limit_state is 'State that claims of a queue with limits hand on.';

-- Claims write it often: compression would cost more than it saves.
alter table notifyq.limit_state alter column running set storage external;

do $$
begin
  if to_regtype('notifyq.limit_selection') is null then
    create type notifyq.limit_selection as (
      ids bigint[],
      state notifyq.limit_state,
      is_blocked boolean
    );
  end if;
end;
$$;
comment on type notifyq.limit_selection is
  'Messages that a claim may have, the state after it, and whether others wait for a lock.';

create table if not exists notifyq.limit_key (
  queue text not null,
  key text not null,
  number bigint not null,
  paid_at timestamptz not null,  -- when the bucket of the key is full again
  constraint limit_key_queue_key_number_pk primary key (queue, key, number)
);
comment on table notifyq.limit_key is 'Token buckets of keys that are not full.';

create table if not exists notifyq.limit_charge (
  queue text not null,
  number bigint not null,  -- rises with every claim, by the number of its keys
  charged_at timestamptz not null,  -- when the messages were claimed
  each double precision not null,  -- seconds in which a bucket gained one token
  keys text[] not null,
  tokens integer[] not null,  -- what each of keys has spent
  constraint limit_charge_queue_number_pk primary key (queue, number)
);
comment on table notifyq.limit_charge is
  'Tokens that keys have spent and limit_key does not include yet: one row for each claim.';
alter table notifyq.limit_charge
  alter column keys set storage external, alter column tokens set storage external;

create table if not exists notifyq.limit_room (
  queue text not null,
  number bigint not null,
  room bigint not null,  -- without what transactions have reserved
  constraint limit_room_queue_number_pk primary key (queue, number)
);
comment on table notifyq.limit_room is
  'How many messages may be published before those in the queue are counted again.';
