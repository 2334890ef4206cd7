-- Doctor: what is wrong with an install, and how long overdue work has waited.

-- What an install must have and this one does not, one text for each.
create or replace function notifyq.missing_objects()
  returns text[] language plpgsql stable
as $$
begin
  return array(
    select 'trigger ' || t.name
    from (
      values
        ('messages.message', 'published', true), ('messages.message', 'schedule', true),
        ('messages.message', 'bound', true), ('messages.message_archive', 'process_archived', true),
        ('messages.message', 'admit', exists (select from messages.queue_grant)),
        (
          'messages.message', 'capacity',
          exists (select from messages.queue as q where q.capacity is not null)
        ),
        (
          'messages.message', 'payload',
          exists (
            select from messages.queue as q
            where q.encrypted or coalesce(q.payload_type, q.payload_schema) <> ''
          )
        ),
        (
          'messages.message_archive', 'sealed',
          exists (select from messages.queue as q where q.encrypted)
        ),
        (
          'messages.message', 'a_divert',
          exists (select from messages.queue as q where not q.durable)
        )
    ) as t (relation, name, is_needed)
    where t.is_needed and not exists (
      select from pg_trigger as g
      where g.tgrelid = to_regclass(t.relation) and g.tgname = t.name and g.tgenabled = 'O'
    )
    union all
    select 'index ' || i.name
    from (
      values ('messages.message_waiting_idx'), ('messages.message_scheduled_idx'),
        ('messages.message_locked_idx'), ('messages.message_dedup_key_uq'),
        ('messages.message_key_waiting_idx'), ('messages.message_key_idx'),
        ('messages.message_archive_xid_idx'), ('notifyq.redrive_archive_id_pk'),
        (
          case when exists (select from messages.queue as q where q.aging is not null)
            then 'messages.message_aging_idx' end
        )
    ) as i (name)
    where i.name is not null and not exists (
      select from pg_index as x
      where x.indexrelid = to_regclass(i.name) and x.indisvalid
    )
    union all
    select 'an archive partition for today'
    where to_regclass(
      'notifyq.' || notifyq.partition_name((clock_timestamp() at time zone 'UTC')::date)
    ) is null
  );
end;
$$;

create or replace function notifyq.diagnose(
  out missing text[],
  out is_foreign boolean,
  out expired_for interval,
  out overdue_for interval,
  out waiting_for interval,
  out misplaced bigint,
  out failing text[]
)
  returns record language plpgsql stable security definer
  set search_path = pg_catalog, pg_temp
  set enable_seqscan = off set jit = off
as $$
declare
  v_now timestamptz := clock_timestamp();
begin
  missing := notifyq.missing_objects();
  is_foreign := notifyq.is_foreign(notifyq.current_origin());
  expired_for := (
    select v_now - min(m.lock_expires_at)
    from messages.message as m
    where m.state = 'locked'
      and m.lock_expires_at <= v_now
  );
  select max(v_now - nullif(w.available_at, 'infinity')),
    max(v_now - nullif(s.available_at, 'infinity'))
  into waiting_for, overdue_for
  from messages.queue as q
  left join lateral (
    -- The next message to be claimed: lower priorities may wait for any time.
    select m.available_at
    from messages.message as m
    where m.queue = q.name and m.state = 'waiting'
    order by m.priority desc, m.id
    limit 1
  ) as w on true
  left join lateral (
    select m.available_at
    from messages.message as m
    where m.queue = q.name and m.state = 'scheduled' and m.available_at <= v_now
    order by m.available_at
    limit 1
  ) as s on true
  where not notifyq.is_paused(q);
  misplaced := (select count(*) from notifyq.message_archive_default);
  failing := array(
    select f.error from notifyq.failing_duties() as f where f.failures > 0 order by f.duty
  );
end;
$$;
comment on function notifyq.diagnose is
  'What `notifyq doctor` checks. missing: triggers, indexes and partitions that an install must '
  'have and this one does not; is_foreign: it came from another server and has not been adopted; '
  'expired_for: how long the oldest expired lock has not been reaped; overdue_for: how long the '
  'oldest due message has not been staged; waiting_for: how long the next message to be claimed '
  'has waited, the longest of all queues that are not paused; misplaced: how many archived '
  'messages are in no partition of a day; failing: the steps of maintenance whose last run failed. '
  'Null where there is none.';
