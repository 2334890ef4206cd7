-- Depend: messages that wait for the end of others.
--
-- Whoever publishes such a message locks those that it waits for against their end until it
-- commits; whoever ends one of them looks for what waits for it afterwards, see 55_resolve.sql. A
-- finisher with an older snapshot (repeatable read) looks in vain, and the upkeep does it instead.
--
-- owns:    nothing
-- writes:  messages.message, messages.dependency
-- calls:   messages._invalid, messages._may, messages._has_role, messages._check_access,
--          messages._resolve, messages._ring, messages._barred_queues
-- raises:  NQ002 message not found, NQ003 invalid argument, NQ007 no right to the queue

-- Lock the messages that others are to wait for, and return those that have ended, as dependencies
-- of no message.
create or replace function messages._predecessors(after bigint[], on_failure text)
  returns messages.dependency[]
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
declare
  v_live bigint[];
  v_busy bigint;
  v_queues text[];
  v_ended messages.dependency[];
  v_ended_queues text[];
  v_rest bigint[];
  v_lost bigint;
  v_queue text;
begin
  if (on_failure in ('cancel', 'run', 'hold')) is not true then
    perform messages._invalid(
      format('on_failure must be cancel, run or hold, not %s', coalesce(on_failure, 'null'))
    );
  end if;
  if cardinality(after) > 100000 then
    perform messages._invalid('a message can wait for 100000 others at most');
  end if;
  loop
    begin
      with locked as materialized (
        select m.id, m.queue from messages.message as m
        where m.id = any (_predecessors.after)
        order by m.id
        for key share skip locked
      )
      select coalesce(array_agg(l.id), '{}'), coalesce(array_agg(distinct l.queue), '{}')
      into v_live, v_queues
      from locked as l;
      v_rest := array(
        select u.id from unnest(_predecessors.after) as u (id)
        except
        select l.id from unnest(v_live) as l (id)
      );
      v_busy := (select min(m.id) from messages.message as m where m.id = any (v_rest));
      exit when v_busy is null;
      raise exception 'let go';
    exception
      when raise_exception then
        null;
    end;
    -- A finisher holds what it ends before it comes to what waits for that: whoever waits for it
    -- must hold none, or some publisher or other holds, time and again, what it comes to.
    begin
      perform from messages.message as m where m.id = v_busy for key share;
      raise exception 'let go';
    exception
      when raise_exception then
        null;
    end;
  end loop;
  if exists (select from messages.queue as q where q.name = any (v_queues) and not q.durable) then
    perform messages._invalid(
      'nothing can wait for a message of a queue that is not durable: it may be gone',
      'make the queue durable'
    );
  end if;
  -- Afterwards: one that ended while we waited for its lock is in the archive.
  select
    coalesce(
      array_agg(row(null, a.id, null, a.status, null, null, null)::messages.dependency), '{}'
    ),
    coalesce(array_agg(distinct a.queue), '{}')
  into v_ended, v_ended_queues
  from messages.message_archive as a
  where a.id = any (v_rest);
  select r.id into v_lost
  from (
    select u.id from unnest(v_rest) as u (id)
    except
    select e.after_id from unnest(v_ended) as e
  ) as r
  limit 1;
  if found then
    raise exception using
      errcode = 'NQ002',
      message = format('there is no message %s to run after', coalesce(v_lost::text, 'null')),
      hint = 'its id is wrong, it is not committed yet, or the archive does not keep it any more';
  end if;
  -- How a message ended is for those to know who may publish into its queue or consume from it.
  if exists (select from messages.queue_grant) and not messages._has_role('notifyq_reader') then
    foreach v_queue in array v_queues || v_ended_queues
    loop
      if not messages._may(v_queue, 'publish into') then
        perform messages._check_access(v_queue, 'consume from');
      end if;
    end loop;
  end if;
  return v_ended;
end;
$$;

-- Note what messages wait for that were published just now, and end the wait for what has ended.
create or replace function messages._depend(
  ids bigint[],
  after bigint[],
  on_failure text,
  due timestamptz,
  delay interval,
  ended messages.dependency[]
)
  returns void
  language plpgsql
as $$
begin
  insert into messages.dependency (message_id, after_id, position, on_failure, available_at, delay)
  select u.id, a.id, a.position, _depend.on_failure, _depend.due, _depend.delay
  from unnest(_depend.ids) as u (id)
  cross join unnest(_depend.after) with ordinality as a (id, position)
  order by u.id, a.id;
  if ended <> '{}' then
    perform messages._resolve(
      array(select e.after_id from unnest(ended) as e order by e.after_id),
      array(select e.status from unnest(ended) as e order by e.after_id)
    );
  end if;
end;
$$;

create or replace function messages.dependencies(id bigint)
  returns setof messages.message_report
  language plpgsql
  stable
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
  set jit = off
as $$
declare
  v_barred text[] := case
    when messages._has_role('notifyq_reader') then '{}' else messages._barred_queues() end;
begin
  return query
  select d.after_id, coalesce(m.queue, a.queue),
    coalesce(a.status::text, m.state::text, d.status::text),
    coalesce(a.attempts, m.attempts), coalesce(a.available_at, m.available_at),
    a.archived_at,
    case when a.queue <> all (v_barred) then a.details end,
    case when a.queue <> all (v_barred) then a.result end
  from messages.dependency as d
  left join messages.message as m on m.id = d.after_id
  left join messages.message_archive as a on a.id = d.after_id
  where d.message_id = dependencies.id
  order by d.position;
end;
$$;
comment on function messages.dependencies(bigint) is
  'What a message waits for or has waited for, in the order of its publication: the state of each, '
  'or how it ended, with its result. Of one in a queue from which the caller may not consume '
  'without details and result. None once the message itself has succeeded.';

create or replace function messages.unblock(id bigint)
  returns boolean
  language plpgsql
  security definer
  set search_path = pg_catalog, messages, pg_temp
  set enable_seqscan = off
as $$
declare
  v_name text;
  v_queue messages.queue;
begin
  update messages.message as m
  set blockers = null,
    state = 'waiting',
    available_at = now()
  where m.id = unblock.id
    and m.blockers is not null
  returning m.queue into v_name;
  if not found then
    return false;
  end if;
  delete from messages.dependency as d
  where d.message_id = unblock.id
    and d.status is null;
  select q.* into v_queue from messages.queue as q where q.name = v_name;
  perform messages._ring(v_queue, unblock.id::text);
  return true;
end;
$$;
comment on function messages.unblock(bigint) is
  'Make a message due now that waits for others, whether or not they have ended. False: it waits '
  'for none. To give it up instead, cancel() it.';
