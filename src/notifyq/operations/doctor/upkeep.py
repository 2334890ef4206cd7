"""Checks of the upkeep: does somebody look after the queues, and are their messages handled."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations import monitor
from notifyq.operations.doctor.finding import Fix, fail, lasting, ok, skipped, warn

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

_LATE = timedelta(minutes=2)
"""pg_cron up to 1.4 comes by once a minute."""
_LONG_WAIT = timedelta(minutes=10)
_UNSERVED = timedelta(minutes=1)
"""That a message waits in a queue which no worker serves."""
_MAINTAIN = "select messages.maintain()"
_START = (
    f"start `notifyq worker MODULE:APP`, or pg_cron by `notifyq init`; until then `{_MAINTAIN}`"
)
_ENTRY = "notifyq maintain"
_SWITCH_ON = (
    "select cron.alter_job(j.jobid, active := true) from cron.job as j "
    "where j.jobname = 'notifyq maintain'"
)


async def check_upkeep(look: Look) -> Finding:
    """Whether expired locks are ended and due messages staged."""
    row = await look.diagnosis()
    late: timedelta | None = max(
        filter(None, (row["expired_for"], row["overdue_for"])), default=None
    )
    if late is not None and late > _LATE:
        return fail(
            f"nobody has ended a lock, or staged a message, for {lasting(late)}",
            _START,
            Fix((_MAINTAIN,)),
        )
    return ok("locks that expire are ended" if late is None else f"{lasting(late)} behind")


async def check_schedules(look: Look) -> Finding:
    """Whether schedules fire."""
    schedules = await look.connection.fetch(sql.SCHEDULE_INFO, None)
    for schedule in schedules:
        if schedule["failed_at"] is not None and schedule["enabled"]:
            return fail(
                f"schedule {schedule['name']} cannot fire: {schedule['last_error']}",
                "repair what it says, or stop it with "
                f"`notifyq schedules disable {shlex.quote(schedule['name'])}`",
            )
    now = await look.value("select clock_timestamp()")
    late = [now - it["next_at"] for it in schedules if it["enabled"] and it["next_at"] < now]
    if late and max(late) > _LATE:
        return fail(
            f"a schedule is due for {lasting(max(late))} and nobody fires it",
            _START,
            Fix((_MAINTAIN,)),
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


async def check_workers(look: Look) -> Finding:
    """Whether each queue in which messages wait has a worker, and all of them are well."""
    workers = await monitor.workers(look.connection)
    if silent := [it.name for it in workers if it.state == "silent"]:
        return warn(
            f"worker {silent[0]} is connected, but does nothing for 30 seconds and more",
            "see whether its process is stopped or its machine overloaded",
        )
    there = [it for it in workers if it.state in {"working", "idle", "stopping"}]
    served = {queue for it in there for queue in it.queues}
    # Clients that call the functions themselves do not say what they serve.
    served |= {message.queue for it in workers for message in it.messages}
    long_ago = datetime.now(UTC) - _UNSERVED
    for queue in await monitor.backlog(look.connection, most=1000):
        waits_since = queue.oldest_waiting_at
        if queue.paused or queue.queue in served or waits_since is None or waits_since > long_ago:
            continue
        return warn(
            f"no worker serves queue {queue.queue}, where messages wait for "
            f"{lasting(datetime.now(UTC) - waits_since)}",
            f"start one with your app in the place of MODULE:APP, as mail:app for mail.py: "
            f"`notifyq worker MODULE:APP --queue {shlex.quote(queue.queue)}`",
        )
    versions = sorted({it.version for it in there if it.version})
    if len(versions) > 1:
        return ok(f"{len(there)} workers, of versions {', '.join(versions)}")
    return ok(f"{len(there)} workers")


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
        return await _elsewhere(look)
    entries = {it.entry: it for it in await monitor.cron_entries(look.connection)}
    entry = entries.get(_ENTRY)
    if entry is None:
        if not await look.value("select has_schema_privilege('cron', 'usage')"):
            return skipped("this user may not look", "needs usage of schema cron")
        return warn(
            f"pg_cron {version} has no entry `{_ENTRY}` that {await _me(look)} may see",
            "run `notifyq init` as a user who may use pg_cron; a superuser sees all entries",
            Fix(installs=True),
        )
    runs_as = await look.row(
        "select exists (select from pg_roles as r where r.rolname = $1::text) as is_there, ("
        "select j.jobid from cron.job as j "
        "where j.jobname = $2 and j.username = $1 limit 1) as number",
        entry.user_name,
        _ENTRY,
    )
    if not runs_as["is_there"]:
        gone = f"select cron.unschedule({runs_as['number']})"
        return fail(
            f"the entry `{_ENTRY}` is of {entry.user_name}, a role that is gone: it never runs",
            f"`{gone}`, then `notifyq init`",
            Fix((gone,), installs=True),
        )
    if not entry.is_active:
        off = f"the entry `{_ENTRY}` is switched off"
        return warn(off, _SWITCH_ON, Fix((_SWITCH_ON,)))
    return _ran(version, entry, has_purge="notifyq purge" in entries)


async def _elsewhere(look: Look) -> Finding:
    """Neither worker nor pg_cron here; pg_cron may be in the one database that it is made for."""
    found = "neither pg_cron in this database nor a worker"
    row = await look.row(
        # Hidden from whoever may not read all settings.
        "select (select s.setting from pg_settings as s "
        "where s.name = 'cron.database_name') as home, "
        "format('select cron.schedule_in_database(%L, %L, %L, %L)', "
        "'notifyq maintain ' || current_database(), '* * * * *', 'select messages.maintain()', "
        "current_database()) as statement"
    )
    if row["home"] is None:
        return warn(
            found,
            "start `notifyq worker MODULE:APP`, or set pg_cron up, else expired locks are never "
            "ended",
        )
    return warn(
        f"{found}, which is in database {row['home']}",
        "start `notifyq worker MODULE:APP`, or look there whether it does the upkeep of this one, "
        f"else there `{row['statement']}`",
    )


def _ran(version: str, entry: monitor.CronEntry, *, has_purge: bool) -> Finding:
    said = " ".join((entry.last_message or "").split())
    if entry.last_status == "failed":
        return fail(
            f"the last run of pg_cron failed: {said}",
            "see the page on operations, section pg_cron: how it connects, and as whom",
        )
    age = timedelta(0)
    if entry.last_started_at is not None:
        age = datetime.now(UTC) - entry.last_started_at
    if age > 2 * _LATE:
        return warn(f"pg_cron ran {lasting(age)} ago", "see whether its process is alive")
    if entry.failed:
        return warn(
            f"{entry.failed} runs of pg_cron failed within an hour",
            "see cron.job_run_details: what it said",
        )
    if not has_purge:
        return warn(
            "pg_cron keeps a row for each of its runs, for ever: no entry `notifyq purge`",
            "run `notifyq init` again",
            Fix(installs=True),
        )
    return _pace(version, entry.schedule)


def _pace(version: str, schedule: str) -> Finding:
    if schedule != "* * * * *":
        return ok(f"pg_cron {version} runs the upkeep: {schedule}")
    number = tuple(int(part) for part in version.split("-")[0].split("."))
    if number < (1, 5):
        return ok(f"pg_cron {version} runs the upkeep once a minute: 1.5 knows seconds")
    return warn(
        f"pg_cron {version} runs the upkeep once a minute only",
        "run `notifyq init` again: this version knows seconds",
        Fix(installs=True),
    )


async def _me(look: Look) -> str:
    return str(await look.value("select current_user"))


CHECKS = {
    "cron": check_cron,
    "upkeep": check_upkeep,
    "schedules": check_schedules,
    "backlog": check_backlog,
    "workers": check_workers,
}
