"""Checks of the install: is it whole, who may do what with it, and does somebody look after it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq import sql
from notifyq.admin import Admin
from notifyq.config import DatabaseSettings
from notifyq.database import Database
from notifyq.doctor.finding import fail, lasting, ok, skipped, warn
from notifyq.errors import SchemaError

if TYPE_CHECKING:
    from notifyq.doctor.finding import Finding, Look

_LATE = timedelta(minutes=2)
"""pg_cron up to 1.4 comes by once a minute."""
_LONG_WAIT = timedelta(minutes=10)
_INIT = "run `notifyq init` as the owner of schema messages"


async def check_schema(look: Look) -> Finding:
    """Whether the schema is one that this package works with."""
    try:
        async with Database(look.dsn, settings=DatabaseSettings.load(pool_size=1)) as database:
            await Admin(database).check_schema()
    except SchemaError as error:
        found, _, advice = str(error).rpartition(": ")
        return fail(found, advice)
    version = await look.value(sql.VERSION)
    return ok(f"schema version {version}, this package needs {sql.SCHEMA_VERSION}")


async def check_whole(look: Look) -> Finding:
    """Whether triggers, indexes and today's partition are there."""
    row = await look.diagnosis()
    if row["missing"]:
        return fail(f"missing: {', '.join(row['missing'])}", _INIT)
    if row["misplaced"]:
        return warn(
            f"{row['misplaced']} archived messages are in no partition of a day",
            "let messages.maintain() run: it makes their days",
        )
    return ok("triggers, indexes and partitions are there")


async def check_origin(look: Look) -> Finding:
    """Whether the database came from another server, as a backup does."""
    row = await look.diagnosis()
    if row["is_foreign"]:
        return warn(
            "restored from the backup of another server, so that positions of readers are refused",
            "run `notifyq migrate --adopt`",
        )
    return ok("this database is of this server")


async def check_public(look: Look) -> Finding:
    """Whether everybody may do something in the schema."""
    opened = await look.value("""
        select string_agg(o.what, ', ')
        from (
          select p.oid::regprocedure::text as what
          from pg_proc as p
          cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as x
          where p.pronamespace = to_regnamespace('messages') and x.grantee = 0
          union all
          select c.oid::regclass::text
          from pg_class as c
          cross join lateral aclexplode(c.relacl) as x
          where c.relnamespace = to_regnamespace('messages') and x.grantee = 0
            and c.relkind in ('r', 'p', 'v', 'S')
          union all
          select 'the schema'
          from pg_namespace as n
          cross join lateral aclexplode(n.nspacl) as x
          where n.nspname = 'messages' and x.grantee = 0
        ) as o
    """)
    if opened:
        return fail(f"open to PUBLIC: {opened}", _INIT)
    name = await look.value("""
        select quote_ident(d.datname)
        from pg_database as d
        cross join lateral aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) as x
        where d.datname = current_database() and x.grantee = 0 and x.privilege_type = 'CONNECT'
    """)
    if name:
        return warn(
            "every user of the server may connect, hear bells and ring them",
            f"revoke connect on database {name} from public, and grant it to those who need it",
        )
    return ok("nothing is open to PUBLIC")


async def check_owner(look: Look) -> Finding:
    """With whose rights the functions act."""
    row = await look.row("""
        select o.name, coalesce(r.rolsuper, false) as is_super,
          coalesce(r.rolcanlogin, false) as may_login
        from (
          select max(n.nspowner::regrole::text) as name, max(n.nspowner::bigint)::oid as oid
          from pg_namespace as n where n.nspname = 'messages'
        ) as o
        left join pg_roles as r on r.oid = o.oid
    """)
    owner = row["name"]
    if owner is None:
        return skipped("there is no schema", "run `notifyq init`")
    if row["is_super"]:
        return warn(
            f"the owner {owner} is a superuser",
            "let a role of less power own it: a mistake in a function would be a superuser's",
        )
    if row["may_login"]:
        return warn(f"the owner {owner} can log in", "let a role without login own the schema")
    return ok(f"the owner is {owner}, which cannot log in")


async def check_roles(look: Look) -> Finding:
    """Whether the group roles are there."""
    lacking = await look.value("""
        select string_agg(g.name, ', ')
        from unnest(array['notifyq_publisher', 'notifyq_worker', 'notifyq_reader', 'notifyq_admin'])
          as g (name)
        where to_regrole(g.name) is null
    """)
    if lacking:
        return warn(f"there is no role {lacking}", "run `notifyq init` as one with CREATEROLE")
    return ok("the group roles are there")


async def check_upkeep(look: Look) -> Finding:
    """Whether expired locks are ended and due messages staged."""
    row = await look.diagnosis()
    late: timedelta | None = max(
        filter(None, (row["expired_for"], row["overdue_for"])), default=None
    )
    if late is not None and late > _LATE:
        return fail(
            f"nobody has ended a lock, or staged a message, for {lasting(late)}",
            "start a worker or pg_cron: one of them must run messages.maintain()",
        )
    return ok("locks that expire are ended" if late is None else f"{lasting(late)} behind")


async def check_schedules(look: Look) -> Finding:
    """Whether schedules fire."""
    schedules = await look.connection.fetch(sql.SCHEDULE_INFO, None)
    for schedule in schedules:
        if schedule["failed_at"] is not None and schedule["enabled"]:
            return fail(
                f"schedule {schedule['name']} cannot fire: {schedule['last_error']}",
                "mend it, or see `notifyq schedules` to redefine, disable or remove it",
            )
    now = await look.value("select clock_timestamp()")
    late = [now - it["next_at"] for it in schedules if it["enabled"] and it["next_at"] < now]
    if late and max(late) > _LATE:
        return fail(
            f"a schedule is due for {lasting(max(late))} and nobody fires it",
            "start a worker or pg_cron: one of them must run messages.maintain()",
        )
    count = sum(it["enabled"] for it in schedules)
    return ok(f"{count} of {len(schedules)} schedules are enabled" if schedules else "none")


async def check_backlog(look: Look) -> Finding:
    """For how long messages wait."""
    row = await look.diagnosis()
    waiting: timedelta | None = row["waiting_for"]
    if waiting is None:
        return ok("no message waits")
    found = f"the message next in turn has waited for {lasting(waiting)}"
    if waiting > _LONG_WAIT:
        return warn(found, "see `notifyq queues`: too few workers, or none for that queue")
    return ok(found)


async def check_cron(look: Look) -> Finding:
    """Whether the upkeep runs with no worker alive."""
    workers = await look.value(
        "select count(*) from pg_stat_activity as a "
        "where a.datname = current_database() and a.application_name = 'notifyq worker'"
    )
    version = await look.value(
        "select e.extversion from pg_extension as e where e.extname = 'pg_cron'"
    )
    if version is None:
        if workers:
            return ok(f"no pg_cron in this database: the upkeep is that of {workers} sessions")
        return warn(
            "neither pg_cron in this database nor a worker",
            "start a worker, or set pg_cron up, else expired locks are never ended",
        )
    row = await look.connection.fetchrow("""
        select j.active, j.schedule, d.status, d.return_message, now() - d.start_time as age
        from cron.job as j
        left join lateral (
          select r.* from cron.job_run_details as r
          where r.jobid = j.jobid and r.end_time is not null order by r.runid desc limit 1
        ) as d on true
        where j.jobname = 'notifyq maintain' and j.database = current_database()
        order by j.active desc
        limit 1
    """)
    if row is None:
        return warn(
            f"pg_cron {version} has no entry `notifyq maintain` that {await _me(look)} may see",
            "run `notifyq init` as a user who may use pg_cron; a superuser sees all entries",
        )
    if not row["active"]:
        return warn("the entry `notifyq maintain` is switched off", "select cron.alter_job(…)")
    if row["status"] == "failed":
        return fail(
            f"the last run of pg_cron failed: {' '.join((row['return_message'] or '').split())}",
            "see the page on operations, section pg_cron: how it connects, and as whom",
        )
    if row["status"] is not None and row["age"] > 2 * _LATE:
        return warn(f"pg_cron ran {lasting(row['age'])} ago", "see whether its process is alive")
    if row["schedule"] == "* * * * *":
        return _minutes(version)
    return ok(f"pg_cron {version} runs the upkeep: {row['schedule']}")


def _minutes(version: str) -> Finding:
    number = tuple(int(part) for part in version.split("-")[0].split("."))
    if number < (1, 5):
        return ok(f"pg_cron {version} runs the upkeep once a minute: 1.5 knows seconds")
    return warn(
        f"pg_cron {version} runs the upkeep once a minute only",
        "run `notifyq init` again: this version knows seconds",
    )


async def _me(look: Look) -> str:
    return str(await look.value("select current_user"))


CHECKS = {
    "schema": check_schema,
    "install": check_whole,
    "origin": check_origin,
    "roles": check_roles,
    "public": check_public,
    "owner": check_owner,
    "cron": check_cron,
    "upkeep": check_upkeep,
    "schedules": check_schedules,
    "backlog": check_backlog,
}
