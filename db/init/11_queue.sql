-- Queue: the registry of queues and the policy of each.
--
-- owns:    messages.queue
-- writes:  messages.queue (the queue `default`)
-- raises:  nothing

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
