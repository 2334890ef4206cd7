-- Change: cancel and amend live messages, and end those that nobody claimed in time.
--
-- raises: NQ003 invalid argument, NQ008 over a limit, NQ030 payload against the schema

-- What messages have published by steps: live ones, and ones that may have ended.
create or replace function notifyq.children_of(live bigint[], ended bigint[])
  returns bigint[] language plpgsql stable
  set enable_seqscan = off set jit = off
as $$
begin
  return array(
    select s.child_id
    from notifyq.step as s
    where s.message_id = any (live)
      and s.child_id is not null
    union
    select s.child_id
    from notifyq.step_archive as s
    where s.message_id = any (ended)
      and s.child_id is not null
  );
end;
$$;

-- Lock messages with all that they and their children have published by steps. Parked ones come
-- last: a message that ends locks its own row first, and then those of messages that wait for it.
create or replace function notifyq.lock_families(ids bigint[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_level bigint[] := ids;
  v_all bigint[] := ids;
begin
  while v_level <> '{}' loop
    v_level := array(
      select unnest(notifyq.children_of(v_level, v_level)) except select unnest(v_all)
    );
    v_all := v_all || v_level;
  end loop;
  perform
  from messages.message as m
  where m.id = any (v_all)
  order by m.parked_at is not null, m.id
  for update;
end;
$$;

-- Returns how many of the messages are cancelled, children not counted.
create or replace function notifyq.cancel_all(
  ids bigint[], running boolean, children boolean, reason text, cancelled_by text
)
  returns bigint language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_level bigint[] := ids;
  v_seen bigint[] := ids;
  v_found messages.message[];
  v_next bigint[];
  v_cancelled bigint;
begin
  perform notifyq.check_given('running', running is not null);
  perform notifyq.check_given('children', children is not null);
  if running and children then
    perform notifyq.lock_families(ids);
  end if;
  while v_level <> '{}' loop
    -- A message that is locked here can publish no more children. A worker that is about to claim
    -- it is not waited for, unless it shall be stopped.
    if running then
      perform from messages.message as m where m.id = any (v_level) order by m.id for update;
    end if;
    v_found := array(
      select m
      from messages.message as m
      where m.id = any (v_level)
        and (cancel_all.running or m.state <> 'locked')
      order by m.id
      for update skip locked
    );
    v_cancelled := coalesce(v_cancelled, cardinality(v_found));
    exit when v_cancelled = 0;
    v_next := '{}';
    if children then
      v_next := notifyq.children_of(array(select f.id from unnest(v_found) as f), v_level);
    end if;
    perform notifyq.reject_all(
      v_found, concat_ws(': ', 'cancelled', cancel_all.reason),
      coalesce(cancel_all.cancelled_by, session_user)
    );
    perform notifyq.notify_id('cancelled_message', f.id)
    from unnest(v_found) as f
    where f.state = 'locked';
    -- A step may name any message, also one that has led here.
    v_level := array(select unnest(v_next) except select unnest(v_seen));
    v_seen := v_seen || v_level;
  end loop;
  return coalesce(v_cancelled, 0);
end;
$$;

create or replace function messages.cancel(
  id bigint,
  running boolean default false,
  children boolean default false,
  reason text default null,
  cancelled_by text default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return notifyq.cancel_all(array[id], running, children, reason, cancelled_by) > 0;
end;
$$;
comment on function messages.cancel is
  'Archive a live message as rejected, with the details `cancelled` and the reason. cancelled_by: '
  'who cancels it; null: the user of the session. A cancelled message is not dead: dead_list() '
  'leaves it out, no dead_message is sent, and dead_retry() publishes it again by its id. '
  'running: also one that a worker has locked; its worker is notified on cancelled_message, and '
  'its next call with that lock is refused. children: also what the message and its children have '
  'published by steps; without running, children that are locked go on, with their own. False: '
  'the message is locked by a worker, finished or unknown; nothing changed.';

create or replace function messages.amend(
  id bigint,
  message jsonb default null,
  priority integer default null,
  available_at timestamptz default null,
  headers jsonb default null
)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
  v_message messages.message;
  v_queue messages.queue;
begin
  if num_nonnulls(amend.message, amend.priority, amend.available_at, amend.headers) = 0 then
    perform notifyq.raise_invalid('give message, priority, available_at or headers');
  end if;
  select m.* into v_message
  from messages.message as m
  where m.id = amend.id
    and m.state <> 'locked'
  for update skip locked;
  if not found then
    return false;
  end if;
  if notifyq.has_steps(v_message)
    and num_nonnulls(amend.message, amend.available_at, amend.headers) > 0
  then
    perform notifyq.raise_invalid(
      format('message %s has recorded steps: only its priority can be changed', amend.id)
    );
  end if;
  if v_message.blockers is not null and amend.available_at is not null then
    perform notifyq.raise_invalid(
      format('message %s waits for other messages, so its available_at cannot be set', amend.id),
      'messages.unblock() ends that'
    );
  end if;
  select q.* into v_queue from messages.queue as q where q.name = v_message.queue;
  if amend.message is not null then
    perform notifyq.check_payload(
      v_queue.name, v_queue.payload_type, v_queue.payload_schema::jsonb, v_queue.encrypted,
      amend.message
    );
  end if;
  -- The triggers check headers and limits, and make it scheduled if it is not due.
  update messages.message as m
  set message = coalesce(amend.message, m.message),
    headers = coalesce(amend.headers, m.headers),
    priority = coalesce(amend.priority, m.priority),
    available_at = coalesce(amend.available_at, m.available_at),
    state = case when amend.available_at is null then m.state else 'waiting' end
  where m.id = amend.id;
  if amend.available_at < now() + interval '1 minute' then
    perform notifyq.notify_queue(v_queue, amend.id::text);
  end if;
  return true;
end;
$$;
comment on function messages.amend is
  'Change a message that no worker has locked: its payload, priority, headers and when it is '
  'available; null: as before. One with recorded steps can change its priority only. False: it is '
  'locked, finished or unknown; nothing changed. Raises NQ003 for a message that cannot be changed '
  'like that, NQ008 for one that becomes too large, NQ030 for a payload against the schema.';

-- Archive messages that were not claimed before they expired, for maintenance.
create or replace function notifyq.expire(quantity integer)
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_ids bigint[] := array(
    select e.message_id
    from notifyq.expiry as e
    where e.expires_at <= v_now
    order by e.expires_at
    limit quantity
    for update skip locked
  );
  v_free messages.message[] := array(
    select m
    from messages.message as m
    where m.id = any (v_ids)
    order by m.id
    for update skip locked
  );
begin
  perform notifyq.reject_all(
    array(select f from unnest(v_free) as f where f.lock_token = 0), 'expired'
  );
  -- One that another transaction is about to claim may still come back unclaimed.
  delete from notifyq.expiry as e
  where e.message_id = any (v_ids)
    and not exists (
      select from messages.message as m
      where m.id = e.message_id and m.lock_token = 0
      offset 0
    );
end;
$$;

-- Archive those that have expired, for a claim, which then sees none of them. While an old snapshot
-- keeps deleted rows in the index, each claim would pass all of them: so it begins a minute before
-- the last look of its session that found none (notifyq.expired has that in ms since 1970).
-- Maintenance begins at the first one: it also finds what a longer transaction publishes when that
-- has expired already.
create or replace function notifyq.expire_due()
  returns void language plpgsql
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_seen timestamptz := coalesce(
    to_timestamp(nullif(current_setting('notifyq.expired', true), '')::bigint / 1000), '-infinity'
  );
  v_first timestamptz := (
    select e.expires_at
    from notifyq.expiry as e
    where e.expires_at >= v_seen
    order by e.expires_at
    limit 1
  );
begin
  if v_first <= v_now then
    perform notifyq.expire(10000);
  elsif v_seen < v_now - interval '2 minutes' then
    perform set_config(
      'notifyq.expired', notifyq.epoch_ms(v_now - interval '1 minute')::text, false
    );
  end if;
end;
$$;

-- The instant until which messages must be claimed; raises for one before they are due.
create or replace function notifyq.expires_at(expires_in interval, due timestamptz)
  returns timestamptz language plpgsql
as $$
begin
  perform notifyq.check_positive('expires_in', expires_in);
  if due >= now() + expires_in then
    perform notifyq.raise_invalid(
      'the message would expire before it is available', 'give a longer expires_in'
    );
  end if;
  return now() + expires_in;
end;
$$;
