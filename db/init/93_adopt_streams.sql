-- Adopt streams: take over the positions of subscribers that were restored from another server.
--
-- owns:    nothing
-- writes:  messages.event, messages.event_retry, messages.batch, messages.batch_end, messages.tick,
--          messages.segment
-- calls:   messages._cut_tick, messages._place, messages._set_position
-- raises:  nothing

-- After a restore: no number of a transaction says anything about this server. What each subscriber
-- had yet to see, it sees by way of event_retry; all events count as committed long ago.
create or replace function messages._adopt_streams()
  returns void
  language plpgsql
as $$
#variable_conflict use_column
begin
  insert into messages.event_retry (
    subscription, event_id, due_at, retries, created_at, type, key, message, headers
  )
  select u.id, e.id, clock_timestamp(), 0, e.created_at, e.type, e.key, e.message, e.headers
  from messages.subscription as u
  join messages.segment as s on s.stream = u.stream
  join messages.event as e on e.segment = s.id
  where exists (
    select
    from messages.batch as b
    left join messages.batch_end as d on d.batch = b.id
    where b.subscription = u.id
      -- Whatever is published here already has a number that may mean anything, and a larger id.
      and (not pg_visible_in_snapshot(e.xid, b.seen) or e.id > b.upto_high)
      and case
        when b.previous = (
          select max(l.previous) from messages.batch as l where l.subscription = u.id
        ) then not pg_visible_in_snapshot(e.xid, b.upto)
          or e.id > b.upto_high
          or e.id > case when b.kind = 'events' and d.batch is null then b.after_id
            else b.last_id end
        else b.kind = 'events' and d.batch is null and pg_visible_in_snapshot(e.xid, b.upto)
          and e.id > b.after_id and e.id <= b.last_id
      end
  )
  on conflict on constraint event_retry_subscription_event_id_pk do nothing;
  delete from messages.event_retry as r where r.due_at is null;
  update messages.event_retry as r set batch = null where r.batch is not null;
  update messages.event as e set xid = '3' where e.xid <> '3';
  update messages.segment as s
  set sealed = null, witnesses = null, changed_by = null
  where s.closed_at is not null;
  delete from messages.tick;
  delete from messages.batch_end;
  delete from messages.batch;
  perform messages._cut_tick(s, false) from messages.stream as s order by s.id;
  perform messages._set_position(u.id, messages._place(s, 'last'))
  from messages.subscription as u
  join messages.stream as s on s.id = u.stream;
end;
$$;
