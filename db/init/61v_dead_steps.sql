-- Dead steps: count, publish again or delete all dead messages for which conditions hold.
--
-- By steps, each a transaction of its own: a call that publishes a million messages would hold all
-- of them until its end, and whoever waits for it would not know how far it is.
--
-- owns:    nothing
-- writes:  nothing itself, see messages.dead_retry and messages.dead_delete
-- calls:   messages._check_quantity, messages._conditions, messages._invalid,
--          messages._search_archive, messages.dead_retry, messages.dead_delete
-- raises:  NQ003 invalid argument

-- From the oldest up, so that messages keep their order when they are published again.
create or replace function messages._find_dead(
  conditions jsonb,
  quantity integer,
  place_at timestamptz,
  place_id bigint,
  budget interval,
  out _ids bigint[],
  out _at timestamptz,
  out _id bigint
)
  language plpgsql
  stable
  set enable_seqscan = off
  set enable_hashjoin = off
  set enable_mergejoin = off
as $$
declare
  c messages.search_conditions := messages._conditions(
    conditions, array['dead', 'rejected', 'failed', 'lock_expired']
  );
begin
  perform messages._check_quantity(_find_dead.quantity, 100000);
  if c.until_at is null then
    perform messages._invalid(
      'say until when: what dies from then on is left out',
      'else a message that dies again would be published again and again'
    );
  end if;
  c.state := coalesce(c.state, 'dead');
  select f._ids, f._at, f._id
  into _ids, _at, _id
  from messages._search_archive(c, quantity, place_at, place_id, budget, true) as f;
  _ids := array(
    select u.id from unnest(_ids) as u (id)
    where not exists (select from messages.redrive as r where r.archive_id = u.id)
  );
end;
$$;

create or replace function messages._step(found bigint[], done bigint, at timestamptz, id bigint)
  returns messages.step_report
  language sql
  immutable
as $$
  select cardinality(found)::bigint, done, at, id, at is null;
$$;

create or replace function messages.dead_matching(
  conditions jsonb,
  quantity integer default 10000,
  place_at timestamptz default null,
  place_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
begin
  return (
    select messages._step(f._ids, 0, f._at, f._id)
    from messages._find_dead(conditions, quantity, place_at, place_id, budget) as f
  );
end;
$$;
comment on function messages.dead_matching(
  jsonb, integer, timestamptz, bigint, interval
) is
  'How many dead messages dead_retry_matching() or dead_delete_matching() would find with these '
  'conditions: up to quantity, within about budget. is_over: these are all; else place_at and '
  'place_id are where to go on. Raises NQ003.';

create or replace function messages.dead_retry_matching(
  conditions jsonb,
  quantity integer default 1000,
  place_at timestamptz default null,
  place_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_found bigint[];
  v_at timestamptz;
  v_id bigint;
  v_ids bigint[];
begin
  select f._ids, f._at, f._id
  into v_found, v_at, v_id
  from messages._find_dead(conditions, quantity, place_at, place_id, budget) as f;
  -- What was dropped is passed over, else its messages would stop all the others.
  v_ids := array(
    select a.id
    from messages.message_archive as a
    where a.id = any (v_found)
      and (
        a.subscriber is null
        and exists (select from messages.queue as q where q.name = a.queue)
        or a.event_id is not null
        and exists (
          select from messages.stream as s
          join messages.subscription as u on u.stream = s.id
          where s.name = a.queue and u.name = a.subscriber
        )
      )
    order by a.id
  );
  return messages._step(
    v_found, (select count(*) from messages.dead_retry(variadic v_ids)), v_at, v_id
  );
end;
$$;
comment on function messages.dead_retry_matching(
  jsonb, integer, timestamptz, bigint, interval
) is
  'One step of publishing dead messages again, as dead_retry() does and each once: the oldest '
  'first, up to quantity of those for which the conditions hold, see search_archive(); until must '
  'be among them, so that what dies again is left. Returns how many were found, how many of them '
  'were published (done; the others have lost their queue or subscription, or somebody else was '
  'first), and where the next step goes on, unless it is_over. Raises NQ003.';

create or replace function messages.dead_delete_matching(
  conditions jsonb,
  quantity integer default 1000,
  place_at timestamptz default null,
  place_id bigint default null,
  budget interval default '1 second'
)
  returns messages.step_report
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  v_found bigint[];
  v_at timestamptz;
  v_id bigint;
begin
  select f._ids, f._at, f._id
  into v_found, v_at, v_id
  from messages._find_dead(conditions, quantity, place_at, place_id, budget) as f;
  return messages._step(v_found, messages.dead_delete(variadic v_found), v_at, v_id);
end;
$$;
comment on function messages.dead_delete_matching(
  jsonb, integer, timestamptz, bigint, interval
) is
  'One step of deleting dead messages for good, as dead_delete() does: arguments and result as of '
  'dead_retry_matching(). What was published again is left. Raises NQ003.';
