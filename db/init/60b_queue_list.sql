-- Queue list: the policy of queues, without counting what is in them.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

create or replace function messages.queue_list(queue text default null)
  returns setof messages.queue
  language sql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
  select q.*
  from messages.queue as q
  where queue_list.queue is null or q.name = queue_list.queue
  order by q.name;
$$;
comment on function messages.queue_list(text) is
  'Policy of each queue, or of one: what queue_info() tells without the counts, which cost more '
  'the more there is.';
