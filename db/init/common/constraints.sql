-- Constraints: checks keep all instants and durations in bounds.
--
-- A client that cannot read one row cannot read the result at all, and a sum that overflows ends a
-- claim, or maintenance, for all queues. Each table therefore has one check for its instants, one
-- for its days and one for its durations. They are derived from the catalog: columns and tables
-- that a migration adds get them too, and rows that exist by then must be in bounds. The tables of
-- messages have none, see tables/message.sql.

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
        -- A message without a due time, a lock that lasts as long as its session, a wait without a
        -- deadline, a signal that is kept until its message ends, an unused bucket.
        case
          when a.attname in ('available_at', 'lock_expires_at')
            or (c.relname, a.attname) in (
              ('step', 'due_at'), ('step_archive', 'due_at'), ('signal', 'forget_at')
            )
            then 'infinity'
          when c.relname = 'limit_state' then '-infinity'
        end as infinite
      from pg_class as c
      join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
        and c.relkind in ('r', 'p')
        and not c.relispartition
        and c.relname not in ('message', 'message_unlogged', 'message_archive')
        and a.atttypid in ('timestamptz'::regtype, 'date'::regtype, 'interval'::regtype)
    )
    select b.relation, b.name, b.kind,
      b.name || '_' || b.kind || '_ck' as constraint,
      bool_or(k.oid is not null) as exists_already,
      string_agg(
        format('notifyq.is_duration(%I)', b.column), ' and ' order by b.column
      ) as durations,
      string_agg(
        case when b.infinite = '-infinity' then format('nullif(%I, %L)', b.column, b.infinite)
          else format('%I', b.column) end,
        ', ' order by b.column
      ) as earliest,
      string_agg(
        case when b.infinite = 'infinity' then format('nullif(%I, %L)', b.column, b.infinite)
          else format('%I', b.column) end,
        ', ' order by b.column
      ) as latest
    from bounded as b
    left join pg_constraint as k on k.conrelid = b.relation
      and k.conname = b.name || '_' || b.kind || '_ck'
    group by b.relation, b.name, b.kind
    having not coalesce(bool_and(b.number = any (k.conkey)), false)
    order by b.name, b.kind
  loop
    -- One comparison for all columns: each statement that writes a row parses it anew.
    v_check := case when v_table.kind = 'durations' then v_table.durations else format(
      'least(%s) >= %L and greatest(%s) < %L',
      v_table.earliest, '0001-01-01 00:00:00+00', v_table.latest, '10000-01-01 00:00:00+00'
    ) end;
    if v_table.exists_already then
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
