"""Statements for locks of a session: they end with it, whatever happens.

Who has the lock of a place in a subscription serves it. Where there are several places, all who
stand by for one share another lock.
"""

LEAD = """
select array(
  select pg_try_advisory_lock(hashtextextended(u.name, 7305427006))
  from unnest($1::text[]) with ordinality as u (name, place)
  order by u.place)
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
"""Of names $1 with the same number in $2 take the first one that is free; which those are."""
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
), place as (
  select l.pid, u.number
  from lock as l
  join unnest($2::text[]) with ordinality as u (name, number)
    on hashtextextended(u.name, 7305427006) = l.key
  where l.mode = 'ExclusiveLock'
)
select array[(select count(*) from place as p where p.number <= $3), min(w.places)]
  || array_agg(w.pid::bigint order by w.pid) filter (where w.pid is not null)
from (
  select s.pid, (select count(*) from place as p where p.pid = s.pid) as places
  from lock as s
  where s.mode = 'ShareLock' and s.key = hashtextextended($1, 7305427006)
) as w
"""
"""How many of the first $3 places of $2 others have; of those who stand by at $1, how many places
that has which has fewest, and who they are."""
