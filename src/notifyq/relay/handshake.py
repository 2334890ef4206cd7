"""Two databases that meet: who they are, and whether one still has what it got from the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.queues.admin import Admin
from notifyq.relay.target import Target

if TYPE_CHECKING:
    from datetime import timedelta

    from notifyq.database.pool import Database


async def introduce(
    source: Database,
    target: Database,
    remember: timedelta,
    *,
    part: str = "",
    accept_restored: bool,
) -> tuple[tuple[str, str], Target]:
    """Return the names of target and source, and the target to send to.

    `part` of the source has receipts of its own. Raises LostReceiptsError where the target was
    restored to an earlier state, unless that is accepted.
    """
    for database in (source, target):
        await Admin(database).check_schema()
    name = f"{await source.value(sql.RELAY_SOURCE)} {part}".strip()
    other: str = await target.value(sql.RELAY_TARGET)
    if accept_restored:
        await source.value(sql.RELAY_FORGET, other)
    sender = Target(target, name, remember)
    marks = await source.fetch(sql.RELAY_MARKS, other, name, remember * 0.9)
    await sender.check(row[0] for row in marks)
    return (other, name), sender
