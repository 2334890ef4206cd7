-- Staged: publish the rows of a load, whatever they are for.
--
-- owns:    nothing
-- writes:  messages.message, messages.message_volatile, messages.event
-- calls:   messages._invalid, messages._check_target, messages._check_plain,
--          messages._publish_events
-- raises:  NQ003 invalid argument, NQ036 rows are missing, and what a publication raises

-- How many rows there are, which must be as many as were staged: load_row is empty after a crash.
create or replace function messages._check_staged(load text, attempts bigint[], counts bigint[])
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_found bigint;
  v_expected bigint := (
    select coalesce(sum(u.n), 0)::bigint from unnest(counts) as u (n)
  );
begin
  if cardinality(attempts) is distinct from cardinality(counts)
    or cardinality(attempts) <> (select count(distinct u.id) from unnest(attempts) as u (id))
  then
    perform messages._invalid(
      'attempts must be different numbers, with a count for each in counts'
    );
  end if;
  v_found := (
    select coalesce(sum(f.n), 0)::bigint
    from unnest(attempts, counts) as u (id, expected)
    join messages.load_attempt as t on t.id = u.id and t.load = _check_staged.load
    cross join lateral (
      select count(*) as n from messages.load_row as r where r.attempt = u.id
    ) as f
    where f.n = u.expected
  );
  if v_found <> v_expected then
    raise exception using
      errcode = 'NQ036',
      message = format(
        'of the %s rows staged for load %L only %s are there', v_expected, load, v_found
      ),
      hint = 'the server has crashed, or the attempts were dropped: stage them again';
  end if;
  return v_found;
end;
$$;

-- One after the other in the order of the attempts: of equal options those that follow each other
-- are one publication.
create or replace function messages._publish_staged_events(stream text, attempts bigint[])
  returns bigint
  language plpgsql
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_attempt bigint;
  v_last bigint;
  v_to bigint;
  v_run record;
  v_published bigint := 0::bigint;
begin
  foreach v_attempt in array attempts loop
    v_last := -1;
    loop
      v_to := (
        select max(c.position)
        from (
          select r.position from messages.load_row as r
          where r.attempt = v_attempt and r.position > v_last
          order by r.position
          limit 10000
        ) as c
      );
      exit when v_to is null;
      for v_run in
        select array_agg(s.message::jsonb order by s.position) as messages,
          array_agg(s.key order by s.position) as keys, min(s.type) as type,
          min(s.headers) as headers,
          bool_or(
            s.priority <> 0 or s.available_at > now() or s.delay > 0 or s.dedup_key is not null
            or s.max_attempts is not null
          ) as is_more
        from (
          select c.*, sum(c.is_first) over (order by c.position) as number
          from (
            select r.*,
              ((r.type, r.headers) is distinct from (
                lag(r.type) over along, lag(r.headers) over along
              ))::integer as is_first
            from messages.load_row as r
            where r.attempt = v_attempt
              and r.position > v_last
              and r.position <= v_to
              and r.queue = _publish_staged_events.stream
            window along as (order by r.position)
          ) as c
        ) as s
        group by s.number
        order by s.number
      loop
        perform messages._check_plain(0, v_run.is_more, false, null) where v_run.is_more;
        v_published := v_published + cardinality(
          messages._publish_events(
            stream, v_run.messages, v_run.keys, v_run.type, v_run.headers::jsonb
          )
        );
      end loop;
      v_last := v_to;
    end loop;
  end loop;
  return v_published;
end;
$$;
