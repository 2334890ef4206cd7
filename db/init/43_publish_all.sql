-- Publish all: what publish() and publish_many() do where a message may be there already.
--
-- owns:    nothing
-- writes:  messages.message, messages.dedup
-- calls:   messages._queue, messages._take_keys, messages._renew, messages._check_access,
--          messages._invalid, messages._predecessors, messages._depend
-- raises:  NQ001 queue not found, NQ002 message not found, NQ003 invalid argument, NQ007 no right
--          to the queue

-- What messages have in common that are published together.
create or replace function messages._template(
  queue text,
  priority integer,
  due timestamptz,
  type text,
  headers jsonb,
  max_attempts integer,
  dedup_scope text
)
  returns messages.message
  language plpgsql
  immutable
as $$
declare
  v_template messages.message;
begin
  v_template.queue := queue;
  v_template.priority := coalesce(priority, 0);
  v_template.available_at := due;
  v_template.type := type;
  v_template.headers := coalesce(headers, '{}');
  v_template.max_attempts := max_attempts;
  v_template.dedup_scope := dedup_scope;
  return v_template;
end;
$$;

-- Publish messages that may be there already; return the ids of those that stand, in order.
create or replace function messages._publish_all(
  template messages.message,
  payloads jsonb[],
  keys text[],
  dedup_keys text[],
  dedup_window interval,
  on_duplicate text,
  after bigint[],
  on_failure text,
  due timestamptz,
  delay interval
)
  returns bigint[]
  language plpgsql
  set enable_seqscan = off
  set enable_bitmapscan = off
  set jit = off
as $$
#variable_conflict use_column
declare
  v_queue messages.queue;
  v_sequence regclass := pg_get_serial_sequence('messages.message', 'id')::regclass;
  v_new bigint[];
  v_leads boolean[];
  v_ids bigint[];
  v_each record;
  v_after bigint[];
  v_ended messages.dependency[];
begin
  v_queue := messages._queue(template.queue);
  -- The trigger `admit` does not see a message that is there already.
  if exists (select from messages.queue_grant) then
    perform messages._check_access(template.queue, 'publish into');
  end if;
  if cardinality(after) > 0 then
    if on_duplicate = 'debounce' then
      perform messages._invalid('debounce and after exclude each other');
    end if;
    if not v_queue.durable then
      perform messages._invalid('messages of a queue that is not durable wait for no others');
    end if;
    v_ended := messages._predecessors(after, on_failure);
    v_after := array(
      select u.id from unnest(after) with ordinality as u (id, position)
      group by u.id
      order by min(u.position)
    );
    template.blockers := cardinality(v_after);
    template.available_at := 'infinity';
  end if;
  -- Ids in the order of the array, but rows in the order of the keys: whoever publishes a key waits
  -- for another that does, and two that take the same keys in another order wait for ever.
  -- The number of the transaction comes before its ids, see 24_look.sql.
  perform pg_current_xact_id();
  v_new := array(select nextval(v_sequence) from generate_series(1, cardinality(payloads)));
  -- Of several with one key only one is published: the first, or else the newest.
  v_leads := array(
    select p.dedup_key is null or p.position = case on_duplicate
      when 'keep' then min(p.position) over same else max(p.position) over same end
    from unnest(dedup_keys, v_new) with ordinality as p (dedup_key, new, position)
    window same as (partition by p.dedup_key)
    order by p.position
  );
  if dedup_window is not null and on_duplicate = 'keep' then
    v_ids := messages._take_keys(
      template.queue,
      array(
        select case when p.leads then p.dedup_key end
        from unnest(dedup_keys, v_leads) with ordinality as p (dedup_key, leads, position)
        order by p.position
      ),
      v_new, dedup_window
    );
  end if;
  -- A message that was there may be finished, and its key free, before the look below: try again.
  loop
    insert into messages.message (
      id, queue, message, priority, available_at, type, headers, dedup_key, key, max_attempts,
      dedup_scope, blockers
    )
    overriding system value
    select
      p.new, template.queue, p.payload, template.priority, template.available_at, template.type,
      template.headers, p.dedup_key, p.key, template.max_attempts, template.dedup_scope,
      template.blockers
    from unnest(v_new, payloads, dedup_keys, keys, v_ids, v_leads)
      as p (new, payload, dedup_key, key, id, leads)
    where p.id is null
      and p.leads
    order by p.dedup_key, p.new
    on conflict (queue, dedup_key) where dedup_key is not null do nothing;
    v_ids := array(
      select case
        when p.id is not null or not p.leads then p.id
        when p.dedup_key is null then p.new
        else (
          select m.id
          from messages.message as m
          where m.queue = template.queue
            and m.dedup_key = p.dedup_key
        )
      end
      from unnest(v_new, dedup_keys, v_ids, v_leads) with ordinality
        as p (new, dedup_key, id, leads, position)
      order by p.position
    );
    if on_duplicate <> 'keep' then
      for v_each in
        select p.id, p.payload, p.position
        from unnest(v_ids, v_new, payloads, dedup_keys) with ordinality
          as p (id, new, payload, dedup_key, position)
        where p.id <> p.new
        order by p.dedup_key
      loop
        v_ids[v_each.position] := messages._renew(
          v_each.id, template, v_each.payload, on_duplicate, dedup_window
        );
      end loop;
    end if;
    exit when not exists (
      select from unnest(v_ids, v_leads) as p (id, leads) where p.id is null and p.leads
    );
  end loop;
  if dedup_window is not null and on_duplicate = 'keep' then
    -- One that stood already has no window of this publication's.
    delete from messages.dedup as d
    where d.queue = template.queue
      and (d.dedup_key, d.id) in (
        select p.dedup_key, p.new
        from unnest(dedup_keys, v_new, v_ids, v_leads) as p (dedup_key, new, id, leads)
        where p.id <> p.new and p.leads
      );
  end if;
  if v_after is not null then
    perform messages._depend(
      array(select u.id from unnest(v_ids, v_new) as u (id, new) where u.id = u.new),
      v_after, on_failure, due, delay, v_ended
    );
  end if;
  return array(
    select case when p.dedup_key is null then p.id else max(p.id) over same end
    from unnest(v_ids, dedup_keys) with ordinality as p (id, dedup_key, position)
    window same as (partition by p.dedup_key)
    order by p.position
  );
end;
$$;
