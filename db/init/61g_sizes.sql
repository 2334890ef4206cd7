-- Sizes: how large the tables are, and how well kept.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- The tables of the schema, those of days and of segments counted together.
create or replace function messages.sizes()
  returns setof messages.figure
  language sql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set jit = off
as $$
  with tables as materialized (
    select c.oid,
      case
        when p.relkind = 'p' or p.relname = 'event' then p.relname
        when c.relname in (
          'message', 'message_volatile', 'event', 'dedup', 'redrive', 'relay_receipt', 'load_row'
        ) then c.relname
        else 'others'
      end as subject,
      pg_table_size(c.oid) as bytes, pg_indexes_size(c.oid) as index_bytes,
      greatest(c.reltuples, 0) as rows, c.relpages::bigint * 8192 as heap_bytes,
      coalesce(p.relkind = 'p', false) as is_part
    from pg_class as c
    left join pg_inherits as i on i.inhrelid = c.oid
    left join pg_class as p on p.oid = i.inhparent
    where c.relnamespace = 'messages'::regnamespace and c.relkind = 'r'
  ), sums as materialized (
    select t.subject, sum(t.bytes) as bytes, sum(t.index_bytes) as index_bytes,
      sum(s.n_live_tup) as live, sum(s.n_dead_tup) as dead,
      min(greatest(s.last_vacuum, s.last_autovacuum)) filter (where not t.is_part) as vacuumed_at,
      min(greatest(s.last_analyze, s.last_autoanalyze)) filter (where not t.is_part) as analyzed_at
    from tables as t
    left join pg_stat_all_tables as s on s.relid = t.oid
    group by t.subject
  )
  select f.name, s.subject, f.value::double precision, f.unit
  from sums as s
  cross join lateral (
    values
      ('table_bytes', s.bytes, 'bytes'), ('index_bytes', s.index_bytes, 'bytes'),
      ('live_rows', s.live, 'rows'), ('dead_rows', s.dead, 'rows'),
      ('vacuum_age', extract(epoch from clock_timestamp() - s.vacuumed_at), 'seconds'),
      ('analyze_age', extract(epoch from clock_timestamp() - s.analyzed_at), 'seconds')
  ) as f (name, value, unit)
  where f.value is not null
  union all
  -- What the rows would take, if they were packed as tightly as the table allows, is the rest.
  select 'bloat', t.subject,
    greatest(0, 1 - t.rows * (28 + w.width) / 0.7 / t.heap_bytes)::double precision, 'ratio'
  from tables as t
  cross join lateral (
    select sum(s.avg_width * (1 - s.null_frac)) as width
    from pg_stats as s
    where s.schemaname = 'messages' and s.tablename = t.subject and not s.inherited
  ) as w
  where t.subject in ('message', 'message_volatile') and t.heap_bytes > 0 and w.width is not null
  union all
  select f.name, d.parent, f.value::double precision, 'days'
  from (
    select p.relname::text as parent, count(*) as days,
      count(*) filter (
        where right(c.relname, 8) > to_char(clock_timestamp() at time zone 'UTC', 'YYYYMMDD')
      ) as ahead
    from pg_inherits as i
    join pg_class as p on p.oid = i.inhparent
    join pg_class as c on c.oid = i.inhrelid
    where p.oid in ('messages.message_archive'::regclass, 'messages.attempt'::regclass)
      and c.relname ~ '_\d{8}$'
    group by p.relname
  ) as d
  cross join lateral (values ('partitions', d.days), ('partitions_ahead', d.ahead))
    as f (name, value);
$$;
comment on function messages.sizes() is
  'Numbers of the tables that grow, the others counted as one: table_bytes with TOAST, '
  'index_bytes, live_rows and dead_rows as the server last counted them, vacuum_age and '
  'analyze_age in seconds since either was done (not of tables by day), bloat, the part of a table '
  'that is neither rows nor wanted room (0 to 1, a guess), and how many days of the archive and of '
  'the attempts there are, and are made ahead (partitions, partitions_ahead). The tables of days, '
  'and of segments of streams, count as one.';
