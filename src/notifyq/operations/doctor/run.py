"""Runs all checks in their order, and applies fixes."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import replace

import asyncpg

from notifyq import schema
from notifyq.database.installs import ours
from notifyq.database.pool import connect, explained, explaining
from notifyq.database.retry import is_lost, is_misfit
from notifyq.errors import AccessDeniedError
from notifyq.operations import monitor
from notifyq.operations.doctor import (
    access,
    activity,
    drift,
    install,
    maintenance,
    server,
    storage,
    streams,
)
from notifyq.operations.doctor.finding import INSTALL, Context, Finding, fail, skipped

Check = Callable[[Context], Awaitable[Finding]]

CHECKS: dict[str, Check] = {
    name.removeprefix("check_").replace("_", "-"): check
    for module in (server, access, install, drift, storage, maintenance, streams, activity)
    for name, check in vars(module).items()
    if name.startswith("check_")
}
"""All checks by name, in their order: those of each module in the order of its functions."""

_RIGHTS = {
    **dict.fromkeys(
        ("autovacuum", "schema", "functions", "grants"),
        "one of the roles notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin",
    ),
    **dict.fromkeys(
        ("workers", "schedules", "subscribers", "lakes"), "notifyq_reader or notifyq_admin"
    ),
    **dict.fromkeys(
        ("tables", "partitions", "snapshots", "idle", "long", "locks", "install", "origin",
         "maintenance", "backlog", "segments", "forwards"),
        "notifyq_worker, notifyq_reader or notifyq_admin",
    ),
    "cron": "usage of schema cron",
}  # fmt: skip


async def examine(
    dsn: str, source: str = "--dsn", listen_dsn: str | None = None, only: Collection[str] = ()
) -> AsyncIterator[tuple[str, Finding]]:
    """Run the checks one after the other and yield the name and the finding of each.

    `source` names where the DSN comes from, `listen_dsn` where processes listen, and `only` the
    checks to run, all by default. Raises like `connect` if the server does not answer.
    """
    connection = await connect(dsn, name="notifyq doctor")
    try:
        with explaining(dsn):
            sees_all = await connection.fetchval(
                "select pg_has_role(current_user, 'pg_read_all_stats', 'usage')"
            )
            context = Context(connection, dsn, source, bool(sees_all), listen_dsn)
            for name, check in CHECKS.items():
                if not only or name in only:
                    yield name, await _run(name, check, context)
    finally:
        await connection.close(timeout=5)


async def _run(name: str, check: Check, context: Context) -> Finding:
    found = await _examined(name, check, context)
    what, advice = (ours(context.connection, it) for it in (found.found, found.advice))
    return replace(found, found=what, advice=advice)


async def _examined(name: str, check: Check, context: Context) -> Finding:
    try:
        return await check(context)
    except (asyncpg.InsufficientPrivilegeError, AccessDeniedError):
        right = _RIGHTS.get(name, "a right that this user lacks")
        return skipped("this user lacks the right to check this", f"needs {right}")
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        return skipped(
            "a pooler mixes up prepared statements", "see `notifyq doctor --only pooler`"
        )
    except asyncpg.InvalidSchemaNameError:
        return fail("schema messages is not installed", "run `notifyq init`")
    except asyncpg.PostgresError as error:
        if is_lost(error):
            raise
        advice = "run `notifyq migrate`" if is_misfit(error) else "see the log of the server"
        return fail(str(explained(error, context.dsn) or error), advice)


def steps(findings: Iterable[Finding]) -> list[str]:
    """What `apply_fixes` does, each step once, in its order."""
    todo = dict.fromkeys(step for it in findings for step in it.fix or ())
    return sorted(todo, key=lambda step: step == INSTALL)


async def apply_fixes(
    dsn: str, findings: Iterable[Finding], *, origin: str = "doctor"
) -> AsyncIterator[str]:
    """Fix the findings and yield each finished step; each has a row in the audit.

    Raises the error of the server if the user lacks a right; earlier steps stay done.
    """
    todo = steps(findings)
    if not todo:
        return
    done: list[str] = []
    connection = await connect(dsn, name="notifyq doctor")
    try:
        with explaining(dsn):
            for step in todo:
                if step == INSTALL:
                    await schema.install(connection)
                else:
                    await connection.execute(step)
                # Audited after the step: vacuum cannot run in the same transaction, and a broken
                # audit must not prevent its own repair.
                done.append(step)
                if await monitor.may_note(connection):
                    for it in done:
                        await monitor.note(
                            connection, "doctor.fix", it, actor=monitor.login(), origin=origin
                        )
                    done.clear()
                yield step
    finally:
        await connection.close(timeout=5)
