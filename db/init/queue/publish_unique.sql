-- Unique: deduplication keys, and what a duplicate does.
--
-- raises: NQ003 invalid argument, NQ007 no right to the queue, NQ008 over a limit, NQ001 queue not
-- found, NQ002 message not found

-- A message has its key while it is live, or with scope waiting until it is claimed: the claim
-- itself takes the key from it for good, so whatever its worker does afterwards cannot collide.
--
-- Whoever publishes a key that another transaction publishes, or whose message it ends, waits for
-- its end; keys are taken in their order, so that two that publish the same ones never wait for
-- each other.

-- The scope as it is kept in a message: null for live.
create or replace function notifyq.check_unique(
  dedup_keys text[],
  dedup_scope text,
  dedup_window interval,
  on_duplicate text,
  is_delayed boolean
)
  returns text
  language plpgsql
as $$
begin
  if (on_duplicate in ('keep', 'replace', 'debounce')) is not true then
    perform notifyq.raise_invalid(
      format(
        'on_duplicate must be keep, replace or debounce, not %s', coalesce(on_duplicate, 'null')
      )
    );
  end if;
  if dedup_scope not in ('live', 'waiting') then
    perform notifyq.raise_invalid(
      format('dedup_scope must be live or waiting, not %s', dedup_scope)
    );
  end if;
  if dedup_keys is null then
    if dedup_scope is not null or dedup_window is not null or on_duplicate <> 'keep' then
      perform notifyq.raise_invalid(
        'dedup_scope, dedup_window and on_duplicate need a dedup_key',
        'say what makes two messages the same'
      );
    end if;
    return null;
  end if;
  perform notifyq.check_positive('dedup_window', dedup_window);
  if on_duplicate = 'replace' and dedup_window is not null then
    perform notifyq.raise_invalid(
      'dedup_window does not go with replace: a finished message cannot become the newer one',
      'keep drops the newer message within the window, debounce puts off one that waits'
    );
  end if;
  if on_duplicate = 'debounce' and not is_delayed then
    perform notifyq.raise_invalid(
      'debounce needs a delay: how long it must be quiet before the message is due'
    );
  end if;
  -- The newer message is what counts for the other two, and a worker has read the older one.
  return nullif(
    coalesce(dedup_scope, case on_duplicate when 'keep' then 'live' else 'waiting' end), 'live'
  );
end;
$$;

-- Take keys for the time of a window: null for each that is ours now, as id, else the message that
-- has it. Each key is given once.
create or replace function notifyq.take_keys(
  queue text,
  dedup_keys text[],
  ids bigint[],
  dedup_window interval
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_holders bigint[];
begin
  if exists (
    select from unnest(dedup_keys) as u (dedup_key) where octet_length(u.dedup_key) > 1000
  ) then
    raise exception using
      errcode = 'NQ008',
      message = 'dedup_key has more than 1000 bytes',
      hint = 'publish a digest of what is long';
  end if;
  -- A key that was there may be removed before the look below, as its time is over: try again.
  loop
    insert into notifyq.dedup as d (queue, dedup_key, id, expires_at)
    select take_keys.queue, u.dedup_key, u.id, v_now + take_keys.dedup_window
    from unnest(take_keys.dedup_keys, take_keys.ids) as u (dedup_key, id)
    where u.dedup_key is not null
    order by u.dedup_key
    on conflict on constraint dedup_queue_dedup_key_pk do update
    set id = excluded.id,
      expires_at = excluded.expires_at
    where d.expires_at <= v_now;
    v_holders := array(
      select case when u.dedup_key is null then u.id else (
        select d.id from notifyq.dedup as d
        where d.queue = take_keys.queue
          and d.dedup_key = u.dedup_key
      ) end
      from unnest(take_keys.dedup_keys, take_keys.ids) with ordinality
        as u (dedup_key, id, position)
      order by u.position
    );
    exit when array_position(v_holders, null) is null;
  end loop;
  return array(
    select nullif(h.holder, h.id)
    from unnest(v_holders, take_keys.ids) with ordinality as h (holder, id, position)
    order by h.position
  );
end;
$$;

-- Make a message the newer one; null: it has given up its key, and another may be published.
create or replace function notifyq.renew_message(
  id bigint,
  newer messages.message,
  payload jsonb,
  on_duplicate text,
  dedup_window interval
)
  returns bigint
  language plpgsql
  set enable_seqscan = off
as $$
declare
  v_state messages.message_state;
  v_queue messages.queue;
begin
  update messages.message as m
  set message = renew_message.payload,
    headers = newer.headers,
    type = newer.type,
    priority = newer.priority,
    -- A message that waits for others is due by them.
    available_at = case
      when on_duplicate = 'debounce' and m.blockers is null
      then least(newer.available_at, m.created_at + dedup_window)
      else m.available_at end,
    -- The trigger `schedule` makes it scheduled where it is not due.
    state = case when on_duplicate = 'debounce' then 'waiting' else m.state end
  where m.id = renew_message.id
    and m.state <> 'locked'
    and m.dedup_key is not null
  returning m.state into v_state;
  if not found then
    -- Locked by a worker, and unique while it is live.
    return (
      select m.id from messages.message as m where m.id = renew_message.id and m.dedup_scope is null
    );
  end if;
  if on_duplicate = 'debounce' and v_state = 'waiting' then
    select q.* into v_queue from messages.queue as q where q.name = newer.queue;
    perform notifyq.notify_queue(v_queue, id::text);
  end if;
  return id;
end;
$$;

create or replace function notifyq.forget_keys(quantity bigint)
  returns integer
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_forgotten integer;
begin
  delete from notifyq.dedup as d
  where d.ctid = any (array(
    select e.ctid
    from notifyq.dedup as e
    where e.expires_at <= v_now
    order by e.expires_at
    limit forget_keys.quantity
    for update skip locked
  ));
  get diagnostics v_forgotten = row_count;
  return v_forgotten;
end;
$$;

-- Publish all: what publish() and publish_many() do where a message may be there already.

-- What messages have in common that are published together.
create or replace function notifyq.message_template(
  queue text,
  priority integer,
  due timestamptz,
  type text,
  headers jsonb,
  max_attempts integer,
  dedup_scope text
)
  returns messages.message
  language plpgsql
  immutable
as $$
declare
  v_template messages.message;
begin
  v_template.queue := queue;
  v_template.priority := coalesce(priority, 0);
  v_template.available_at := due;
  v_template.type := type;
  v_template.headers := coalesce(headers, '{}');
  v_template.max_attempts := max_attempts;
  v_template.dedup_scope := dedup_scope;
  return v_template;
end;
$$;

-- Publish messages that may be there already; return the ids of those that stand, in order.
create or replace function notifyq.publish_all(
  template messages.message,
  payloads jsonb[],
  keys text[],
  dedup_keys text[],
  dedup_window interval,
  on_duplicate text,
  after bigint[],
  on_failure text,
  due timestamptz,
  delay interval
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_queue messages.queue;
  v_sequence regclass := pg_get_serial_sequence('messages.message', 'id')::regclass;
  v_new bigint[];
  v_leads boolean[];
  v_ids bigint[];
  v_each record;
  v_after bigint[];
  v_ended notifyq.dependency[];
begin
  v_queue := notifyq.find_queue(template.queue);
  -- The trigger `admit` does not see a message that is there already.
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(template.queue, 'publish into');
  end if;
  if cardinality(after) > 0 then
    if on_duplicate = 'debounce' then
      perform notifyq.raise_invalid('debounce and after exclude each other');
    end if;
    if not v_queue.durable then
      perform notifyq.raise_invalid('messages of a queue that is not durable wait for no others');
    end if;
    v_ended := notifyq.predecessors(after, on_failure);
    v_after := array(
      select u.id from unnest(after) with ordinality as u (id, position)
      group by u.id
      order by min(u.position)
    );
    template.blockers := cardinality(v_after);
    template.available_at := 'infinity';
  end if;
  -- Ids in the order of the array, but rows in the order of the keys: whoever publishes a key waits
  -- for another that does, and two that take the same keys in another order wait for ever.
  -- The number of the transaction comes before its ids, see queue/find.sql.
  perform pg_current_xact_id();
  v_new := array(select nextval(v_sequence) from generate_series(1, cardinality(payloads)));
  -- Of several with one key only one is published: the first, or else the newest.
  v_leads := array(
    select p.dedup_key is null or p.position = case on_duplicate
      when 'keep' then min(p.position) over same else max(p.position) over same end
    from unnest(dedup_keys, v_new) with ordinality as p (dedup_key, new, position)
    window same as (partition by p.dedup_key)
    order by p.position
  );
  if dedup_window is not null and on_duplicate = 'keep' then
    v_ids := notifyq.take_keys(
      template.queue,
      array(
        select case when p.leads then p.dedup_key end
        from unnest(dedup_keys, v_leads) with ordinality as p (dedup_key, leads, position)
        order by p.position
      ),
      v_new, dedup_window
    );
  end if;
  -- A message that was there may be finished, and its key free, before the look below: try again.
  loop
    insert into messages.message (
      id, queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts,
      dedup_scope, blockers
    )
    overriding system value
    select
      p.new, template.queue, p.payload, template.priority, template.available_at, template.type,
      template.headers, p.dedup_key, p.key, template.max_attempts, template.dedup_scope,
      template.blockers
    from unnest(v_new, payloads, dedup_keys, keys, v_ids, v_leads)
      as p (new, payload, dedup_key, key, id, leads)
    where p.id is null
      and p.leads
    order by p.dedup_key, p.new
    on conflict (queue, dedup_key) where dedup_key is not null do nothing;
    v_ids := array(
      select case
        when p.id is not null or not p.leads then p.id
        when p.dedup_key is null then p.new
        else (
          select m.id
          from messages.message as m
          where m.queue = template.queue
            and m.dedup_key = p.dedup_key
        )
      end
      from unnest(v_new, dedup_keys, v_ids, v_leads) with ordinality
        as p (new, dedup_key, id, leads, position)
      order by p.position
    );
    if on_duplicate <> 'keep' then
      for v_each in
        select p.id, p.payload, p.position
        from unnest(v_ids, v_new, payloads, dedup_keys) with ordinality
          as p (id, new, payload, dedup_key, position)
        where p.id <> p.new
        order by p.dedup_key
      loop
        v_ids[v_each.position] := notifyq.renew_message(
          v_each.id, template, v_each.payload, on_duplicate, dedup_window
        );
      end loop;
    end if;
    exit when not exists (
      select from unnest(v_ids, v_leads) as p (id, leads) where p.id is null and p.leads
    );
  end loop;
  if dedup_window is not null and on_duplicate = 'keep' then
    -- One that stood already has no window of this publication's.
    delete from notifyq.dedup as d
    where d.queue = template.queue
      and (d.dedup_key, d.id) in (
        select p.dedup_key, p.new
        from unnest(dedup_keys, v_new, v_ids, v_leads) as p (dedup_key, new, id, leads)
        where p.id <> p.new and p.leads
      );
  end if;
  if v_after is not null then
    perform notifyq.add_dependencies(
      array(select u.id from unnest(v_ids, v_new) as u (id, new) where u.id = u.new),
      v_after, on_failure, due, delay, v_ended
    );
  end if;
  return array(
    select case when p.dedup_key is null then p.id else max(p.id) over same end
    from unnest(v_ids, dedup_keys) with ordinality as p (id, dedup_key, position)
    window same as (partition by p.dedup_key)
    order by p.position
  );
end;
$$;
