"""Check of lakes: whether the archive still gets into each, as days are kept until it does."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations.doctor.finding import fail, lasting, ok, warn

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

_LONG = timedelta(days=2)


async def check_lakes(look: Look) -> Finding:
    """Whether a lake can be exported into, and is."""
    rows = await look.connection.fetch(sql.LAKES)
    for row in rows:
        forget = f"forget it with `select messages.forget_lake({row['id']})`: days are kept for it"
        if row["obstacle"]:
            return fail(
                f"nothing can be exported into {row['location']}: {row['obstacle']}",
                f"begin another lake, and {forget}",
            )
        if row["idle"] > _LONG:
            return warn(
                f"nothing was exported into {row['location']} for {lasting(row['idle'])}",
                f"run `notifyq spark export --lake {shlex.quote(row['location'])}`, or {forget}",
            )
    return ok(f"{len(rows)} lakes")


CHECKS = {"lakes": check_lakes}
