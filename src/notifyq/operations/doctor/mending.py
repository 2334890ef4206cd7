"""Mend what checks have found, where that is safe, and look again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq import schema
from notifyq.database.pool import connect, explaining
from notifyq.operations import monitor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from notifyq.operations.doctor.finding import Finding


def steps(findings: Iterable[Finding]) -> list[str]:
    """What `mend` would do, each step once, in its order."""
    fixes = [it.fix for it in findings if it.fix is not None]
    statements = dict.fromkeys(it for fix in fixes for it in fix.statements)
    return [*statements, *(["notifyq init"] if any(fix.installs for fix in fixes) else [])]


async def mend(
    dsn: str, findings: Iterable[Finding], *, origin: str = "doctor"
) -> AsyncIterator[str]:
    """Do what mends the findings and yield each step that is done, each with a row in the audit.

    Raises as the server does where the user may not do it; the steps before are done then.
    """
    todo = steps(findings)
    if not todo:
        return
    done: list[str] = []
    connection = await connect(dsn, name="notifyq doctor")
    try:
        with explaining(dsn):
            for step in todo:
                if step == "notifyq init":
                    await schema.install(connection)
                else:
                    await connection.execute(step)
                # After it, not with it: a vacuum has a transaction of its own, and where the audit
                # itself is broken this must not stand in the way of what mends it.
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
