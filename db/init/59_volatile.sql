-- Volatile: queues whose messages need not outlive a crash.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- A call, and no join: a standby cannot even plan a query of an unlogged table.
create or replace function messages._volatile_count(
  queue text, out _finished bigint, out _dropped bigint
)
  language sql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select coalesce(sum(c.finished), 0)::bigint, coalesce(sum(c.dropped), 0)::bigint
  from messages.volatile_count as c
  where c.queue = _volatile_count.queue;
$$;
