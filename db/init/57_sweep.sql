-- Sweep: what nobody noticed about messages that wait for others.
--
-- owns:    nothing
-- writes:  messages.dependency
-- calls:   messages._resolve
-- raises:  nothing

-- Look at some more of the dependencies, from where this session stopped last: end those on
-- messages that are gone unnoticed, and remove those of messages that are gone themselves.
create or replace function messages._sweep_dependencies(quantity bigint)
  returns integer
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
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
