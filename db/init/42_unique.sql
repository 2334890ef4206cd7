-- Unique: what becomes of a message whose dedup key is taken, and how long a key is.
--
-- A message has its key while it is live, or with scope waiting until it is claimed: the claim
-- itself takes the key from it for good, so whatever its worker does afterwards cannot collide.
--
-- Whoever publishes a key that another transaction publishes, or whose message it ends, waits for
-- its end; keys are taken in their order, so that two that publish the same ones never wait for
-- each other.
--
-- owns:    nothing
-- writes:  messages.message, messages.dedup
-- calls:   messages._invalid, messages._check_positive, messages._check_access, messages._ring
-- raises:  NQ003 invalid argument, NQ007 no right to the queue, NQ008 over a limit

-- The scope as it is kept in a message: null for live.
create or replace function messages._check_unique(
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
    perform messages._invalid(
      format(
        'on_duplicate must be keep, replace or debounce, not %s', coalesce(on_duplicate, 'null')
      )
    );
  end if;
  if dedup_scope not in ('live', 'waiting') then
    perform messages._invalid(format('dedup_scope must be live or waiting, not %s', dedup_scope));
  end if;
  if dedup_keys is null then
    if dedup_scope is not null or dedup_window is not null or on_duplicate <> 'keep' then
      perform messages._invalid(
        'dedup_scope, dedup_window and on_duplicate need a dedup_key',
        'say what makes two messages the same'
      );
    end if;
    return null;
  end if;
  perform messages._check_positive('dedup_window', dedup_window);
  if on_duplicate = 'replace' and dedup_window is not null then
    perform messages._invalid(
      'dedup_window does not go with replace: a finished message cannot become the newer one',
      'keep drops the newer message within the window, debounce puts off one that waits'
    );
  end if;
  if on_duplicate = 'debounce' and not is_delayed then
    perform messages._invalid(
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
create or replace function messages._take_keys(
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
    insert into messages.dedup as d (queue, dedup_key, id, expires_at)
    select _take_keys.queue, u.dedup_key, u.id, v_now + _take_keys.dedup_window
    from unnest(_take_keys.dedup_keys, _take_keys.ids) as u (dedup_key, id)
    where u.dedup_key is not null
    order by u.dedup_key
    on conflict on constraint dedup_queue_dedup_key_pk do update
    set id = excluded.id,
      expires_at = excluded.expires_at
    where d.expires_at <= v_now;
    v_holders := array(
      select case when u.dedup_key is null then u.id else (
        select d.id from messages.dedup as d
        where d.queue = _take_keys.queue
          and d.dedup_key = u.dedup_key
      ) end
      from unnest(_take_keys.dedup_keys, _take_keys.ids) with ordinality
        as u (dedup_key, id, position)
      order by u.position
    );
    exit when array_position(v_holders, null) is null;
  end loop;
  return array(
    select nullif(h.holder, h.id)
    from unnest(v_holders, _take_keys.ids) with ordinality as h (holder, id, position)
    order by h.position
  );
end;
$$;

-- Make a message the newer one; null: it has given up its key, and another may be published.
create or replace function messages._renew(
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
  set message = _renew.payload,
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
  where m.id = _renew.id
    and m.state <> 'locked'
    and m.dedup_key is not null
  returning m.state into v_state;
  if not found then
    -- Locked by a worker, and unique while it is live.
    return (
      select m.id from messages.message as m where m.id = _renew.id and m.dedup_scope is null
    );
  end if;
  if on_duplicate = 'debounce' and v_state = 'waiting' then
    select q.* into v_queue from messages.queue as q where q.name = newer.queue;
    perform messages._ring(v_queue, id::text);
  end if;
  return id;
end;
$$;

create or replace function messages._forget_keys(quantity bigint)
  returns integer
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
  v_forgotten integer;
begin
  delete from messages.dedup as d
  where d.ctid = any (array(
    select e.ctid
    from messages.dedup as e
    where e.expires_at <= v_now
    order by e.expires_at
    limit _forget_keys.quantity
    for update skip locked
  ));
  get diagnostics v_forgotten = row_count;
  return v_forgotten;
end;
$$;
