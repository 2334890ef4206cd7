-- Queue: the registry of queues, their grants, and the state of their limits.

create table if not exists messages.queue (
  name text not null,
  created_at timestamptz not null default clock_timestamp(),
  lock_timeout interval not null default interval '1 minute',
  max_attempts integer not null default 1,
  backoff interval not null default interval '2 seconds',
  backoff_max interval not null default interval '5 minutes',
  bell text not null default 'auto',
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
  constraint queue_name_pk primary key (name),
  -- A bell's payload is `<queue>:<ids>` in less than 8000 bytes; bytes count, not characters.
  constraint queue_name_ck check (
    octet_length(name) between 1 and 200
    and name !~ '[:[:cntrl:]]'
    and name = btrim(name)
  ),
  constraint queue_lock_timeout_ck check (lock_timeout > interval '0'),
  constraint queue_max_attempts_ck check (max_attempts between 1 and 1000),
  constraint queue_backoff_ck check (backoff >= interval '0' and backoff_max >= backoff),
  constraint queue_bell_ck check (bell in ('auto', 'always', 'off')),
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
  constraint queue_overflow_ck check (overflow in ('reject', 'drop_oldest'))
);

comment on table messages.queue is 'Registry of queues; change it through the queue functions.';
comment on column messages.queue.name is
  '1 to 200 bytes, without a colon, control characters or outer blanks.';
comment on column messages.queue.lock_timeout is
  'How long a claim holds a message unless it is extended.';
comment on column messages.queue.max_attempts is
  'Claims that a message may use up: with 1, a failure or an expired lock archives at once.';
comment on column messages.queue.backoff is
  'Delay before the second attempt; it doubles with every attempt, less up to half at random.';
comment on column messages.queue.backoff_max is 'Upper bound of the delay between attempts.';
comment on column messages.queue.bell is
  'auto: a statement that publishes rings new_message once, unless a busy worker attends; always: '
  'it rings whoever attends; off: workers find messages by polling.';
comment on column messages.queue.paused is
  'A paused queue takes messages but hands none out and rings no bell.';
comment on column messages.queue.retention is
  'How long the archive keeps its messages; from a day on, whole days are removed.';
comment on column messages.queue.retention_dead is
  'The same for those that did not succeed; null: as retention.';
comment on column messages.queue.max_bytes is
  'Most bytes of a message and its headers together, as JSON text.';
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
comment on column messages.queue.payload_type is
  'The type whose values its messages are, each as its text in a JSON string; null: any JSON.';
comment on column messages.queue.payload_schema is
  'The JSON Schema that its messages must satisfy, as text; null: any JSON.';
comment on column messages.queue.durable is
  'Whether its messages outlive a crash of the server; else they are in message_volatile.';

insert into messages.queue (name)
values ('default')
on conflict on constraint queue_name_pk do nothing;

-- Queue grant and flow: who may use a queue, and what is kept for one that has limits or order.

create table if not exists messages.queue_grant (
  queue text not null,
  -- A name and no oid: restored into a server that lacks the role, a grant to it still keeps the
  -- queue from everybody else.
  role text not null,
  granted_at timestamptz not null default clock_timestamp(),
  may_publish boolean not null,
  may_consume boolean not null,
  constraint queue_grant_queue_role_pk primary key (queue, role),
  constraint queue_grant_may_ck check (may_publish or may_consume)
);

comment on table messages.queue_grant is
  'Which roles may use a queue; one without a row here is open to all who may publish or work.';
comment on column messages.queue_grant.queue is 'Name of the queue.';
comment on column messages.queue_grant.role is
  'The role, by its name; what it may, all of its members may.';
comment on column messages.queue_grant.granted_at is 'When it was granted, or last changed.';
comment on column messages.queue_grant.may_publish is 'Whether it may put messages in.';
comment on column messages.queue_grant.may_consume is
  'Whether it may claim, take and settle messages.';

-- Its rows are locks: whoever hands out or publishes what is limited holds one to the end of the
-- transaction. They hardly ever change, so that they are found at once whatever vacuum is held by.
create table if not exists notifyq.flow (
  queue text not null,
  part text not null,
  is_held boolean not null default false,
  held_at timestamptz,
  constraint flow_queue_part_pk primary key (queue, part),
  constraint flow_part_ck check (part in ('claim', 'publish'))
);

comment on table notifyq.flow is
  'One row for each queue with limits and each end of it: taken by one transaction at a time.';
comment on column notifyq.flow.queue is 'Name of the queue.';
comment on column notifyq.flow.part is
  'claim: of those who hand out; publish: of those who fill a queue that has a capacity.';
comment on column notifyq.flow.is_held is
  'Whether something waits for a limit, so that whoever ends a lock rings.';
comment on column notifyq.flow.held_at is 'When that was so last.';

-- In the tables below a change raises the number, and the largest is read: while vacuum is
-- held up old versions gather, and they lie behind the present one.
create table if not exists notifyq.flow_state (
  queue text not null,
  number bigint not null,
  natural_look integer not null default 10000,
  paid_at timestamptz not null default '-infinity',
  counted_at timestamptz not null default '-infinity',
  running bigint[] not null default '{}',
  kept integer not null default 0,
  walk_at timestamptz not null default '-infinity',
  place bigint[],
  round bigint not null default 0,
  had integer not null default 0,
  unlisted integer not null default 0,
  most integer not null default 1000000000,
  charged bigint not null default 0,
  booked bigint not null default 0,
  keys_paid_at timestamptz not null default '-infinity',
  booked_paid_at timestamptz not null default '-infinity',
  after_lane bigint,
  constraint flow_state_queue_number_pk primary key (queue, number)
);

-- Each claim may write it: to compress it would cost more than to write it as it is.
alter table notifyq.flow_state
  alter column running set storage external;

comment on table notifyq.flow_state is 'What the claims of a queue with limits leave to the next.';
comment on column notifyq.flow_state.queue is 'Name of the queue.';
comment on column notifyq.flow_state.number is 'Rises with every change.';
comment on column notifyq.flow_state.natural_look is
  'How many messages to look at in their order before the keys are gone through.';
comment on column notifyq.flow_state.paid_at is 'When the bucket of the rate is full again.';
comment on column notifyq.flow_state.counted_at is 'When all locked messages were counted last.';
comment on column notifyq.flow_state.running is
  'Ids that were handed out; those of them that are locked still are what the limits count.';
comment on column notifyq.flow_state.kept is
  'How many of them were left when those that are locked no more were last taken out.';
comment on column notifyq.flow_state.walk_at is
  'When to look again for messages of a fair queue without a key.';
comment on column notifyq.flow_state.place is
  'The priority and the id behind which to look for messages without a key.';
comment on column notifyq.flow_state.round is
  'How many times all keys of a fair queue have had their share.';
comment on column notifyq.flow_state.had is
  'How much of its share the key of after_lane has had in this round.';
comment on column notifyq.flow_state.unlisted is
  'How many more were handed out, at a time when that was far from the limits.';
comment on column notifyq.flow_state.most is
  'No key has more of running than this; a large number: that is not known.';
comment on column notifyq.flow_state.charged is 'The number of the last row of flow_charge.';
comment on column notifyq.flow_state.booked is
  'The number of the last of them that the buckets of flow_key have paid.';
comment on column notifyq.flow_state.keys_paid_at is
  'No bucket of a key is full again later than this, once all of flow_charge is paid.';
comment on column notifyq.flow_state.booked_paid_at is
  'No bucket in flow_key is full again later than this.';
comment on column notifyq.flow_state.after_lane is
  'The lane (see notifyq.key_hash()) of the key at which the next look begins; null: the first.';

do $$
begin
  if to_regtype('notifyq.flow_pick') is null then
    create type notifyq.flow_pick as (
      ids bigint[],
      state notifyq.flow_state,
      is_blocked boolean
    );
  end if;
end;
$$;
comment on type notifyq.flow_pick is
  'Messages that a claim may have, what the next one goes by, and whether others wait for a lock.';

create table if not exists notifyq.flow_key (
  queue text not null,
  key text not null,
  number bigint not null,
  paid_at timestamptz not null,
  constraint flow_key_queue_key_number_pk primary key (queue, key, number)
);

comment on table notifyq.flow_key is
  'How far a key is ahead of its rate; it goes when it is not.';
comment on column notifyq.flow_key.queue is 'Name of the queue.';
comment on column notifyq.flow_key.key is 'The key of messages.';
comment on column notifyq.flow_key.number is 'Rises with every change.';
comment on column notifyq.flow_key.paid_at is 'When the bucket of the rate is full again.';

create table if not exists notifyq.flow_charge (
  queue text not null,
  number bigint not null,
  charged_at timestamptz not null,
  each double precision not null,
  keys text[] not null,
  tokens integer[] not null,
  constraint flow_charge_queue_number_pk primary key (queue, number)
);

-- Written with each claim, as flow_state.
alter table notifyq.flow_charge
  alter column keys set storage external,
  alter column tokens set storage external;

comment on table notifyq.flow_charge is
  'What keys have had that is not in flow_key yet: one row for each claim well within their rate.';
comment on column notifyq.flow_charge.queue is 'Name of the queue.';
comment on column notifyq.flow_charge.number is
  'Rises with every claim, by the number of its keys.';
comment on column notifyq.flow_charge.charged_at is 'When the messages were handed out.';
comment on column notifyq.flow_charge.each is 'How long a bucket took for one token, in seconds.';
comment on column notifyq.flow_charge.keys is 'Keys of these messages.';
comment on column notifyq.flow_charge.tokens is 'How many messages of each of them.';

create table if not exists notifyq.flow_room (
  queue text not null,
  number bigint not null,
  room bigint not null,
  constraint flow_room_queue_number_pk primary key (queue, number)
);

comment on table notifyq.flow_room is
  'How many messages may surely be published before those that are there are counted again.';

comment on column notifyq.flow_room.queue is 'Name of the queue.';
comment on column notifyq.flow_room.number is 'Rises with every change.';
comment on column notifyq.flow_room.room is
  'Messages; what was promised to a transaction is taken off already.';

create table if not exists messages.share (
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

-- The first column is notifyq.key_hash(), which who inserts need not have the right to call.
-- Messages without a key are in neither.
create index if not exists message_key_waiting_idx
  on messages.message (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1),
    priority desc, id
  )
  where state = 'waiting' and key is not null;
create index if not exists message_key_idx
  on messages.message (
    (hashtextextended(queue, 0) << 40 | (hashtextextended(key, 0) & 1099511627775) | 1), id
  )
  where key is not null;
