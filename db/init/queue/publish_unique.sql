-- Publish unique: deduplication keys, and what a duplicate does.
--
-- raises: NQ003 invalid argument, NQ007 no right to the queue, NQ008 over a limit, NQ001 queue not
-- found, NQ002 message not found

-- A message has its key while it is live or, with scope waiting, until it is claimed: the claim
-- removes the key for good, and nothing that the worker does later can collide.
--
-- A publisher of a key waits for other transactions that publish it or finish its message. Keys are
-- published in order: two publishers of the same keys cannot deadlock.

-- Check the options; return the scope as a message has it, null for live.
create or replace function notifyq.check_unique(
  dedup_keys text[], dedup_scope text, dedup_window interval, on_duplicate text, is_delayed boolean
)
  returns text language plpgsql
as $$
begin
  perform notifyq.check_given('on_duplicate', on_duplicate is not null),
    notifyq.check_choice('on_duplicate', on_duplicate, '{keep,replace,debounce}'),
    notifyq.check_choice('dedup_scope', dedup_scope, '{live,waiting}');
  if dedup_keys is null then
    if dedup_scope is not null or dedup_window is not null or on_duplicate <> 'keep' then
      perform notifyq.raise_invalid(
        'dedup_scope, dedup_window and on_duplicate need a dedup_key',
        'give a dedup_key, equal for messages that are the same'
      );
    end if;
    return null;
  end if;
  perform notifyq.check_positive('dedup_window', dedup_window);
  if on_duplicate = 'replace' and dedup_window is not null then
    perform notifyq.raise_invalid(
      'dedup_window does not go with replace: a finished message cannot become the newer one',
      'keep drops the newer message within the window, debounce delays a waiting one'
    );
  end if;
  if on_duplicate = 'debounce' and not is_delayed then
    perform notifyq.raise_invalid(
      'debounce needs a delay: the time without duplicates after which the message is due'
    );
  end if;
  -- With replace and debounce the newer message counts, and a worker has read the older one.
  return nullif(
    coalesce(dedup_scope, case on_duplicate when 'keep' then 'live' else 'waiting' end), 'live'
  );
end;
$$;

-- Reserve keys for a window. Returns for each key null if it is reserved now, for id, else the
-- message that has it. No key may be given twice.
create or replace function notifyq.reserve_keys(
  queue text, dedup_keys text[], ids bigint[], dedup_window interval
)
  returns bigint[] language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
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
  -- An existing key may expire and be deleted before the query below: try again.
  loop
    insert into notifyq.dedup as d (queue, dedup_key, id, expires_at)
    select reserve_keys.queue, u.dedup_key, u.id, v_now + reserve_keys.dedup_window
    from unnest(reserve_keys.dedup_keys, reserve_keys.ids) as u (dedup_key, id)
    where u.dedup_key is not null
    order by u.dedup_key
    on conflict on constraint dedup_queue_dedup_key_pk do update
    set id = excluded.id,
      expires_at = excluded.expires_at
    where d.expires_at <= v_now;
    v_holders := array(
      select case when u.dedup_key is null then u.id else (
        select d.id from notifyq.dedup as d
        where d.queue = reserve_keys.queue
          and d.dedup_key = u.dedup_key
      ) end
      from unnest(reserve_keys.dedup_keys, reserve_keys.ids) as u (dedup_key, id)
    );
    exit when array_position(v_holders, null) is null;
  end loop;
  return array(
    select nullif(h.holder, h.id) from unnest(v_holders, reserve_keys.ids) as h (holder, id)
  );
end;
$$;

-- The result of publish() is an id and nothing else. Duplicates are noted beside it, in a setting
-- that ends with the transaction. New messages need no note: no id is given twice.
create or replace function notifyq.note_duplicates(ids bigint[])
  returns void language plpgsql
as $$
begin
  if ids <> '{}' then
    perform set_config('notifyq.duplicates', ',' || array_to_string(ids, ',') || ',', true);
  end if;
end;
$$;

create or replace function notifyq.noted_duplicates()
  returns bigint[] language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return string_to_array(
    btrim(nullif(current_setting('notifyq.duplicates', true), ''), ','), ','
  )::bigint[];
end;
$$;
comment on function notifyq.noted_duplicates is
  'The ids for which messages.is_duplicate() is true, to look many up at once. Null: none.';

create or replace function messages.is_duplicate(id bigint)
  returns boolean language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce(
    strpos(current_setting('notifyq.duplicates', true), ',' || id || ',') > 0, false
  );
end;
$$;
comment on function messages.is_duplicate is
  'Whether publish() or publish_many() has returned the id of an existing message, of which the '
  'dedup_key is, instead of publishing a new one. For use in the statement that publishes: select '
  'id, messages.is_duplicate(id) from messages.publish(...) as id. It is about the last call of '
  'this transaction that found existing messages. Of messages of one array that have the same key '
  'one is published, and its id is new.';

-- Replace the contents of a message; null: it has given up its key, and another may be published.
create or replace function notifyq.replace_message(
  id bigint, newer messages.message, payload jsonb, on_duplicate text, dedup_window interval
)
  returns bigint language plpgsql
  set enable_seqscan = off
as $$
begin
  update messages.message as m
  set message = replace_message.payload,
    headers = newer.headers,
    type = newer.type,
    priority = newer.priority,
    -- A message that waits for others is due after them.
    available_at = case
      when on_duplicate = 'debounce' and m.blockers is null
      then least(newer.available_at, m.created_at + dedup_window)
      else m.available_at end,
    -- The trigger `schedule` makes it scheduled if it is not due.
    state = case when on_duplicate = 'debounce' then 'waiting' else m.state end
  where m.id = replace_message.id
    and m.queue = newer.queue
    and m.state <> 'locked'
    and m.root_id is null
    and m.dedup_key is not null;
  if not found then
    -- Locked by a worker or with recorded steps, and unique while live.
    return (
      select m.id from messages.message as m
      where m.id = replace_message.id and m.queue = newer.queue and m.dedup_scope is null
    );
  end if;
  if on_duplicate = 'debounce' then
    perform notifyq.notify_messages(array[id]);
  end if;
  return id;
end;
$$;

create or replace function notifyq.forget_keys(quantity bigint)
  returns integer language plpgsql
  set enable_seqscan = off set jit = off
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

-- Publish all: publish messages of which some may exist already.

-- Publish messages that may exist already; return ids of the existing or new messages, in order.
-- The template has the columns that all of them have in common.
create or replace function notifyq.publish_all(
  queue messages.queue, template messages.message, payloads jsonb[], keys text[],
  dedup_keys text[], dedup_window interval, on_duplicate text, after bigint[], on_failure text,
  available_at timestamptz, delay interval, expires_at timestamptz
)
  returns bigint[] language plpgsql
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
  -- Else each call would plan most of its queries again, which takes longer than to run them.
  set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_new bigint[];
  v_leads boolean[];
  v_ids bigint[];
  v_each record;
  v_after bigint[];
  v_ended notifyq.dependency[];
  v_published bigint[];
begin
  -- The trigger `admit` does not see an existing message.
  if exists (select from messages.queue_grant) then
    perform notifyq.check_access(template.queue, 'publish into');
  end if;
  if cardinality(after) > 0 then
    if on_duplicate = 'debounce' then
      perform notifyq.raise_invalid('debounce and after exclude each other');
    end if;
    if not queue.durable then
      perform notifyq.raise_invalid('messages of an unlogged queue cannot wait for others');
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
  -- Ids in the order of the array, rows in the order of the keys: two publishers that insert the
  -- same keys in different orders would deadlock. The transaction gets its transaction id before
  -- its message ids, see queue/find.sql.
  perform pg_current_xact_id();
  v_new := array(select nextval('messages.message_id_seq') from unnest(payloads));
  -- Of several messages with one key one is published: the first, or else the newest.
  v_leads := array(
    select p.dedup_key is null or p.position = case on_duplicate
      when 'keep' then min(p.position) over same else max(p.position) over same end
    from unnest(dedup_keys, v_new) with ordinality as p (dedup_key, new, position)
    window same as (partition by p.dedup_key)
    order by p.position
  );
  if dedup_window is not null and on_duplicate = 'keep' then
    v_ids := notifyq.reserve_keys(
      template.queue,
      array(
        select case when p.leads then p.dedup_key end
        from unnest(dedup_keys, v_leads) as p (dedup_key, leads)
      ),
      v_new, dedup_window
    );
  end if;
  -- An existing message may be finished, and its key free, before the query below: try again.
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
      from unnest(v_new, dedup_keys, v_ids, v_leads) as p (new, dedup_key, id, leads)
    );
    if on_duplicate <> 'keep' then
      for v_each in
        select p.id, p.payload, p.position
        from unnest(v_ids, v_new, payloads, dedup_keys) with ordinality
          as p (id, new, payload, dedup_key, position)
        where p.id <> p.new
        order by p.dedup_key
      loop
        v_ids[v_each.position] := notifyq.replace_message(
          v_each.id, template, v_each.payload, on_duplicate, dedup_window
        );
      end loop;
    end if;
    exit when not exists (
      select from unnest(v_ids, v_leads) as p (id, leads) where p.id is null and p.leads
    );
  end loop;
  if dedup_window is not null and on_duplicate = 'keep' then
    -- Existing messages get no window of this call.
    delete from notifyq.dedup as d
    where d.ctid = any (array(
      select o.ctid
      from unnest(dedup_keys, v_new, v_ids, v_leads) as p (dedup_key, new, id, leads)
      -- Each is looked up: a join could compare all of them with all keys of the queue.
      cross join lateral (
        select k.ctid
        from notifyq.dedup as k
        where k.queue = template.queue and k.dedup_key = p.dedup_key and k.id = p.new
        offset 0
      ) as o
      where p.id <> p.new and p.leads
    ));
  end if;
  v_published := array(select u.id from unnest(v_ids, v_new) as u (id, new) where u.id = u.new);
  if expires_at is not null then
    insert into notifyq.expiry (message_id, expires_at)
    select u.id, publish_all.expires_at from unnest(v_published) as u (id);
  end if;
  if v_after is not null then
    perform notifyq.add_dependencies(
      v_published, v_after, on_failure, available_at, delay, v_ended
    );
  end if;
  if dedup_keys is not null then
    perform notifyq.note_duplicates(
      array(select u.id from unnest(v_ids, v_new) as u (id, new) where u.id <> u.new)
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
