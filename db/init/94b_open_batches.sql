-- Open batches: what subscribers have at this moment, and since when.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   messages._check_quantity, messages._stream, messages.batch_info
-- raises:  NQ003 invalid argument, NQ020 stream not found

create or replace function messages.open_batches(
  stream text default null,
  quantity integer default 100
)
  returns setof messages.batch_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
as $$
begin
  perform messages._check_quantity(open_batches.quantity, 10000);
  if open_batches.stream is not null then
    perform messages._stream(open_batches.stream);
  end if;
  return query
  select i.*
  from (
    select b.id
    from messages.batch as b
    join messages.subscription as u on u.id = b.subscription
    join messages.stream as s on s.id = u.stream
    where b.kind <> 'position'
      and (open_batches.stream is null or s.name = open_batches.stream)
      and not exists (select from messages.batch_end as e where e.batch = b.id)
    order by b.opened_at, b.id
    limit open_batches.quantity
  ) as o
  cross join lateral messages.batch_info(o.id) as i
  order by i.opened_at, i.batch;
end;
$$;
comment on function messages.open_batches(text, integer) is
  'The batches that subscribers of a stream (null: of all) have open, as batch_info() reports '
  'them, the oldest first, up to quantity. Raises NQ020 for an unknown stream.';
