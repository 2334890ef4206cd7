-- Redrive: dead messages by filter, published again as far as their queues accept them.
--
-- raises: NQ001 queue not found, NQ003 invalid argument, NQ020 stream not found, NQ021 subscription
-- not found

-- Those of the dead messages that their queues accept now, each of the others with a WARNING: it
-- stays dead.
create or replace function notifyq.accepted_again(ids bigint[])
  returns bigint[] language plpgsql
as $$
declare
  v_half integer := cardinality(ids) / 2;
begin
  perform messages.dead_retry(variadic ids);
  raise assert_failure;
exception
  when assert_failure then
    return ids;
  when others then
    if not notifyq.is_refusal(sqlstate) then
      raise;
    elsif v_half > 0 then
      return notifyq.accepted_again(ids[:v_half]) || notifyq.accepted_again(ids[v_half + 1:]);
    else
      raise warning 'notifyq: dead message % is not published again: %', ids[1], sqlerrm;
      return array[]::bigint[];
    end if;
end;
$$;

-- As dead_retry(), without messages that their queues refuse.
create or replace function notifyq.retry_accepted(ids bigint[])
  returns bigint[] language plpgsql
as $$
begin
  return array(select r from messages.dead_retry(variadic ids) as r);
exception
  when others then
    if not notifyq.is_refusal(sqlstate) then
      raise;
    end if;
    return array(
      select r from messages.dead_retry(variadic notifyq.accepted_again(ids)) as r
    );
end;
$$;

create or replace function notifyq.redrive_ids(
  queue text default null,
  status messages.message_status default null,
  since timestamptz default null,
  until timestamptz default null,
  quantity integer default 1000,
  subscriber text default null
)
  returns bigint[] language plpgsql security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
declare
  v_ids bigint[];
  v_at timestamptz := coalesce(since, '-infinity');
  v_id bigint := 0::bigint;
  v_again bigint[] := array[]::bigint[];
begin
  perform notifyq.check_quantity(redrive_ids.quantity, 100000);
  if redrive_ids.status = 'success' then
    perform notifyq.raise_invalid(
      'status must not be success', 'messages that succeeded are not dead; null: all dead ones'
    );
  end if;
  if redrive_ids.queue is not null
    and not exists (select from messages.stream as s where s.name = redrive_ids.queue)
  then
    perform notifyq.find_queue(redrive_ids.queue);
  end if;
  -- One at a time: a second session would choose the same messages and find them published.
  lock table notifyq.redrive in share row exclusive mode;
  while cardinality(v_again) < redrive_ids.quantity loop
    with chosen as (
      select d.id, d.archived_at
      from notifyq.retryable_message as d
      where (redrive_ids.queue is null or d.queue = redrive_ids.queue)
        and (redrive_ids.status is null or d.status = redrive_ids.status)
        and d.archived_at < coalesce(redrive_ids.until, 'infinity')
        and (redrive_ids.subscriber is null or d.subscriber = redrive_ids.subscriber)
        and (d.archived_at, d.id) > (v_at, v_id)
        and not exists (select from notifyq.redrive as r where r.archive_id = d.id offset 0)
      order by d.archived_at, d.id
      limit redrive_ids.quantity - cardinality(v_again)
    )
    select array_agg(c.id order by c.archived_at, c.id), max(c.archived_at),
      (array_agg(c.id order by c.archived_at desc, c.id desc))[1]
    into v_ids, v_at, v_id
    from chosen as c;
    exit when v_ids is null;
    v_again := v_again || notifyq.retry_accepted(v_ids);
  end loop;
  return v_again;
end;
$$;
comment on function notifyq.redrive_ids is
  'As redrive(), but return the ids of the messages that were published; a dead event keeps its '
  'id. Raises NQ001, NQ003, NQ020 and NQ021.';

create or replace function messages.redrive(
  queue text default null,
  status messages.message_status default null,
  since timestamptz default null,
  until timestamptz default null,
  quantity integer default 1000,
  subscriber text default null
)
  returns integer language sql security definer
  set search_path = pg_catalog, pg_temp
as $$
  select cardinality(notifyq.redrive_ids(queue, status, since, until, quantity, subscriber));
$$;
comment on function messages.redrive is
  'Publish up to quantity (at most 100000) dead messages again as dead_retry() does, the oldest '
  'first, and return how many: of one queue (null: all), of one status (null: any), archived at or '
  'after since and before until, of one subscriber (null: any). A message that its queue refuses '
  'stays dead, with a WARNING. Raises NQ001 for an unknown queue.';
