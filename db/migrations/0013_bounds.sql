-- Bounds: instants, durations and numbers that every reader can hold; older rows get them too.
-- breaking: no
-- needs: owner
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

-- Functions that this version no longer has, or has with another signature or result, in one list.
do $$
declare
  v_function regprocedure;
begin
  for v_function in
    select to_regprocedure('messages.' || f.signature)
    from (
      values
        ('_check_type(regtype)'),
        ('_payload_type(text)'),
        ('_read_text(text, regtype)'),
        ('_requeue(messages.message, messages.queue, interval, text)'),
        ('_note_attempt(messages.message, messages.message_status, timestamptz, text, text, text)'),
        ('_attempts_of(messages.message, messages.queue)'),
        ('_expiry(messages.message)')
    ) as f (signature)
    where to_regprocedure('messages.' || f.signature) is not null
  loop
    execute format('drop function %s', v_function);
  end loop;
end;
$$;

-- Captures that cannot work say why.
do $$
begin
  if not exists (
    select from pg_attribute as a
    where a.attrelid = 'messages.capture_report'::regclass and a.attname = 'problem'
  ) then
    alter type messages.capture_report add attribute problem text;
  end if;
end;
$$;

-- What a session has announced is kept where its user cannot set it.
create sequence if not exists messages.announced_first_seq;
create sequence if not exists messages.announced_last_seq;
create sequence if not exists messages.announced_queue_seq;
create sequence if not exists messages.session_key_seq;

-- Lakes: why the last export could not read one, so that retention does not trust it.
alter table messages.lake add column if not exists unreadable text;
comment on column messages.lake.unreadable is
  'Why the last export could not read it; retention waits until one can. Null: it could.';

-- Batches: the ticks between which they lie, and how far behind they are.
alter type messages.batch_report
  add attribute previous_tick bigint,
  add attribute tick bigint,
  add attribute previous_tick_at timestamptz,
  add attribute tick_at timestamptz,
  add attribute lag interval;

-- Queues: limits that overflow nowhere. Beyond a thousand million there is none.
update messages.queue as q
set concurrency = case when q.concurrency <= 1000000000 then q.concurrency end,
  key_concurrency = case when q.key_concurrency <= 1000000000 then q.key_concurrency end,
  capacity = case when q.capacity <= 1000000000 then q.capacity end,
  rate_burst = case when q.rate_burst <= 1000000000 then q.rate_burst end,
  key_rate_burst = case when q.key_rate_burst <= 1000000000 then q.key_rate_burst end,
  rate = case
    when q.rate <= 1000000000 and q.rate <= 1e9 * extract(epoch from q.rate_period) then q.rate end,
  key_rate = case
    when q.key_rate <= 1000000000 and q.key_rate <= 1e9 * extract(epoch from q.key_rate_period)
      then q.key_rate end;
update messages.queue as q
set rate_burst = case
    when q.rate_burst * extract(epoch from q.rate_period) > 31557600000.0 * q.rate then null
    else q.rate_burst end,
  key_rate_burst = case
    when q.key_rate_burst * extract(epoch from q.key_rate_period) > 31557600000.0 * q.key_rate
      then null
    else q.key_rate_burst end;

do $$
begin
  if not exists (
    select from pg_constraint as k
    where k.conrelid = 'messages.queue'::regclass and k.conname = 'queue_rates_ck'
  ) then
    alter table messages.queue
      add constraint queue_limits_most_ck check (
        greatest(
          concurrency, key_concurrency, rate, rate_burst, key_rate, key_rate_burst, capacity
        ) <= 1000000000
      ),
      add constraint queue_rates_ck check (
        rate <= 1e9 * extract(epoch from rate_period)
        and key_rate <= 1e9 * extract(epoch from key_rate_period)
        and rate_burst * extract(epoch from rate_period) <= 31557600000.0 * rate
        and key_rate_burst * extract(epoch from key_rate_period) <= 31557600000.0 * key_rate
      );
  end if;
end;
$$;

-- What is staged: a delay that overflows nowhere.
update messages.load_row as r
set delay = case when r.delay > 0 then 31557600000 end
where not r.delay between -31557600000 and 31557600000;

do $$
begin
  if not exists (
    select from pg_constraint as k
    where k.conrelid = 'messages.load_row'::regclass and k.conname = 'load_row_delay_ck'
  ) then
    alter table messages.load_row
      add constraint load_row_delay_ck check (delay between -31557600000 and 31557600000);
  end if;
end;
$$;

-- Schemas that are no JSON, and workers that serve lists of lists: readers of all rows failed.
do $$
declare
  v_table text;
  v_row record;
begin
  foreach v_table in array array['queue', 'stream'] loop
    for v_row in execute format(
      'select t.name, t.payload_schema from messages.%I as t where t.payload_schema is not null',
      v_table
    ) loop
      begin
        continue when jsonb_typeof(v_row.payload_schema::jsonb) in ('object', 'boolean');
      exception
        when invalid_text_representation then
          null;
      end;
      execute format(
        'update messages.%I set payload_schema = null where name = %L', v_table, v_row.name
      );
    end loop;
    if not exists (
      select from pg_constraint as k where k.conname = v_table || '_payload_schema_ck'
    ) then
      execute format(
        'alter table messages.%I add constraint %I '
        'check (jsonb_typeof(payload_schema::jsonb) in (%L, %L))',
        v_table, v_table || '_payload_schema_ck', 'object', 'boolean'
      );
    end if;
  end loop;
  if not exists (select from pg_constraint as k where k.conname = 'worker_lists_ck') then
    delete from messages.worker as w
    where coalesce(array_ndims(w.queues), 1) > 1 or coalesce(array_ndims(w.streams), 1) > 1
      or array_position(array_cat(w.queues, w.streams), null) is not null;
    alter table messages.worker add constraint worker_lists_ck check (
      coalesce(array_ndims(queues), 1) = 1 and coalesce(array_ndims(streams), 1) = 1
      and array_position(queues, null) is null and array_position(streams, null) is null
    );
  end if;
end;
$$;

-- The instants, days and durations of all tables: 21b_bounds.sql changes the rows that are out of
-- bounds, and adds the checks.
