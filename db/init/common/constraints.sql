-- Bounds: a check of each table keeps its instants and durations in bounds, whoever writes them.
--
-- A client that cannot read one row reads none of the same result, and a sum that overflows ends a
-- claim or the upkeep for all queues. So each table has one check over its instants, one over its
-- days, and one over its durations. They are derived from the catalog: a table or a column that a
-- migration adds has them too; what is in its rows by then must be in bounds.

do $$
declare
  v_table record;
  v_check text;
begin
  for v_table in
    with bounded as (
      select c.oid as relation, c.relname as name, a.attname as column, a.attnum as number,
        case a.atttypid when 'timestamptz'::regtype then 'instants' when 'date'::regtype then 'days'
          else 'durations' end as kind,
        -- A message without a due time, a lock that lasts as long as its session, a bucket that
        -- was never used.
        case
          when a.attname in ('available_at', 'lock_expires_at') then 'infinity'
          when c.relname = 'flow_state' then '-infinity'
        end as endless
      from pg_class as c
      join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
        and c.relkind in ('r', 'p')
        and not c.relispartition
        and a.atttypid in ('timestamptz'::regtype, 'date'::regtype, 'interval'::regtype)
    )
    select b.relation, b.name, b.kind,
      -- A child of messages.message must have its checks.
      replace(b.name, 'message_volatile', 'message') || '_' || b.kind || '_ck' as constraint,
      bool_or(k.oid is not null) as is_old,
      string_agg(
        format('notifyq.is_duration(%I)', b.column), ' and ' order by b.column
      ) as durations,
      string_agg(
        case when b.endless = '-infinity' then format('nullif(%I, %L)', b.column, b.endless)
          else format('%I', b.column) end,
        ', ' order by b.column
      ) as earliest,
      string_agg(
        case when b.endless = 'infinity' then format('nullif(%I, %L)', b.column, b.endless)
          else format('%I', b.column) end,
        ', ' order by b.column
      ) as latest
    from bounded as b
    left join pg_constraint as k on k.conrelid = b.relation
      and k.conname = replace(b.name, 'message_volatile', 'message') || '_' || b.kind || '_ck'
    group by b.relation, b.name, b.kind
    having not coalesce(bool_and(b.number = any (k.conkey)), false)
    -- The child before its parent, whose check it would inherit.
    order by b.name desc, b.kind
  loop
    -- One comparison for all columns of a side: each statement that publishes or claims reads the
    -- condition anew.
    v_check := case when v_table.kind = 'durations' then v_table.durations else format(
      'least(%s) >= %L and greatest(%s) < %L',
      v_table.earliest, '0001-01-01 00:00:00+00', v_table.latest, '10000-01-01 00:00:00+00'
    ) end;
    if v_table.is_old then
      execute format(
        'alter table %s drop constraint %I', v_table.relation::regclass, v_table.constraint
      );
    end if;
    execute format(
      'alter table %s add constraint %I check (%s)',
      v_table.relation::regclass, v_table.constraint, v_check
    );
  end loop;
end;
$$;
