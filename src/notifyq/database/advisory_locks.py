"""Statements for advisory locks of a session, which end with it.

The session that holds the lock of a member of a subscription serves it. All sessions that stand by
for a subscription with several members share another lock.
"""

LEAD = """
select array(
  select pg_try_advisory_lock(hashtextextended(u.name, 7305427006))
  from unnest($1::text[]) with ordinality as u (name, number)
  order by u.number)
"""
LEAD_ONE_OF_EACH = """
select array(
  select (
    select u.name
    from unnest($1::text[], $2::integer[]) as u (name, choice)
    where case when u.choice = c.choice
      then pg_try_advisory_lock(hashtextextended(u.name, 7305427006)) end
    limit 1)
  from (select distinct u.choice from unnest($2::integer[]) as u (choice)) as c)
"""
"""Lock the first free one of the names $1 that have the same number in $2; return their names."""
LEAD_IN_TRANSACTION = LEAD_ONE_OF_EACH.replace("try_advisory_lock", "try_advisory_xact_lock")
UNLEAD = """
select count(pg_advisory_unlock(hashtextextended(u.name, 7305427006)))
from unnest($1::text[]) as u (name)
"""
STAND_BY = "select pg_try_advisory_lock_shared(hashtextextended($1, 7305427006))"
STAND_DOWN = "select pg_advisory_unlock_shared(hashtextextended($1, 7305427006))"
OTHERS = """
with lock as (
  select l.pid, l.mode, l.classid::bigint << 32 | l.objid::bigint as key
  from pg_locks as l
  join pg_database as d on d.oid = l.database and d.datname = current_database()
  where l.locktype = 'advisory' and l.objsubid = 1 and l.granted and l.pid <> pg_backend_pid()
), member as (
  select l.pid, u.number
  from lock as l
  join unnest($2::text[]) with ordinality as u (name, number)
    on hashtextextended(u.name, 7305427006) = l.key
  where l.mode = 'ExclusiveLock'
)
select array[(select count(*) from member as m where m.number <= $3), min(w.members)]
  || array_agg(w.pid::bigint order by w.pid) filter (where w.pid is not null)
from (
  select s.pid, (select count(*) from member as m where m.pid = s.pid) as members
  from lock as s
  where s.mode = 'ShareLock' and s.key = hashtextextended($1, 7305427006)
) as w
"""
"""An array: how many of the first $3 members of $2 other sessions serve; the fewest that a session
with lock $1 serves; and the process ids of those sessions."""
