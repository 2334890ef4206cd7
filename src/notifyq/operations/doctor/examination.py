"""All checks in their order; one that cannot see what it needs says which right that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg

from notifyq.database.pool import connect, explained, explaining
from notifyq.database.retry import is_lost, is_misfit
from notifyq.errors import AccessDeniedError
from notifyq.operations.doctor import (
    access,
    activity,
    drift,
    install,
    lakes,
    server,
    storage,
    streams,
    tables,
    upkeep,
)
from notifyq.operations.doctor.finding import Look, fail, skipped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from notifyq.operations.doctor.finding import Finding

    Check = Callable[[Look], Awaitable[Finding]]

CHECKS: dict[str, Check] = {
    **server.CHECKS,
    **access.CHECKS,
    **install.CHECKS,
    **drift.CHECKS,
    **tables.CHECKS,
    **storage.CHECKS,
    **upkeep.CHECKS,
    **streams.CHECKS,
    **lakes.CHECKS,
    **activity.CHECKS,
}
"""Every check by the name that its line begins with."""

_ANY_ROLE = "one of the roles notifyq_publisher, notifyq_worker, notifyq_reader, notifyq_admin"
_LOOKING_ROLE = "notifyq_worker, notifyq_reader or notifyq_admin"
_RIGHTS = {
    "autovacuum": _ANY_ROLE,
    "schema": _ANY_ROLE,
    "functions": _ANY_ROLE,
    "grants": _ANY_ROLE,
    "tables": _LOOKING_ROLE,
    "partitions": _LOOKING_ROLE,
    "workers": "notifyq_reader or notifyq_admin",
    "snapshots": _LOOKING_ROLE,
    "idle": _LOOKING_ROLE,
    "long": _LOOKING_ROLE,
    "locks": _LOOKING_ROLE,
    "install": _LOOKING_ROLE,
    "origin": _LOOKING_ROLE,
    "upkeep": _LOOKING_ROLE,
    "schedules": "notifyq_reader or notifyq_admin",
    "backlog": _LOOKING_ROLE,
    "subscribers": "notifyq_reader or notifyq_admin",
    "segments": _LOOKING_ROLE,
    "forwards": _LOOKING_ROLE,
    "lakes": "notifyq_reader or notifyq_admin",
    "cron": "usage of schema cron",
}


async def examine(
    dsn: str, source: str = "--dsn", listen_dsn: str | None = None, only: Collection[str] = ()
) -> AsyncIterator[tuple[str, Finding]]:
    """Run the checks one after the other and yield the name and the finding of each.

    `source` says where the DSN is from, `listen_dsn` where the bell is expected, and `only` which
    checks are wanted, if not all. Raises as `connect` does where there is no server.
    """
    connection = await connect(dsn, name="notifyq doctor")
    try:
        with explaining(dsn):
            sees_all = await connection.fetchval(
                "select pg_has_role(current_user, 'pg_read_all_stats', 'usage')"
            )
            look = Look(connection, dsn, source, bool(sees_all), listen_dsn)
            for name, check in CHECKS.items():
                if only and name not in only:
                    continue
                yield name, await _found(name, check, look)
    finally:
        await connection.close(timeout=5)


async def _found(name: str, check: Check, look: Look) -> Finding:
    try:
        return await check(look)
    except (asyncpg.InsufficientPrivilegeError, AccessDeniedError):
        right = _RIGHTS.get(name, "a right that this user lacks")
        return skipped("this user may not look", f"needs {right}")
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        return skipped(
            "a pooler mixes up prepared statements", "see `notifyq doctor --only pooler`"
        )
    except asyncpg.InvalidSchemaNameError:
        return fail("schema messages is not installed", "run `notifyq init`")
    except asyncpg.PostgresError as error:
        if is_lost(error):
            raise
        advice = "run `notifyq migrate`" if is_misfit(error) else "see what the server says"
        return fail(str(explained(error, look.dsn) or error), advice)
