-- Rollup: add counts to those that are there, and what errors have in common.
--
-- Rows go to tables that may have been empty when they were last analysed, and are then taken for
-- ones that are still: groups are looked up by the primary key, and rows by where they lie, which
-- leaves nothing to choose. The caller holds the progress of the lake, so that they stay there.
--
-- owns:    nothing
-- writes:  messages.rollup, messages.rollup_error, messages.rollup_worker
-- calls:   messages._merge_histograms
-- raises:  nothing

-- Its twin in Python is src/notifyq/spark/fingerprints.py, so each step is one that both languages
-- of patterns read alike: no classes but by letters, nothing that depends on a locale.
create or replace function messages.error_fingerprint(details text)
  returns text
  language plpgsql
  immutable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_text text := left(split_part(ltrim(details, e' \t\r\n'), e'\n', 1), 1000);
begin
  v_text := regexp_replace(v_text, '(?<![A-Za-z0-9])''[^'']*''', '''<text>''', 'g');
  v_text := regexp_replace(v_text, '"[^"]*"', '"<text>"', 'g');
  v_text := regexp_replace(v_text, '[A-Za-z][A-Za-z0-9+.-]*://[^] <>"''),;}]+', '<url>', 'g');
  v_text := regexp_replace(
    v_text,
    '(?<![A-Za-z0-9<>])(~|[.][.]?|[A-Za-z]:)?([/\\][A-Za-z0-9_.@%+~-]+){2,}[/\\]?', '<path>', 'g'
  );
  -- As a worker calls itself, by machine, process and chance; and what a cluster adds to a name.
  v_text := regexp_replace(
    v_text, '(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]+:[0-9]+:[0-9a-f]{6}(?![A-Za-z0-9])', '<worker>', 'g'
  );
  v_text := regexp_replace(
    v_text, '-(?=[a-z]*[0-9])[0-9a-z]{6,10}-[0-9a-z]{5}(?![A-Za-z0-9-])', '-<pod>', 'g'
  );
  v_text := regexp_replace(
    v_text, '(?<![A-Za-z0-9])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![A-Za-z0-9])',
    '<uuid>', 'g'
  );
  v_text := regexp_replace(v_text, '(?<![A-Za-z0-9])0[xX][0-9a-fA-F]+', '<hex>', 'g');
  v_text := regexp_replace(
    v_text,
    '(?<![A-Za-z0-9])(?=[0-9]*[a-fA-F])(?=[a-fA-F]*[0-9])[0-9a-fA-F]{6,}(?![A-Za-z0-9])',
    '<hex>', 'g'
  );
  v_text := regexp_replace(
    v_text, '[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9:.]+(Z| ?[+-][0-9]{2}(:?[0-9]{2})?)?',
    '<time>', 'g'
  );
  v_text := regexp_replace(v_text, '[0-9]+([.,:][0-9]+)*', '<n>', 'g');
  v_text := regexp_replace(v_text, '<n>(, *<n>)+', '<n>', 'g');
  v_text := rtrim(left(ltrim(regexp_replace(v_text, '[ \t\r\f\v]+', ' ', 'g')), 300));
  return coalesce(nullif(v_text, ''), '(no details)');
end;
$$;
comment on function messages.error_fingerprint(text) is
  'What an error has in common with others of its kind: the first line of its details, with texts '
  'in quotes, addresses, paths, names of workers, suffixes of pods, uuids, hexadecimal numbers, '
  'instants and other numbers replaced by <text>, <url>, <path>, <worker>, <pod>, <uuid>, <hex>, '
  '<time> and <n>; at most 300 characters. (no details) for null and for nothing.';

create or replace function messages._merge_histograms(
  bins integer[],
  counts bigint[],
  more_bins integer[],
  more_counts bigint[],
  out _bins integer[],
  out _counts bigint[]
)
  language sql
  immutable
as $$
  select coalesce(array_agg(b.bin order by b.bin), '{}'),
    coalesce(array_agg(b.n order by b.bin), '{}')
  from (
    select u.bin, sum(u.n)::bigint as n
    from (
      select h.bin, h.n from unnest(bins, counts) as h (bin, n)
      union all
      select h.bin, h.n from unnest(more_bins, more_counts) as h (bin, n)
    ) as u
    group by u.bin
  ) as b;
$$;

create or replace function messages._add_rollup(rows messages.rollup[])
  returns bigint
  language plpgsql
  set jit = off
as $$
declare
  v_finished bigint;
begin
  insert into messages.rollup as r
  select n.* from unnest(rows) as n
  on conflict (lake, span, bucket_at, queue, type, status) do update set
    finished = r.finished + excluded.finished,
    retried = r.retried + excluded.retried,
    attempts = r.attempts + excluded.attempts,
    waited = r.waited + excluded.waited,
    wait_total_us = r.wait_total_us + excluded.wait_total_us,
    wait_max_us = greatest(r.wait_max_us, excluded.wait_max_us),
    (wait_bins, wait_counts) = (
      select m._bins, m._counts
      from messages._merge_histograms(
        r.wait_bins, r.wait_counts, excluded.wait_bins, excluded.wait_counts
      ) as m
    ),
    ran = r.ran + excluded.ran,
    run_total_us = r.run_total_us + excluded.run_total_us,
    run_max_us = greatest(r.run_max_us, excluded.run_max_us),
    (run_bins, run_counts) = (
      select m._bins, m._counts
      from messages._merge_histograms(
        r.run_bins, r.run_counts, excluded.run_bins, excluded.run_counts
      ) as m
    );
  select coalesce(sum(n.finished), 0)::bigint into v_finished from unnest(rows) as n;
  return v_finished;
end;
$$;

create or replace function messages._add_rollup_errors(rows messages.rollup_error[])
  returns void
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
begin
  insert into messages.rollup_error as r
  select n.* from unnest(rows) as n
  on conflict (lake, span, bucket_at, queue, status, fingerprint) do update set
    errors = r.errors + excluded.errors,
    first_at = least(r.first_at, excluded.first_at),
    last_at = greatest(r.last_at, excluded.last_at),
    sample = case when excluded.last_at >= r.last_at then excluded.sample else r.sample end;
  -- Whose name nobody would read is counted under one.
  with gone as (
    delete from messages.rollup_error as e
    where e.ctid = any (array(
      select k.ctid
      from (select distinct n.lake, n.span, n.bucket_at, n.queue, n.status from unnest(rows) as n)
        as g
      cross join lateral (
        select o.ctid
        from messages.rollup_error as o
        where (o.lake, o.span, o.bucket_at, o.queue, o.status)
            = (g.lake, g.span, g.bucket_at, g.queue, g.status)
          and o.fingerprint <> '(others)'
        order by o.errors desc, o.fingerprint
        offset 100
      ) as k
    ))
    returning e.*
  )
  insert into messages.rollup_error as r
  select g.lake, g.span, g.bucket_at, g.queue, g.status, '(others)', sum(g.errors),
    min(g.first_at), max(g.last_at), null
  from gone as g
  group by g.lake, g.span, g.bucket_at, g.queue, g.status
  on conflict (lake, span, bucket_at, queue, status, fingerprint) do update set
    errors = r.errors + excluded.errors,
    first_at = least(r.first_at, excluded.first_at),
    last_at = greatest(r.last_at, excluded.last_at);
end;
$$;

create or replace function messages._add_rollup_workers(rows messages.rollup_worker[])
  returns void
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
begin
  insert into messages.rollup_worker as r
  select n.* from unnest(rows) as n
  on conflict (lake, span, bucket_at, queue, worker) do update set
    finished = r.finished + excluded.finished,
    dead = r.dead + excluded.dead,
    run_total_us = r.run_total_us + excluded.run_total_us;
  with gone as (
    delete from messages.rollup_worker as w
    where w.ctid = any (array(
      select k.ctid
      from (select distinct n.lake, n.span, n.bucket_at, n.queue from unnest(rows) as n) as g
      cross join lateral (
        select o.ctid
        from messages.rollup_worker as o
        where (o.lake, o.span, o.bucket_at, o.queue) = (g.lake, g.span, g.bucket_at, g.queue)
          and o.worker <> '(others)'
        order by o.finished desc, o.worker
        offset 20
      ) as k
    ))
    returning w.*
  )
  insert into messages.rollup_worker as r
  select g.lake, g.span, g.bucket_at, g.queue, '(others)', sum(g.finished), sum(g.dead),
    sum(g.run_total_us)
  from gone as g
  group by g.lake, g.span, g.bucket_at, g.queue
  on conflict (lake, span, bucket_at, queue, worker) do update set
    finished = r.finished + excluded.finished,
    dead = r.dead + excluded.dead,
    run_total_us = r.run_total_us + excluded.run_total_us;
end;
$$;
