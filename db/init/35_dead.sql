-- Dead: what to do about messages that did not succeed.
--
-- owns:    messages.dead_message
-- writes:  messages.message_archive (dead_delete)
-- calls:   messages._check_quantity
-- raises:  NQ003 invalid argument

create or replace view messages.dead_message as
  select a.*
  from messages.message_archive as a
  where a.status <> 'success';
comment on view messages.dead_message is 'Archived messages that did not succeed.';

create or replace function messages.dead_list(
  queue text default null,
  quantity integer default 100,
  skip integer default 0
)
  returns setof messages.dead_message
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  perform messages._check_quantity(dead_list.quantity, 10000);
  return query
  select d.*
  from messages.dead_message as d
  where (dead_list.queue is null or d.queue = dead_list.queue)
  order by d.archived_at desc, d.id desc
  limit dead_list.quantity
  offset dead_list.skip;
end;
$$;
comment on function messages.dead_list(text, integer, integer) is
  'Dead messages, the latest first.';

create or replace function messages.dead_count(queue text default null)
  returns bigint
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return (
    select count(*)
    from messages.dead_message as d
    where dead_count.queue is null or d.queue = dead_count.queue
  );
end;
$$;
comment on function messages.dead_count(text) is 'How many dead messages there are.';

create or replace function messages.dead_delete(variadic ids bigint[])
  returns bigint
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_deleted bigint;
begin
  delete from messages.message_archive as a
  where a.id = any (dead_delete.ids)
    and a.status <> 'success';
  get diagnostics v_deleted = row_count;
  return v_deleted;
end;
$$;
comment on function messages.dead_delete(bigint[]) is
  'Delete dead messages from the archive for good; return how many were.';
