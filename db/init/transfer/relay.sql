-- Relay: the database that messages leave. See transfer/receive.sql for the other one.
--
-- A relay claims here, has the messages received there with a receipt for each, and finishes them
-- here. If it ends in between, another relay claims them again and only finishes those with a
-- receipt. The id and the creation time identify a message: one that a restored backup brings back
-- is known, and a new one with the same id is not.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ007 no right to the queue

create or replace function notifyq.own_relay()
  returns uuid language plpgsql
as $$
begin
  if not exists (select from notifyq.relay_self) then
    insert into notifyq.relay_self default values on conflict do nothing;
  end if;
  return (select s.name from notifyq.relay_self as s);
end;
$$;

create or replace function notifyq.relay_source()
  returns text language sql security definer
  set search_path = pg_catalog, pg_temp
as $$
  select notifyq.own_relay()::text;
$$;
comment on function notifyq.relay_source() is
  'The name under which other databases keep the receipts for messages of this one. It survives '
  'dump and restore.';

create or replace function notifyq.relay_target()
  returns text language sql security definer
  set search_path = pg_catalog, pg_temp
as $$
  select md5(notifyq.own_relay()::text);
$$;
comment on function notifyq.relay_target() is
  'The name under which other databases record what this one received last; see relay_marks(). It '
  'survives dump and restore.';

create or replace function notifyq.relay_claim(
  queues text[],
  quantity integer,
  lock_duration interval,
  worker text,
  filter jsonpath default null,
  full_scan boolean default false
)
  returns setof messages.message language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_message messages.message;
begin
  perform notifyq.check_given('queues', relay_claim.queues is not null);
  for v_message in
    select c.*
    from messages.claim(
      relay_claim.queues, relay_claim.quantity, relay_claim.lock_duration, relay_claim.worker,
      relay_claim.filter, relay_claim.full_scan,
      array_fill(1000, array[cardinality(relay_claim.queues)])
    ) as c
  loop
    if v_message.root_id is not null then
      -- Its recorded steps are here, so a worker of this database continues it.
      perform messages.release(v_message.id, v_message.lock_token, interval '5 seconds');
      continue;
    end if;
    -- The limit of the message is for its handler, which the relay has not called.
    if v_message.max_attempts is not null then
      update messages.message as m set handler_attempts = -1000 where m.id = v_message.id;
    end if;
    return next v_message;
  end loop;
end;
$$;
comment on function notifyq.relay_claim(text[], integer, interval, text, jsonpath, boolean) is
  'Claim as claim() does, for a relay: a relay that ends again and again uses up no attempts of '
  'the message, its queue or its handler. A message with recorded steps stays, for a worker of '
  'this database. Raises NQ001 and NQ007 as claim() does.';

create or replace function notifyq.relay_finish(
  target text,
  source text,
  "position" text,
  ids bigint[],
  lock_tokens bigint[],
  created bigint[],
  statuses messages.message_status[],
  details text[] default null,
  results jsonb[] default null
)
  returns setof bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
  v_ids bigint[];
begin
  if relay_finish.position is not null then
    insert into notifyq.relay_mark as k (role, target, source, position)
    values (
      notifyq.calling_role(), relay_finish.target, relay_finish.source, relay_finish.position
    )
    on conflict on constraint relay_mark_role_target_source_position_pk
    do update set noted_at = excluded.noted_at;
  end if;
  -- A database that was restored meanwhile may have given the id and the token to another
  -- message.
  v_ids := array(
    select (
      select m.id
      from messages.message as m
      where m.id = u.id
        and case
          when isfinite(m.created_at) then (extract(epoch from m.created_at) * 1000000)::bigint
          else 0 end = u.created
    )
    from unnest(relay_finish.ids, relay_finish.created) with ordinality as u (id, created, position)
    order by u.position
  );
  return query
  select f.id
  from messages.finish_many(
    v_ids, relay_finish.lock_tokens, relay_finish.statuses, relay_finish.details,
    relay_finish.results
  ) as f (id);
end;
$$;
comment on function notifyq.relay_finish(
  text, text, text, bigint[], bigint[], bigint[], messages.message_status[], text[], jsonb[]
) is
  'Finish messages that a target has received, as finish_many() does, and record that in '
  'relay_mark: position is the receipt of the last one, null: none. created has the creation '
  'times in microseconds since 1970. Returns the ids that were still held.';

create or replace function notifyq.relay_marks(target text, source text, within interval)
  returns setof text language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  perform notifyq.check_duration('within', relay_marks.within);
  return query
  select k.position
  from notifyq.relay_mark as k
  where k.role = notifyq.calling_role()
    and k.target = relay_marks.target
    and k.source = relay_marks.source
    and k.noted_at > now() - relay_marks.within;
end;
$$;
comment on function notifyq.relay_marks(text, text, interval) is
  'The positions of messages that the target received last from relays of the same role, not '
  'longer ago than within: if it lacks their receipts, it was restored to an earlier state.';

create or replace function notifyq.relay_forget(target text)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_count bigint;
begin
  delete from notifyq.relay_mark as k
  where k.role = notifyq.calling_role()
    and k.target = relay_forget.target;
  get diagnostics v_count = row_count;
  return v_count;
end;
$$;
comment on function notifyq.relay_forget(text) is
  'Forget what the target received last from relays of the same role, because it was restored and '
  'its state is accepted. Returns how many marks there were.';
