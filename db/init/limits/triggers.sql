-- Triggers: those of messages that only some queues need.
--
-- raises: NQ009 open transactions

-- Recreate, or drop, those that are for other queues than before. Their conditions name the queues:
-- publishers of all others pay nothing. They do not test whether room is reserved already, as roles
-- that insert could manipulate all that a condition can read.
create or replace function notifyq.rebuild_queue_triggers()
  returns void language plpgsql
  set lock_timeout = '2s'
as $$
declare
  v_has_unlogged boolean := exists (select from messages.queue as q where not q.durable);
  v_is_parent boolean := exists (
    select from pg_inherits as i where i.inhparent = 'messages.message'::regclass
  );
  v_trigger record;
begin
  perform notifyq.rebuild_aging();
  for v_trigger in
    with named as (
      select array_agg(q.name order by q.name) filter (where not q.durable) as unlogged,
        array_agg(q.name order by q.name) filter (where q.capacity is not null) as bounded,
        array_agg(q.name order by q.name) filter (
          where not q.durable and q.capacity is not null and q.overflow = 'reject'
        ) as unlogged_bounded,
        array_agg(q.name order by q.name) filter (
          where not q.durable and q.capacity is not null and q.overflow = 'drop_oldest'
        ) as trimmed,
        array_agg(q.name order by q.name) filter (
          where q.payload_type is not null or q.payload_schema is not null or q.encrypted
        ) as typed,
        array_agg(q.name order by q.name) filter (where q.encrypted) as encrypted
      from messages.queue as q
    )
    select t.*, g.oid is not null as is_present
    from named as n
    cross join lateral (
      values
        -- The name sorts first: a diverted row then runs the other triggers on its own table.
        ('messages', 'message', 'a_divert', 'divert_unlogged', n.unlogged, false),
        ('messages', 'message', 'capacity', 'make_room', n.bounded, false),
        ('messages', 'message', 'payload', 'check_new_payload', n.typed, false),
        ('messages', 'message_archive', 'sealed', 'check_result', n.encrypted, false),
        ('notifyq', 'message_unlogged', 'capacity', 'make_room', n.unlogged_bounded, false),
        ('notifyq', 'message_unlogged', 'payload', 'check_new_payload', n.typed, false),
        -- When the transaction commits.
        ('notifyq', 'message_unlogged', 'trim', 'trim_ring', n.trimmed, true)
    ) as t (schema, relation, name, function, names, is_deferred)
    left join pg_trigger as g
      on g.tgrelid = format('%I.%I', t.schema, t.relation)::regclass and g.tgname = t.name
    where g.tgenabled is distinct from case when t.names is not null then 'O'::"char" end
      or position(quote_literal(t.names::text) in pg_get_triggerdef(g.oid)) = 0
    -- A claim locks the table before its child, and each more than once: in another order, or with
    -- the weaker locks first, the two could wait for each other. Dropping takes the strongest lock.
    order by t.relation, t.names is not null and not t.is_deferred
  loop
    if v_trigger.is_present and (v_trigger.names is null or v_trigger.is_deferred) then
      execute format(
        'drop trigger %I on %I.%I', v_trigger.name, v_trigger.schema, v_trigger.relation
      );
    end if;
    if v_trigger.names is not null and v_trigger.is_deferred then
      execute format(
        'create constraint trigger %I after insert on %I.%I deferrable initially deferred '
        'for each row when (new.queue = any (%L::text[])) execute function notifyq.%I()',
        v_trigger.name, v_trigger.schema, v_trigger.relation, v_trigger.names, v_trigger.function
      );
    elsif v_trigger.names is not null then
      execute format(
        'create or replace trigger %I before insert on %I.%I '
        'for each row when (new.queue = any (%L::text[])) execute function notifyq.%I()',
        v_trigger.name, v_trigger.schema, v_trigger.relation, v_trigger.names, v_trigger.function
      );
    end if;
  end loop;
  if v_has_unlogged and not v_is_parent then
    alter table notifyq.message_unlogged inherit messages.message;
  elsif v_is_parent and not v_has_unlogged then
    alter table notifyq.message_unlogged no inherit messages.message;
  end if;
exception
  when lock_not_available then
    perform notifyq.raise_busy('publish or claim');
end;
$$;

-- A restored or damaged database may lack some.
do $$ begin perform notifyq.rebuild_queue_triggers(); end; $$;
