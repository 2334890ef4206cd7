-- Watch: of many idle workers few get up for one message, and all of them when they are called.
--
-- owns:    nothing
-- writes:  nothing; notifies new_message
-- calls:   messages._notify, messages._check_access, messages._may, messages._check_duration,
--          messages._invalid
-- raises:  NQ003 invalid argument, NQ007 no right to the queue

create or replace function messages._watching_key(queue text, place integer)
  returns bigint
  language plpgsql
  immutable
as $$
begin
  return hashtextextended(queue, 7305427100 + place);
end;
$$;

create or replace function messages._check_places(places integer)
  returns void
  language plpgsql
as $$
begin
  if (places between 1 and 100) is not true then
    perform messages._invalid(
      format('places must be between 1 and 100, not %s', coalesce(places::text, 'null'))
    );
  end if;
end;
$$;

create or replace function messages.watch(queues text[], places integer default 4)
  returns integer[]
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_places(watch.places);
  perform messages._check_access(u.name, 'consume from') from unnest(watch.queues) as u (name);
  return array(
    select (
      select p.place
      from generate_series(1, watch.places) as p (place)
      where pg_try_advisory_lock(messages._watching_key(u.name, p.place))
      limit 1
    )
    from unnest(watch.queues) with ordinality as u (name, number)
    order by u.number
  );
end;
$$;
comment on function messages.watch(text[], integer) is
  'Take a place among those who answer the bell for a single message, in each of the queues; null '
  'where all are taken. A thousand idle workers need not all get up for one message. Held to '
  'unwatch() or the end of the session; do not take a second place of the same queue. Raises NQ007 '
  'for a queue from which the caller may not consume.';

create or replace function messages._is_watched(queue text, places integer)
  returns boolean
  language plpgsql
as $$
declare
  v_key bigint;
begin
  for v_place in 1 .. places loop
    v_key := messages._watching_key(queue, v_place);
    -- Shared, or two who ask would take each other for watchers. Given back at once, and not with
    -- the transaction, or whoever hears the bell might still find the place taken.
    if not pg_try_advisory_lock_shared(v_key) then
      return true;
    end if;
    perform pg_advisory_unlock_shared(v_key);
  end loop;
  return false;
end;
$$;

create or replace function messages.unwatch(
  queues text[], held integer[], places integer default 4
)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_places(unwatch.places);
  perform pg_advisory_unlock(messages._watching_key(u.name, u.place))
  from unnest(unwatch.queues, unwatch.held) as u (name, place);
  -- After the release: of two that leave at once, one at least finds all places empty. Whether or
  -- not a message waits: those who do not answer single bells must hear that somebody has to.
  return messages.summon(
    array(
      select u.name
      from unnest(unwatch.queues) as u (name)
      where not messages._is_watched(u.name, unwatch.places)
    ),
    always => true
  );
end;
$$;
comment on function messages.unwatch(text[], integer[], integer) is
  'Give up the places held in these queues. Where nobody is left who watches, all workers are '
  'summoned. Returns for how many queues.';

create or replace function messages.next_due(queues text[], since interval default '0')
  returns interval
  language plpgsql
  volatile
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_sort = off
  set enable_bitmapscan = off
  set jit = off
  set plan_cache_mode = force_generic_plan
as $$
declare
  v_now timestamptz := clock_timestamp();
  -- What was due before that a claim has found; and of what was, dead rows lie there.
  v_after timestamptz;
begin
  perform messages._check_duration('since', next_due.since);
  v_after := v_now - greatest(next_due.since, '0');
  return (
    select min(d.available_at)
    from messages.queue as q
    cross join lateral (
      select m.available_at
      from messages.message as m
      where m.queue = q.name
        and m.state = 'scheduled'
        and m.available_at > v_after
        and m.available_at < 'infinity'
      order by m.available_at
      limit 1
    ) as d
    where q.name = any (next_due.queues)
      and not q.paused
      and messages._may(q.name, 'consume from')
  ) - v_now;
end;
$$;
comment on function messages.next_due(text[], interval) is
  'How long it takes until the next scheduled message of these queues is due; null if there is '
  'none. What is due already does not count, as a claim finds it; but who has claimed a while ago '
  'says how long that is, since: what has become due in that time counts, by a negative interval. '
  'A bell rings for what is published with less than a minute to go, so who sleeps until then, or '
  'a minute, misses nothing.';

create or replace function messages.summon(queues text[], always boolean default false)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_name text;
  v_rung integer := 0;
begin
  for v_name in
    select q.name
    from messages.queue as q
    where q.name = any (summon.queues)
      and not q.paused
      and q.bell <> 'off'
      and messages._may(q.name, 'consume from')
    order by q.name
  loop
    continue when not always and not exists (
      select from messages.message as m where m.queue = v_name and m.state = 'waiting'
    );
    -- No id: everybody is meant, not those alone who watch.
    perform messages._notify('new_message', v_name, '');
    v_rung := v_rung + 1;
  end loop;
  return v_rung;
end;
$$;
comment on function messages.summon(text[], boolean) is
  'Ring for every worker of those of the queues that have a message waiting, or of all: the bell '
  'names no id. Whoever hears it looks now, and once more when all transactions of that moment are '
  'over, as after unattend(). A worker that attends but has no free slot, or stops, calls the '
  'others with it. Returns for how many queues it rang.';
