-- Sessions: who holds old snapshots, who is in a transaction for long, and who waits for whom.
--
-- These run as their caller: what it may see of the sessions of others is the server's to decide.
-- Without pg_read_all_stats that is neither their snapshots nor their queries.
--
-- owns:    nothing
-- writes:  nothing
-- calls:   nothing
-- raises:  nothing

create or replace function messages.holders(most integer default 50)
  returns setof messages.session_report
  language plpgsql
  stable
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  -- A comment in slashes, as a statement may follow it. A transaction of an application has the
  -- name `notifyq`, a command or a worker of ours a longer one: it ends by itself.
  v_ours text := 'select state, query from pg_stat_activity where pid = %s /* of notifyq itself: '
    'do not end it */';
  -- To be run there.
  v_standby text := 'select pg_terminate_backend(a.pid) from pg_stat_activity as a '
    'where a.pid <> pg_backend_pid() and a.backend_xmin is not null '
    'order by age(a.backend_xmin) desc limit 1 -- on the standby';
begin
  return query
  select h.cause, h.name, h.pid, h.user_name, h.application, h.state, h.since_at, h.xmin_age,
    null::text, null::integer[], h.query, h.advice
  from (
    select 'session' as cause, format('session %s', a.pid) as name, a.pid,
      a.usename::text as user_name, a.application_name as application, a.state,
      a.xact_start as since_at,
      -- A reader elsewhere holds nothing of this database. A writer does: until it ends, each new
      -- snapshot here begins with it.
      case
        when a.datname = current_database() then age(a.backend_xmin)
        else age(a.backend_xid)
      end::bigint as xmin_age,
      left(a.query, 1000) as query,
      format(
        case
          when a.application_name ~ '^notifyq |^pg_cron$' then v_ours
          else 'select pg_terminate_backend(%s)'
        end, a.pid
      ) as advice
    from pg_stat_activity as a
    where a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
    union all
    select 'prepared transaction', p.gid, null, p.owner::text, null, 'prepared', p.prepared,
      age(p.transaction)::bigint, null,
      format('rollback prepared %L -- or commit prepared', p.gid)
        || case
          when p.database <> current_database() then format(', in database %s', p.database)
          else ''
        end
    from pg_prepared_xacts as p
    union all
    select 'replication slot', s.slot_name::text, s.active_pid, null, s.plugin::text,
      case when s.active then 'active' else 'abandoned' end, null, age(s.xmin)::bigint, null,
      case
        when s.active then v_standby || ' that uses it'
        else format('select pg_drop_replication_slot(%L)', s.slot_name)
      end
    from pg_replication_slots as s
    union all
    select 'standby', coalesce(nullif(r.application_name, ''), r.pid::text), r.pid,
      r.usename::text, r.application_name, r.state, r.backend_start,
      age(r.backend_xmin)::bigint, null,
      v_standby || ', or alter system set hot_standby_feedback = off'
    from pg_stat_replication as r
  ) as h
  where h.xmin_age is not null
  order by h.xmin_age desc, h.since_at
  limit greatest(most, 0);
end;
$$;
comment on function messages.holders(integer) is
  'What keeps vacuum from taking dead rows, the oldest first: sessions, prepared transactions, '
  'replication slots and standbys, each with how many transactions old its snapshot is (xmin_age), '
  'since when it is in that transaction (since_at) and the statement that ends it (advice); a '
  'session of notifyq itself is only shown. Of other databases those that have written: readers '
  'there hold nothing here. Sessions of other '
  'users are seen by members of pg_read_all_stats only.';

create or replace function messages.activity(most integer default 50)
  returns setof messages.session_report
  language plpgsql
  stable
  set search_path = pg_catalog, messages, pg_temp
as $$
declare
  -- As in messages.holders().
  v_ours text := 'select state, query from pg_stat_activity where pid = %s /* of notifyq itself: '
    'do not end it */';
begin
  return query
  select
    case
      when a.wait_event_type = 'Lock' then 'lock'
      when a.state like 'idle in transaction%' then 'idle'
      else 'transaction'
    end,
    format('session %s', a.pid), a.pid, a.usename::text, a.application_name, a.state,
    case
      when a.wait_event_type = 'Lock' then coalesce(k.since_at, a.query_start)
      when a.state like 'idle in transaction%' then a.state_change
      else a.xact_start
    end,
    age(a.backend_xmin)::bigint,
    case when a.wait_event_type = 'Lock' then k.what end,
    case when a.wait_event_type = 'Lock' then pg_blocking_pids(a.pid) end,
    left(a.query, 1000), (
      -- Who waits for a lock is helped by the end of those that have it.
      select string_agg(
        format(
          case
            when b.application_name ~ '^notifyq |^pg_cron$' then v_ours
            else 'select pg_terminate_backend(%s)'
          end, b.pid
        ), '; '
      )
      from pg_stat_activity as b
      where case
        when a.wait_event_type = 'Lock' then b.pid = any (pg_blocking_pids(a.pid))
        else b.pid = a.pid
      end
    )
  from pg_stat_activity as a
  left join lateral (
    select min(l.waitstart) as since_at,
      string_agg(
        concat_ws(' ', l.mode, 'of', l.locktype, (
          select c.relname from pg_class as c
          where c.oid = l.relation and l.database = a.datid
        )), ', '
      ) as what
    from pg_locks as l
    where l.pid = a.pid and not l.granted
  ) as k on a.wait_event_type = 'Lock'
  where a.datname = current_database()
    and a.pid <> pg_backend_pid()
    and a.backend_type = 'client backend'
    and a.xact_start is not null
  order by 7, a.pid
  limit greatest(most, 0);
end;
$$;
comment on function messages.activity(integer) is
  'Sessions of this database that are in a transaction, the longest first, with a cause each: '
  'lock, it waits for a lock (waits_for) that the sessions blocked_by hold; idle, nobody has sent '
  'anything in its transaction; transaction, it does something. since_at is the begin of that, '
  'advice the statement that ends it, or those that it waits for, but none of notifyq itself. '
  'Sessions of other users are seen by members of pg_read_all_stats only.';
