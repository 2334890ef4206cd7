-- Bell: how a queue's workers are told that there may be work.
--
-- owns:    nothing
-- writes:  messages.message_bell_seq; notifies new_message
-- calls:   nothing
-- raises:  nothing

-- '41-43,50' from {41,42,43,50}. A payload has less than 8000 bytes, and the queue's name up to 200
-- of them. Ids that don't fit are left out: a bell is a hint, workers claim by queue and not by id.
create or replace function messages._compact(ids bigint[])
  returns text
  language sql
  immutable
as $$
  with numbered as (
    select i.id, i.id - row_number() over (order by i.id) as island
    from unnest(ids) as i (id)
  ),
  spans as (
    select min(n.id) as first,
      case when count(*) = 1 then min(n.id)::text
        else format('%s-%s', min(n.id), max(n.id)) end as span
    from numbered as n
    group by n.island
  ),
  sized as (
    select s.first, s.span, sum(octet_length(s.span) + 1) over (order by s.first) - 1 as bytes
    from spans as s
  )
  select coalesce(string_agg(z.span, ',' order by z.first), '')
  from sized as z
  where z.bytes <= 7700;
$$;

create or replace function messages._notify(channel text, queue text, spans text)
  returns void
  language plpgsql
as $$
begin
  -- A full notification queue fails the commit, where nothing can catch it; a bell that is not rung
  -- costs a worker one poll.
  if pg_notification_queue_usage() < 0.5 then
    -- A name longer than a queue's can only be that of a message without a queue.
    perform pg_notify(channel, left(queue, 200) || ':' || spans),
      case when channel = 'new_message' then nextval('messages.message_bell_seq') end;
  end if;
end;
$$;

create or replace function messages._ring(queue messages.queue, spans text)
  returns boolean
  language plpgsql
as $$
begin
  if queue.paused or queue.bell = 'off' then
    return false;
  end if;
  perform messages._notify('new_message', queue.name, spans);
  return true;
end;
$$;
