-- Claim each: several queues with a filter for each of them.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages.claim, messages._queue, messages._check_limits, messages._check_filter,
--          messages._invalid
-- raises:  NQ001 queue not found, NQ003 invalid argument

create or replace function messages._check_filters(queues text[], filters jsonpath[])
  returns void
  language plpgsql
as $$
begin
  if queues is null or queues = '{}' or array_position(queues, null) is not null then
    perform messages._invalid('queues must name at least one queue');
  end if;
  if filters is not null and cardinality(filters) <> cardinality(queues) then
    perform messages._invalid(
      format(
        'there are %s filters for %s queues', cardinality(filters), cardinality(queues)
      ),
      'give one for each queue in the list, null for none'
    );
  end if;
  perform messages._check_filter(f.filter)
  from unnest(filters) as f (filter)
  where f.filter is not null;
end;
$$;

-- One claim of several queues with a filter for each: what is first in the list goes first, and a
-- queue may be there more than once.
create or replace function messages._claim_each(
  queues text[],
  filters jsonpath[],
  quantity integer,
  lock_timeout interval,
  worker text,
  thorough boolean,
  max_attempts integer[]
)
  returns setof messages.message
  language plpgsql
as $$
declare
  v_left integer := quantity;
  v_count integer;
begin
  perform messages._check_filters(queues, filters);
  perform messages._queue(u.name) from unnest(queues) as u (name);
  if max_attempts is not null then
    perform messages._check_limits(queues, max_attempts);
  end if;
  for v_place in 1 .. cardinality(queues) loop
    return query
    select c.*
    from messages.claim(
      array[queues[v_place]], v_left, lock_timeout, worker, filters[v_place], thorough,
      case when max_attempts is not null then array[max_attempts[v_place]] end
    ) as c;
    get diagnostics v_count = row_count;
    v_left := v_left - v_count;
    exit when v_left = 0;
  end loop;
end;
$$;
