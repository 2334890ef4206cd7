-- Redirect: what a dead message that is published again means for what waits for it.
--
-- owns:    nothing
-- writes:  messages.message, messages.dependency
-- calls:   nothing
-- raises:  nothing

-- What is held for a dead message waits for the one that it was published again as. And one that
-- waited itself does so again, as far as those are published again too, so that a chain that is
-- redriven keeps its order; a dead one that is not redriven holds nothing up any more.
create or replace function messages._redirect(dead bigint[], again bigint[])
  returns void
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
begin
  perform from messages.message as m
  where m.id = any (
    array(
      select d.message_id from messages.dependency as d
      where d.after_id = any (dead) and d.on_failure = 'hold' and d.status <> 'success'
    )
  )
  order by m.id
  for no key update;
  update messages.dependency as d
  set after_id = u.again,
    status = null
  from unnest(dead, again) as u (dead, again)
  where d.after_id = u.dead
    and d.on_failure = 'hold'
    and d.status <> 'success';
  insert into messages.dependency (message_id, after_id, position, status, delay, on_failure)
  select
    u.again, l.id, d.position,
    case when m.id is null then coalesce(
      (select a.status from messages.message_archive as a where a.id = l.id), d.status, 'rejected'
    ) end,
    d.delay, d.on_failure
  from unnest(dead, again) as u (dead, again)
  join messages.dependency as d on d.message_id = u.dead
  -- The one that was published last for it.
  cross join lateral (
    with recursive hop (id) as (
      select d.after_id
      union all
      select r.message_id
      from hop as h
      join messages.redrive as r on r.archive_id = h.id
    )
    select max(h.id) as id from hop as h
  ) as l
  left join messages.message as m on m.id = l.id
  order by u.again, l.id
  on conflict on constraint dependency_message_id_after_id_pk do nothing;
  update messages.message as m
  set blockers = w.blockers,
    available_at = 'infinity'
  from (
    select d.message_id, count(*) as blockers
    from messages.dependency as d
    where d.message_id = any (again)
      and d.status is null
    group by d.message_id
  ) as w
  where m.id = w.message_id;
end;
$$;
