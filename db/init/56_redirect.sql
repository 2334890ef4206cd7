-- Redirect: what becomes of waits for others whose message came back, or is gone unnoticed.
--
-- owns:    nothing
-- writes:  messages.message, messages.dependency
-- calls:   messages._resolve
-- raises:  nothing

-- What is held for a dead message waits for the one that it was published again as. And one that
-- waited itself does so again, as far as those are published again too, so that a chain that is
-- redriven keeps its order; a dead one that is not redriven holds nothing up any more.
create or replace function messages._redirect(dead bigint[], again bigint[])
  returns void
  language plpgsql
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

-- Look at some more of the dependencies, from where this session stopped last: end those on
-- messages that are gone unnoticed, and remove those of messages that are gone themselves.
create or replace function messages._sweep_dependencies(quantity bigint)
  returns integer
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_place bigint[] := nullif(current_setting('notifyq.swept', true), '')::bigint[];
  v_swept messages.dependency[];
  v_gone bigint[];
begin
  if not exists (select from messages.dependency) then
    return 0;
  end if;
  v_swept := array(
    select d from messages.dependency as d
    where (d.message_id, d.after_id) > (coalesce(v_place[1], 0), coalesce(v_place[2], 0))
    order by d.message_id, d.after_id
    limit _sweep_dependencies.quantity
  );
  perform set_config(
    'notifyq.swept',
    case when cardinality(v_swept) < quantity then '' else
      array[v_swept[quantity].message_id, v_swept[quantity].after_id]::text end,
    false
  );
  v_gone := array(
    select distinct s.after_id from unnest(v_swept) as s
    where s.status is null
      and not exists (select from messages.message as m where m.id = s.after_id)
  );
  if v_gone <> '{}' then
    perform messages._resolve(
      array_agg(g.id), array_agg(coalesce(a.status, 'rejected'))
    )
    from unnest(v_gone) as g (id)
    left join messages.message_archive as a on a.id = g.id;
  end if;
  delete from messages.dependency as d
  where d.message_id = any (array(
    select distinct s.message_id from unnest(v_swept) as s
    where not exists (select from messages.message as m where m.id = s.message_id)
      and not exists (select from messages.message_archive as a where a.id = s.message_id)
  ));
  return cardinality(v_swept);
end;
$$;
