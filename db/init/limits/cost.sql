-- Cost: how many tokens a message takes from the buckets of its queue and key.
--
-- It is the header `cost`: what copies, moves or redrives a message takes it along.
--
-- raises: NQ003 invalid argument

-- The cost in the headers; 1 if there is none. Headers can be set without publish(): what is out of
-- bounds counts as the nearest cost allowed, and what is no number as 1.
create or replace function notifyq.cost_of(headers jsonb)
  returns integer language sql immutable
as $$
  select case when jsonb_typeof(headers -> 'cost') = 'number'
    then least(greatest((headers ->> 'cost')::numeric, 1), 1000000000)::integer else 1 end;
$$;

create or replace function notifyq.with_cost(headers jsonb, cost integer)
  returns jsonb language plpgsql
as $$
begin
  perform notifyq.check_between('cost', cost, 1, 1000000000);
  return coalesce(headers, '{}') || jsonb_build_object('cost', cost);
end;
$$;

-- How many of the messages, in queue order, tokens pay for, and what these cost together. The last
-- may cost more than is left: the bucket is in debt then, and a message that costs more than the
-- burst runs too.
create or replace function notifyq.count_payable(
  ids bigint[], tokens integer, out _quantity integer, out _cost bigint
)
  language plpgsql stable
as $$
begin
  select count(*)::integer, sum(notifyq.cost_of(m.headers)) into _quantity, _cost
  from messages.message as m
  where m.id = any (count_payable.ids);
  if _cost <= tokens then
    return;
  end if;
  select count(*)::integer, coalesce(sum(p.cost), 0)::bigint into _quantity, _cost
  from (
    select c.cost, sum(c.cost) over (order by c.priority desc, c.id) - c.cost as before
    from (
      select m.id, m.priority, notifyq.cost_of(m.headers) as cost
      from messages.message as m
      where m.id = any (count_payable.ids)
    ) as c
  ) as p
  where p.before < count_payable.tokens;
end;
$$;
