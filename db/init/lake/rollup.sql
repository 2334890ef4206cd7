-- Rollup: counts of finished messages by time.
--
-- raises: NQ003 invalid argument, NQ031 unknown lake

-- Must equal src/notifyq/spark/analysis/fingerprints.py: each pattern means the same in Python. No
-- classes such as \w, nothing that depends on a locale.
create or replace function notifyq.error_fingerprint(details text)
  returns text language plpgsql immutable security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_text text := left(split_part(ltrim(details, e' \t\r\n'), e'\n', 1), 1000);
begin
  -- Of an encrypted error only the class is known.
  if v_text like '{"$encrypted": {%' then
    v_text := concat_ws(' ', 'encrypted', substring(v_text from '"error": "([^"]*)"'));
  end if;
  v_text := regexp_replace(v_text, '(?<![A-Za-z0-9])''[^'']*''', '''<text>''', 'g');
  v_text := regexp_replace(v_text, '"[^"]*"', '"<text>"', 'g');
  v_text := regexp_replace(v_text, '[A-Za-z][A-Za-z0-9+.-]*://[^] <>"''),;}]+', '<url>', 'g');
  v_text := regexp_replace(
    v_text,
    e'(?<![A-Za-z0-9<>])(~|[.][.]?|[A-Za-z]:)?([/\\\\][A-Za-z0-9_.@%+~-]+){2,}[/\\\\]?',
    '<path>', 'g'
  );
  -- A worker's default name has host, process and a random suffix; a cluster adds one to pods.
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
  v_text := rtrim(left(ltrim(regexp_replace(v_text, e'[ \\t\\r\\f\\v]+', ' ', 'g')), 300));
  return coalesce(nullif(v_text, ''), '(no details)');
end;
$$;
comment on function notifyq.error_fingerprint is
  'A text that errors with the same cause share: the first line of the details, with quoted texts, '
  'URLs, paths, names of workers, suffixes of pods, UUIDs, hexadecimal numbers, instants and other '
  'numbers replaced by <text>, <url>, <path>, <worker>, <pod>, <uuid>, <hex>, <time> and <n>; at '
  'most 300 characters. (no details) for null and for an empty text.';

-- The merges below may run while the planner takes their tables for empty. They find groups by the
-- primary key and rows by ctid, which leaves no other plan. The caller holds the row of
-- rollup_progress: no other session moves these rows.

create or replace function notifyq.merge_histograms(
  bins integer[],
  counts bigint[],
  more_bins integer[],
  more_counts bigint[],
  out _bins integer[],
  out _counts bigint[]
)
  language sql immutable
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

create or replace function notifyq.merge_rollup(rows notifyq.rollup[])
  returns bigint language plpgsql
  set jit = off
as $$
declare
  v_finished bigint;
begin
  insert into notifyq.rollup as r
  select n.* from unnest(rows) as n
  on conflict (lake, span, bucket_at, queue, type, status) do update set
    finished = r.finished + excluded.finished,
    dead = r.dead + excluded.dead,
    retried = r.retried + excluded.retried,
    attempts = r.attempts + excluded.attempts,
    waited = r.waited + excluded.waited,
    wait_total_us = r.wait_total_us + excluded.wait_total_us,
    wait_max_us = greatest(r.wait_max_us, excluded.wait_max_us),
    (wait_bins, wait_counts) = (
      select m._bins, m._counts
      from notifyq.merge_histograms(
        r.wait_bins, r.wait_counts, excluded.wait_bins, excluded.wait_counts
      ) as m
    ),
    ran = r.ran + excluded.ran,
    run_total_us = r.run_total_us + excluded.run_total_us,
    run_max_us = greatest(r.run_max_us, excluded.run_max_us),
    (run_bins, run_counts) = (
      select m._bins, m._counts
      from notifyq.merge_histograms(
        r.run_bins, r.run_counts, excluded.run_bins, excluded.run_counts
      ) as m
    );
  select coalesce(sum(n.finished), 0)::bigint into v_finished from unnest(rows) as n;
  return v_finished;
end;
$$;

create or replace function notifyq.merge_rollup_errors(rows notifyq.rollup_error[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  insert into notifyq.rollup_error as r
  select n.* from unnest(rows) as n
  on conflict (lake, span, bucket_at, queue, status, fingerprint) do update set
    errors = r.errors + excluded.errors,
    first_at = least(r.first_at, excluded.first_at),
    last_at = greatest(r.last_at, excluded.last_at),
    sample = case when excluded.last_at >= r.last_at then excluded.sample else r.sample end;
  with gone as (
    delete from notifyq.rollup_error as e
    where e.ctid = any (array(
      select k.ctid
      from (select distinct n.lake, n.span, n.bucket_at, n.queue, n.status from unnest(rows) as n)
        as g
      cross join lateral (
        select o.ctid
        from notifyq.rollup_error as o
        where (o.lake, o.span, o.bucket_at, o.queue, o.status)
            = (g.lake, g.span, g.bucket_at, g.queue, g.status)
          and o.fingerprint <> '(others)'
        order by o.errors desc, o.fingerprint
        offset 100
      ) as k
    ))
    returning e.*
  )
  insert into notifyq.rollup_error as r
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

create or replace function notifyq.merge_rollup_workers(rows notifyq.rollup_worker[])
  returns void language plpgsql
  set enable_seqscan = off set jit = off
as $$
begin
  insert into notifyq.rollup_worker as r
  select n.* from unnest(rows) as n
  on conflict (lake, span, bucket_at, queue, worker) do update set
    finished = r.finished + excluded.finished,
    dead = r.dead + excluded.dead,
    run_total_us = r.run_total_us + excluded.run_total_us;
  with gone as (
    delete from notifyq.rollup_worker as w
    where w.ctid = any (array(
      select k.ctid
      from (select distinct n.lake, n.span, n.bucket_at, n.queue from unnest(rows) as n) as g
      cross join lateral (
        select o.ctid
        from notifyq.rollup_worker as o
        where (o.lake, o.span, o.bucket_at, o.queue) = (g.lake, g.span, g.bucket_at, g.queue)
          and o.worker <> '(others)'
        order by o.finished desc, o.worker
        offset 20
      ) as k
    ))
    returning w.*
  )
  insert into notifyq.rollup_worker as r
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

-- Folds up to `most` of the oldest hours into days. The caller holds the row of rollup_progress.
create or replace function notifyq.fold_rollup(lake bigint, most integer)
  returns integer language plpgsql
as $$
declare
  v_limit timestamptz := date_trunc('day', clock_timestamp() - interval '35 days', 'UTC');
  v_hour timestamptz;
  v_day jsonb;
  v_folded integer := 0;
  v_rollup notifyq.rollup[];
  v_errors notifyq.rollup_error[];
  v_workers notifyq.rollup_worker[];
begin
  -- One hour at a time has each key once: one insert cannot update the same row twice.
  for v_hour in
    select distinct r.bucket_at
    from notifyq.rollup as r
    where r.lake = fold_rollup.lake and r.span = 'hour' and r.bucket_at < v_limit
    order by r.bucket_at
    limit most
  loop
    v_day := jsonb_build_object('span', 'day', 'bucket_at', date_trunc('day', v_hour, 'UTC'));
    with gone as (
      delete from notifyq.rollup as r
      where r.lake = fold_rollup.lake and r.span = 'hour' and r.bucket_at = v_hour
      returning jsonb_populate_record(r, v_day) as folded
    )
    select array_agg(g.folded) into v_rollup from gone as g;
    perform notifyq.merge_rollup(v_rollup);
    with gone as (
      delete from notifyq.rollup_error as e
      where e.lake = fold_rollup.lake and e.span = 'hour' and e.bucket_at = v_hour
      returning jsonb_populate_record(e, v_day) as folded
    )
    select array_agg(g.folded) into v_errors from gone as g;
    perform notifyq.merge_rollup_errors(v_errors);
    with gone as (
      delete from notifyq.rollup_worker as w
      where w.lake = fold_rollup.lake and w.span = 'hour' and w.bucket_at = v_hour
      returning jsonb_populate_record(w, v_day) as folded
    )
    select array_agg(g.folded) into v_workers from gone as g;
    perform notifyq.merge_rollup_workers(v_workers);
    v_folded := v_folded + 1;
  end loop;
  return v_folded;
end;
$$;

create or replace function notifyq.roll_up(lake bigint, after bigint, upto bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_lake notifyq.lake := notifyq.find_lake(lake);
  v_batch bigint;
begin
  if after is null or upto is null or upto <= after then
    perform notifyq.raise_invalid(
      format('upto must be a later batch than after: %s, %s', upto, after),
      'rolled_up() returns the last batch that is rolled up'
    );
  end if;
  insert into notifyq.rollup_progress as p (lake, batch)
  values (v_lake.id, 0)
  on conflict on constraint rollup_progress_lake_pk do nothing;
  select p.batch into v_batch
  from notifyq.rollup_progress as p
  where p.lake = v_lake.id
  for update;
  if v_batch <> roll_up.after then
    return false;
  end if;
  update notifyq.rollup_progress as p
  set batch = roll_up.upto, rolled_at = clock_timestamp(), xid = pg_current_xact_id()
  where p.lake = v_lake.id;
  perform notifyq.fold_rollup(v_lake.id, 200);
  return true;
end;
$$;
comment on function notifyq.roll_up is
  'Begin to roll up the batches of a lake after the batch after, up to upto; add_rollup() adds '
  'their counts in the same transaction. False: the last batch that is rolled up is not after; '
  'another session was first, or an earlier attempt was committed. Raises NQ003 where upto is not '
  'later than after, and NQ031.';

create or replace function notifyq.rolled_up(lake bigint)
  returns bigint language sql stable security definer
  set search_path = pg_catalog, pg_temp
as $$
  select coalesce(max(p.batch), 0) from notifyq.rollup_progress as p where p.lake = rolled_up.lake;
$$;
comment on function notifyq.rolled_up is 'The last batch of a lake that is rolled up; 0: none is.';

-- A type or the name of a worker as part of a key, which an index takes up to about 2700 bytes.
-- A hash keeps two long ones apart.
create or replace function notifyq.key_part(name text)
  returns text language sql immutable
as $$
  select case
    when octet_length(name) > 400 then concat(left(name, 50), '...', md5(name)) else name
  end;
$$;

create or replace function notifyq.add_rollup(
  lake bigint,
  rollup jsonb,
  errors jsonb default '[]',
  workers jsonb default '[]'
)
  returns bigint language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
declare
  v_own jsonb := jsonb_build_object('lake', lake, 'span', 'hour');
  v_finished bigint;
begin
  if not exists (
    select from notifyq.rollup_progress as p
    where p.lake = add_rollup.lake and p.xid = pg_current_xact_id_if_assigned()
  ) then
    perform notifyq.raise_invalid(
      'counts can only be added in a transaction that has called roll_up()',
      'call roll_up() first; where it returns false, there is nothing to add'
    );
  end if;
  v_finished := notifyq.merge_rollup(array(
    select jsonb_populate_record(
      null::notifyq.rollup,
      r.value || v_own || jsonb_build_object('type', notifyq.key_part(r.value ->> 'type'))
    )
    from jsonb_array_elements(rollup) as r (value)
  ));
  perform notifyq.merge_rollup_errors(array(
    select jsonb_populate_record(null::notifyq.rollup_error, r.value || v_own)
    from jsonb_array_elements(errors) as r (value)
  ));
  perform notifyq.merge_rollup_workers(array(
    select jsonb_populate_record(
      null::notifyq.rollup_worker,
      r.value || v_own || jsonb_build_object('worker', notifyq.key_part(r.value ->> 'worker'))
    )
    from jsonb_array_elements(workers) as r (value)
  ));
  update notifyq.rollup_progress as p
  set messages = p.messages + v_finished
  where p.lake = add_rollup.lake;
  return v_finished;
end;
$$;
comment on function notifyq.add_rollup is
  'Add counts of hours to notifyq.rollup, rollup_error and rollup_worker: arrays of objects with '
  'the columns of these tables, each key once in a call. A type or worker of more than 400 bytes '
  'is cut and gets its MD5 hash. Return how many messages were counted. '
  'Raises NQ003 outside of a transaction that has called roll_up().';

create or replace function notifyq.forget_rollup(lake bigint)
  returns boolean language plpgsql security definer
  set search_path = pg_catalog, pg_temp
as $$
begin
  -- First: a roll-up that runs now holds this row.
  delete from notifyq.rollup_progress as p where p.lake = forget_rollup.lake;
  if not found then
    return false;
  end if;
  delete from notifyq.rollup as r where r.lake = forget_rollup.lake;
  delete from notifyq.rollup_error as e where e.lake = forget_rollup.lake;
  delete from notifyq.rollup_worker as w where w.lake = forget_rollup.lake;
  return true;
end;
$$;
comment on function notifyq.forget_rollup is
  'Forget the roll-up of a lake; the next one counts all of it. False: there was none.';

-- Counts the archive itself, for reports where no lake is rolled up. Not finer than requested: most
-- of the time goes into the groups. Without by_queue and by_type, queues and types are empty.
create or replace function notifyq.count_archive(
  since timestamptz,
  until timestamptz,
  step interval default '1 hour',
  by_queue boolean default true,
  by_type boolean default true
)
  returns setof notifyq.rollup language sql stable
  set jit = off
as $$
  with counted as materialized (
    select
      case
        when step is null then '-infinity'
        else date_bin(step, a.archived_at, '2000-01-03 00:00+00')
      end as bucket_at,
      case when by_queue then a.queue else '' end as queue,
      case when by_type then coalesce(a.type, '') else '' end as type, a.status, a.attempts,
      notifyq.is_dead(a.status, a.cancelled_by) as is_dead,
      (extract(epoch from a.wait) * 1000000)::bigint as waited,
      (extract(epoch from a.run) * 1000000)::bigint as ran
    from notifyq.timed_message as a
    where (since is null or a.archived_at >= since)
      and (until is null or a.archived_at < until)
  ), sums as (
    select c.bucket_at, c.queue, c.type, c.status, count(*) as finished,
      count(*) filter (where c.is_dead) as dead,
      count(*) filter (where c.attempts > 1) as retried, sum(c.attempts)::bigint as attempts,
      count(c.waited) as waited,
      coalesce(least(sum(c.waited), 9223372036854775807), 0)::bigint as wait_total,
      coalesce(max(c.waited), 0) as wait_max,
      count(c.ran) as ran,
      coalesce(least(sum(c.ran), 9223372036854775807), 0)::bigint as run_total,
      coalesce(max(c.ran), 0) as run_max
    from counted as c
    group by c.bucket_at, c.queue, c.type, c.status
  ), bins as (
    select c.bucket_at, c.queue, c.type, c.status, k.kind, b.bin, count(*) as n
    from counted as c
    cross join lateral (values ('wait', c.waited), ('run', c.ran)) as k (kind, us)
    cross join lateral (
      select case
        when k.us <= 0 then -349
        else ceil(ln(k.us / 1000.0::double precision) / ln(1.02::double precision))::integer
      end as bin
    ) as b
    where k.us is not null
    group by c.bucket_at, c.queue, c.type, c.status, k.kind, b.bin
  ), histograms as (
    select b.bucket_at, b.queue, b.type, b.status,
      array_agg(b.bin order by b.bin) filter (where b.kind = 'wait') as wait_bins,
      array_agg(b.n order by b.bin) filter (where b.kind = 'wait') as wait_counts,
      array_agg(b.bin order by b.bin) filter (where b.kind = 'run') as run_bins,
      array_agg(b.n order by b.bin) filter (where b.kind = 'run') as run_counts
    from bins as b
    group by b.bucket_at, b.queue, b.type, b.status
  )
  select 0::bigint, 'hour', s.bucket_at, s.queue, s.type, s.status, s.finished, s.dead, s.retried,
    s.attempts, s.waited, s.wait_total, s.wait_max, coalesce(h.wait_bins, '{}'),
    coalesce(h.wait_counts, '{}'), s.ran, s.run_total, s.run_max, coalesce(h.run_bins, '{}'),
    coalesce(h.run_counts, '{}')
  from sums as s
  left join histograms as h using (bucket_at, queue, type, status);
$$;
