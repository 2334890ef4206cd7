"""Checks of maintenance, schedules, the backlog and the workers."""

import shlex
from collections.abc import Container
from datetime import UTC, datetime, timedelta

from notifyq.database import statements as sql
from notifyq.operations import monitor
from notifyq.operations.doctor.finding import INSTALL, Context, Finding, fail, ok, skipped, warn
from notifyq.operations.texts import span

_LATE = timedelta(minutes=2)
"""pg_cron up to 1.4 runs once a minute."""
_LONG_WAIT = timedelta(minutes=10)
_MAINTAIN = "select messages.maintain()"
_START = (
    "start `notifyq worker MODULE:APP`, or set pg_cron up with `notifyq init`; until then run "
    f"`{_MAINTAIN}`"
)
_ENTRY = "notifyq maintain"
_OTHER_ENTRIES = {
    "notifyq reap": "pg_cron reaps no lock and fires no schedule",
    "notifyq purge": "pg_cron keeps a row of each run forever",
}
"""What is amiss without each."""
_ACTIVATE = (
    "select cron.alter_job(j.jobid, active := true) from cron.job as j "
    "where j.jobname = 'notifyq maintain'"
)


async def check_cron(context: Context) -> Finding:
    """Whether maintenance runs while no worker is connected."""
    workers = await context.value(
        "select count(*) from pg_stat_activity as a "
        "where a.datname = current_database() and a.application_name = 'notifyq worker'"
    )
    version = await context.value(
        "select e.extversion from pg_extension as e where e.extname = 'pg_cron'"
    )
    if version is None:
        if workers:
            return ok(f"no pg_cron in this database: {workers} worker sessions do maintenance")
        return await _elsewhere(context)
    entries = {it.entry: it for it in await monitor.cron_entries(context.connection)}
    entry = entries.get(_ENTRY)
    if entry is None:
        if not await context.value("select has_schema_privilege('cron', 'usage')"):
            return skipped("this user lacks the right to check this", "needs usage of schema cron")
        return warn(
            f"pg_cron {version} has no entry `{_ENTRY}` that this user may see",
            "run `notifyq init` as a user of pg_cron; a superuser sees all entries",
            (INSTALL,),
        )
    runs_as = await context.row(
        "select exists (select from pg_roles as r where r.rolname = $1::text) as is_there, ("
        "select j.jobid from cron.job as j "
        "where j.jobname = $2 and j.username = $1 limit 1) as number",
        entry.user_name,
        _ENTRY,
    )
    if not runs_as["is_there"]:
        gone = f"select cron.unschedule({runs_as['number']})"
        return fail(
            f"the entry `{_ENTRY}` belongs to {entry.user_name}, a role that does not exist: it "
            "never runs",
            f"run `{gone}`, then `notifyq init`",
            (gone, INSTALL),
        )
    if not entry.is_active:
        return warn(f"the entry `{_ENTRY}` is inactive", _ACTIVATE, (_ACTIVATE,))
    return _ran(version, entry, entries)


def _missing(entries: Container[str]) -> Finding | None:
    for name, effect in _OTHER_ENTRIES.items():
        if name not in entries:
            return warn(
                f"there is no entry `{name}`: {effect}",
                "run `notifyq init` again",
                (INSTALL,),
            )
    return None


async def _elsewhere(context: Context) -> Finding:
    """Without worker and pg_cron in this database: pg_cron may be in another one."""
    found = "neither pg_cron in this database nor a worker"
    row = await context.row(
        # Null for users without the right to read all settings.
        "select (select s.setting from pg_settings as s "
        "where s.name = 'cron.database_name') as home, "
        "format('select cron.schedule_in_database(%L, %L, %L, %L)', "
        "'notifyq maintain ' || current_database(), '* * * * *', 'select messages.maintain()', "
        "current_database()) as statement"
    )
    if row["home"] is None:
        return warn(
            found,
            "start `notifyq worker MODULE:APP`, or set pg_cron up: otherwise expired locks stay",
        )
    return warn(
        f"{found}; pg_cron is in database {row['home']}",
        "start `notifyq worker MODULE:APP`, or check there that it maintains this database, or "
        f"run there `{row['statement']}`",
    )


def _ran(version: str, entry: monitor.CronEntry, entries: Container[str]) -> Finding:
    message = " ".join((entry.last_message or "").split())
    if entry.last_status == "failed":
        return fail(
            f"the last run of pg_cron failed: {message}",
            "see the page Install, section pg_cron: how it connects, and as which user",
        )
    age = timedelta(0)
    if entry.last_started_at is not None:
        age = datetime.now(UTC) - entry.last_started_at
    if age > 2 * _LATE:
        return warn(f"pg_cron ran {span(age)} ago", "check that its process is running")
    if entry.failed:
        return warn(
            f"{entry.failed} runs of pg_cron failed within an hour",
            "see cron.job_run_details for the error",
        )
    if missing := _missing(entries):
        return missing
    schedule = entry.schedule
    if schedule != "* * * * *":
        return ok(f"pg_cron {version} runs maintenance: {schedule}")
    number = tuple(int(part) for part in version.split("-")[0].split("."))
    if number < (1, 5):
        return ok(f"pg_cron {version} runs maintenance once a minute, the most before 1.5")
    return warn(
        f"pg_cron {version} runs maintenance once a minute only",
        "run `notifyq init` again: this version can run every few seconds",
        (INSTALL,),
    )


async def check_maintenance(context: Context) -> Finding:
    """Whether maintenance reaps expired locks and stages due messages."""
    row = await context.diagnosis()
    if row["failing"]:
        return fail(
            f"maintenance {'; '.join(row['failing'])}",
            f"remove the cause, then run `{_MAINTAIN}`: what fails pauses for a minute at most",
        )
    late: timedelta | None = max(
        filter(None, (row["expired_for"], row["overdue_for"])), default=None
    )
    if late is not None and late > _LATE:
        return fail(
            f"an expired lock or a due message has waited for {span(late)}",
            _START,
            (_MAINTAIN,),
        )
    return ok(
        "no expired lock and no due message waits" if late is None else f"{span(late)} behind"
    )


async def check_schedules(context: Context) -> Finding:
    """Whether schedules fire."""
    schedules = await context.connection.fetch(sql.SCHEDULE_INFO, None)
    for schedule in schedules:
        if schedule["failed_at"] is not None and schedule["enabled"]:
            return fail(
                f"schedule {schedule['name']} cannot fire: {schedule['last_error']}",
                "repair the cause, or disable it with "
                f"`notifyq schedules disable {shlex.quote(schedule['name'])}`",
            )
    now = await context.value("select clock_timestamp()")
    late = [now - it["next_at"] for it in schedules if it["enabled"] and it["next_at"] < now]
    if late and max(late) > _LATE:
        return fail(
            f"a schedule is due for {span(max(late))} and has not fired",
            _START,
            (_MAINTAIN,),
        )
    count = sum(it["enabled"] for it in schedules)
    return ok(f"{count} of {len(schedules)} schedules are enabled" if schedules else "none")


async def check_backlog(context: Context) -> Finding:
    """How long messages wait."""
    row = await context.diagnosis()
    waiting: timedelta | None = row["waiting_for"]
    if waiting is None:
        return ok("no message waits")
    found = f"the next message has waited for {span(waiting)}"
    if waiting > _LONG_WAIT:
        queues = [it for it in await monitor.backlog(context.connection) if not it.paused]
        since = {it.queue: it.oldest_waiting_at for it in queues if it.oldest_waiting_at}
        where = f" in queue {min(since, key=since.__getitem__)}" if since else ""
        return warn(found + where, "it has too few workers or none: `notifyq top` shows which")
    return ok(found)


async def check_workers(context: Context) -> Finding:
    """Whether each queue with waiting messages has a worker, and all workers report."""
    workers = await monitor.workers(context.connection)
    if unresponsive := [it.name for it in workers if it.state == "unresponsive"]:
        return warn(
            f"worker {unresponsive[0]} is connected, but has not reported for 30 seconds or more",
            "find out whether its process is stopped or its machine overloaded",
        )
    there = [it for it in workers if it.state in {"working", "idle", "stopping", "blocked"}]
    for queue in await monitor.backlog(context.connection, most=1000):
        if queue.is_unserved and queue.oldest_waiting_at is not None:
            waits = datetime.now(UTC) - queue.oldest_waiting_at
            return await _unserved(context, queue.queue, waits)
    versions = sorted({it.version for it in there if it.version})
    if len(versions) > 1:
        return ok(f"{len(there)} workers, of versions {', '.join(versions)}")
    return ok(f"{len(there)} workers")


async def _unserved(context: Context, queue: str, waits: timedelta) -> Finding:
    found = f"no worker serves queue {queue}, where messages wait for {span(waits)}"
    advice = (
        f"start a worker: `notifyq worker MODULE:APP --queue {shlex.quote(queue)}`. MODULE is your "
        "file without .py, APP the name of the App in it, as in mail:app"
    )
    for schedule in await context.connection.fetch(sql.SCHEDULE_INFO, None):
        if schedule["queue"] == queue and schedule["enabled"]:
            name = schedule["name"]
            return warn(
                f"{found}; schedule {name!r} publishes more",
                f"{advice}. Or stop the schedule: `notifyq schedules disable {shlex.quote(name)}`. "
                "Added again with --when-unserved skip, it publishes only while a worker serves "
                "the queue",
            )
    return warn(found, advice)
