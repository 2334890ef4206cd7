-- Admin: create, alter, pause and drop queues.
--
-- raises: NQ003 invalid argument, NQ009 open transactions, NQ001 queue not found, NQ005 queue not
-- empty, NQ007 no right to the queue

-- One change of a queue at a time: triggers that two calls rebuild would name the queues of one of
-- them only, and two that have both read a queue could not lock the other out.
create or replace function notifyq.await_queue_changes()
  returns void language plpgsql
  set lock_timeout = '5s'
as $$
begin
  lock table notifyq.limit_turn in share update exclusive mode;
exception
  when lock_not_available then
    perform notifyq.raise_busy('create, alter or drop a queue');
end;
$$;

create or replace function messages.create_queue(
  name text,
  lock_duration interval default interval '1 minute',
  max_attempts integer default 1,
  backoff interval default interval '2 seconds',
  backoff_max interval default null,
  notify text default 'auto',
  retention interval default null,
  max_bytes integer default 1048576,
  concurrency integer default null,
  key_concurrency integer default null,
  rate integer default null,
  rate_period interval default null,
  rate_burst integer default null,
  key_rate integer default null,
  key_rate_period interval default null,
  key_rate_burst integer default null,
  ordered boolean default null,
  fair boolean default null,
  capacity integer default null,
  overflow text default null,
  durable boolean default null,
  payload_type regtype default null,
  payload_schema jsonb default null,
  retention_dead interval default null,
  aging interval default null,
  encrypted boolean default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_queue messages.queue;
begin
  if name is null then
    perform notifyq.raise_invalid('the name of a queue must not be null');
  end if;
  v_queue := notifyq.set_options(notifyq.default_queue(name), (
    select to_jsonb(o)
    from (
      select lock_duration, max_attempts, backoff,
        coalesce(backoff_max, greatest(backoff, interval '5 minutes')) as backoff_max, notify,
        retention, retention_dead, max_bytes, concurrency, key_concurrency, rate, rate_period,
        rate_burst, key_rate, key_rate_period, key_rate_burst, ordered, fair, capacity, overflow,
        durable, coalesce(notifyq.type_name(payload_type), payload_type::text) as payload_type,
        payload_schema::text as payload_schema, aging, encrypted
    ) as o
  ));
  perform notifyq.await_queue_changes();
  insert into messages.queue (name) values (v_queue.name)
  on conflict on constraint queue_name_pk do nothing;
  if not found then
    return false;
  end if;
  -- After the insert, which has waited for a transaction that creates a stream of this name.
  if exists (select from messages.stream as s where s.name = v_queue.name) then
    perform notifyq.raise_invalid(
      format('%L is a stream', v_queue.name), 'take another name, or drop the stream'
    );
  end if;
  perform notifyq.save_options(v_queue);
  return true;
end;
$$;
comment on function messages.create_queue is
  'Create a queue; null means the default. False: it existed, and nothing changed. lock_duration: '
  'how long a claim locks a message. max_attempts: how often a message may be claimed. backoff: '
  'delay before the second attempt, doubling up to backoff_max. notify: auto, always or off. '
  'retention: how long the archive keeps its messages; retention_dead: those that did not '
  'succeed. max_bytes: maximum size of a message and its headers, as JSON text. concurrency: '
  'maximum of locked messages, key_concurrency: of one key. rate: maximum of messages claimed in '
  'each rate_period, rate_burst: at once (null: those of a tenth of a second); key_rate, '
  'key_rate_period, key_rate_burst: of one key. ordered: a message waits until all earlier ones '
  'of its key are archived. fair: keys have equal shares, or those of set_share(). capacity: '
  'maximum of waiting and scheduled messages; overflow: beyond it, reject makes publishing fail '
  'and drop_oldest archives the oldest as rejected. Null is no limit. durable => false: a crash '
  'of the server loses the messages; those that succeed or are dropped are counted, not archived. '
  'payload_type: messages are values of it, see enqueue(); payload_schema: they satisfy this JSON '
  'Schema. aging: a waiting message gains one level of priority in this time, and parts of a level '
  'in parts of it; not with limits, order or shares. encrypted: programs encrypt payloads, '
  'results, errors, steps and output, and the database refuses plaintext; not with a type or '
  'schema. Raises NQ009 if a transaction that changes a '
  'queue stays open for 5 seconds, or, with aging, one that publishes or claims for 2 seconds.';

create or replace function messages.alter_queue(
  name text,
  lock_duration interval default null,
  max_attempts integer default null,
  backoff interval default null,
  backoff_max interval default null,
  notify text default null,
  retention interval default null,
  max_bytes integer default null,
  concurrency integer default null,
  key_concurrency integer default null,
  rate integer default null,
  rate_period interval default null,
  rate_burst integer default null,
  key_rate integer default null,
  key_rate_period interval default null,
  key_rate_burst integer default null,
  ordered boolean default null,
  fair boolean default null,
  capacity integer default null,
  overflow text default null,
  durable boolean default null,
  payload_type regtype default null,
  payload_schema jsonb default null,
  retention_dead interval default null,
  aging interval default null,
  encrypted boolean default null
)
  returns messages.queue language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_old messages.queue;
  v_queue messages.queue;
begin
  perform notifyq.await_queue_changes();
  v_old := notifyq.find_queue(name);
  v_queue := notifyq.set_options(v_old, (
    select to_jsonb(o)
    from (
      select lock_duration, max_attempts, backoff, backoff_max, notify, retention, retention_dead,
        max_bytes, concurrency, key_concurrency, rate, rate_period, rate_burst, key_rate,
        key_rate_period, key_rate_burst, ordered, fair, capacity, overflow, durable,
        coalesce(notifyq.type_name(payload_type), payload_type::text) as payload_type,
        payload_schema::text as payload_schema, aging, encrypted
    ) as o
  ));
  if v_old.concurrency is null and v_queue.concurrency is not null
    or v_old.key_concurrency is null and v_queue.key_concurrency is not null
    or v_queue.ordered and not v_old.ordered
  then
    perform notifyq.await_claims(v_queue.name);
  end if;
  v_queue := notifyq.save_options(v_queue);
  if (v_queue.durable, v_queue.encrypted) <> (v_old.durable, v_old.encrypted) then
    perform notifyq.check_moved(v_queue.name);
  end if;
  if v_queue.encrypted and not v_old.encrypted then
    perform notifyq.check_sources(v_queue.name);
  end if;
  return v_queue;
end;
$$;
comment on function messages.alter_queue is
  'Change options of a queue, see create_queue(), and return it. Null leaves an option as it is; 0 '
  'removes a limit, retention_dead or aging, the type - and the schema {} remove theirs. Live '
  'messages follow the new options from their next claim or settlement on, but for a type or '
  'schema; the archive follows a retention soon. Raises NQ001 for an unknown queue, NQ003 if '
  'encrypted would be set and it has schedules or forwards, NQ005 if durable or encrypted would '
  'change and it has messages, and NQ009 if transactions that publish or claim stay open while it '
  'gets, loses or changes aging, gets or loses a capacity, a type, a schema, durability or '
  'encryption, or gets a concurrency or an order, or if one that changes a queue stays open for 5 '
  'seconds.';

-- Wait for drop_queue(), as a publisher that finds the advisory key taken. Any role of the database
-- can take that key; a real drop deletes the row, which only the owner can lock.
create or replace function notifyq.await_drop(queue text)
  returns void language plpgsql
as $$
begin
  perform notifyq.check_access(queue, 'publish into');
  perform from messages.queue as q where q.name = await_drop.queue for key share;
end;
$$;

create or replace function messages.drop_queue(name text, force boolean default false)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set lock_timeout = '5s'
as $$
declare
  v_queue messages.queue;
  v_dropped bigint;
  v_ended bigint;
  v_awaited bigint[];
begin
  perform notifyq.check_given('force', drop_queue.force is not null);
  perform notifyq.await_queue_changes();
  -- Then these: a transaction that fires a schedule locks its row while it publishes.
  perform from messages.schedule as s where s.queue = drop_queue.name order by s.name for update;
  delete from messages.schedule as s where s.queue = drop_queue.name;
  -- Wait for open transactions that have published into this queue, see check_inserted().
  perform pg_advisory_xact_lock(notifyq.publishing_key(name));
  -- And for publishers that found the key taken.
  perform from messages.queue as q where q.name = drop_queue.name for update;
  v_queue := notifyq.find_queue(name);
  if not force and exists (select from messages.message as m where m.queue = v_queue.name) then
    raise exception using
      errcode = 'NQ005',
      message = format('queue %L still has messages', v_queue.name),
      hint = 'finish or cancel them, or delete them with force => true';
  end if;
  -- In the order of lock_families().
  perform
  from messages.message as m
  where m.queue = v_queue.name
  order by m.parked_at is not null, m.id
  for update;
  if exists (select from notifyq.dependency) then
    v_awaited := array(
      select m.id from messages.message as m
      where m.queue = v_queue.name
        and exists (
          select from notifyq.dependency as d where d.after_id = m.id and d.status is null
        )
      order by m.id
    );
  end if;
  -- What others wait for, or has recorded steps, ends as a message; the rest is only deleted.
  select coalesce(sum(g.ended), 0)::bigint into v_ended
  from (
    select m.state, array_agg(m.id) as ids, array_agg(m.lock_token) as tokens
    from messages.message as m
    where m.queue = v_queue.name
      and (m.awaited or m.root_id is not null)
    group by m.state
  ) as s
  cross join lateral (
    select count(*) as ended
    from notifyq.archive(
      s.ids, s.tokens,
      array_fill('rejected'::messages.message_status, array[cardinality(s.ids)]),
      array_fill('its queue was dropped'::text, array[cardinality(s.ids)]),
      state => s.state
    )
  ) as g;
  delete from messages.message as m where m.queue = v_queue.name;
  get diagnostics v_dropped = row_count;
  v_dropped := v_dropped + v_ended;
  if v_awaited <> '{}' then
    -- For messages in other queues that wait for them.
    perform notifyq.resolve_dependencies(
      v_awaited, array_fill('rejected'::messages.message_status, array[cardinality(v_awaited)])
    );
  end if;
  delete from notifyq.dedup as d where d.queue = v_queue.name;
  delete from messages.queue_grant as g where g.queue = v_queue.name;
  delete from messages.read_grant as g where g.queue = v_queue.name;
  delete from notifyq.limit_turn as f where f.queue = v_queue.name;
  delete from notifyq.limit_state as s where s.queue = v_queue.name;
  delete from notifyq.limit_key as k where k.queue = v_queue.name;
  delete from notifyq.limit_charge as c where c.queue = v_queue.name;
  delete from notifyq.limit_room as r where r.queue = v_queue.name;
  delete from messages.share as s where s.queue = v_queue.name;
  delete from messages.queue_limit as l where l.queue = v_queue.name;
  delete from messages.queue as q where q.name = v_queue.name;
  delete from notifyq.unlogged_room as r where r.queue = v_queue.name;
  delete from notifyq.unlogged_count as c where c.queue = v_queue.name;
  perform notifyq.rebuild_queue_triggers();
  return v_dropped;
exception
  when lock_not_available then
    perform notifyq.raise_busy(format('use queue %L', drop_queue.name));
    return null;
end;
$$;
comment on function messages.drop_queue is
  'Drop a queue, its grants and schedules, and return how many live messages were deleted. A '
  'queue with messages is dropped with force only, else NQ005. Archived messages stay. Raises '
  'NQ001 for an unknown queue, and NQ009 if transactions that have published into it or claimed '
  'from it, or change a queue, stay open for 5 seconds.';

create or replace function notifyq.set_paused(name text, is_paused boolean, until timestamptz)
  returns boolean language plpgsql
as $$
declare
  v_queue messages.queue := notifyq.find_queue(name);
begin
  update messages.queue as q
  set paused = is_paused, resumes_at = until
  where q.name = v_queue.name
    and (notifyq.is_paused(q), q.resumes_at) is distinct from (is_paused, until)
  returning * into v_queue;
  if not found then
    return false;
  end if;
  perform notifyq.notify_waiting(v_queue);
  return true;
end;
$$;

-- Claims have noticed the end of these pauses already. Rows that are locked are left to the next
-- call.
create or replace function notifyq.end_pauses()
  returns void language plpgsql
as $$
begin
  update messages.queue as q
  set paused = false, resumes_at = null
  where q.name in (
    select p.name
    from messages.queue as p
    where p.resumes_at <= clock_timestamp()
    for update skip locked
  );
end;
$$;

create or replace function messages.pause_queue(name text, until timestamptz default null)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_instant('until', nullif(until, 'infinity'));
  if until <= clock_timestamp() then
    perform notifyq.raise_invalid(
      format('until must be in the future, not %s', until),
      'null pauses the queue until resume_queue()'
    );
  end if;
  return notifyq.set_paused(name, true, nullif(until, 'infinity'));
end;
$$;
comment on function messages.pause_queue is
  'Stop handing out messages of a queue, until an instant (null: until resume_queue()); publishing '
  'goes on. A queue that is paused already gets the new instant. False: nothing changed. Raises '
  'NQ001 for an unknown queue, and NQ003 for an instant that is over.';

create or replace function messages.resume_queue(name text)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return notifyq.set_paused(name, false, null);
end;
$$;
comment on function messages.resume_queue is
  'Hand out messages of a paused queue again. False: it was not paused.';
