"""Dead messages, grouped by their errors, and actions on many of them."""

import asyncio
from functools import partial

import asyncpg
from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.errors import InvalidArgumentError
from notifyq.models.payload import without_envelope
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.matching import act_on_matching
from notifyq.operations.dashboard.searching import conditions_of, position_of, problem_of
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.masks import redacted
from notifyq.operations.monitor import Act, DeadGroup, DeadGroups, dead_groups

section = Section("dead", "Dead", key="d")

_FILTERS = ("queue", "subscriber", "type", "since", "until")
_FEW = 5000


@section.page("/dead", "dead")
async def dead(view: View) -> Response:
    """The groups, the largest first."""
    given = {name: view.query(name) for name in _FILTERS}
    status, problem, found = 200, "", DeadGroups((), 0, None)
    try:
        conditions = await conditions_of(view, given)
        position = position_of(view.query("position"))
        found = await dead_groups(view.database, conditions, position=position)
    except (HTTPException, InvalidArgumentError, asyncpg.DataError) as error:
        status, problem = problem_of(error)
    return view.render(
        "dead.html",
        status=status,
        problem=problem,
        title="Dead messages",
        given=given,
        fields={name: text for name, text in given.items() if text},
        groups=await asyncio.gather(*(_shown(view, it) for it in found.groups)),
        scanned=found.scanned,
        position=found.position,
        following=view.here(position=str(found.position)) if found.position else "",
        # Grouping many messages is slow and not repeated automatically.
        is_live=not problem and not view.query("position") and found.scanned < _FEW,
    )


async def _shown(view: View, group: DeadGroup) -> tuple[DeadGroup, str, str]:
    """A group, and its fingerprint and last error without masked values."""
    documents: tuple[str | None, ...] = (None,)
    if not view.masks.are_none:
        rows = await view.database.fetch(statements.FINISHED, group.last_id)
        documents = (rows[0]["message"], rows[0]["headers"]) if rows else (None,)
    return (
        group,
        redacted(group.fingerprint, view.masks, *documents) or "",
        without_envelope(redacted(group.sample, view.masks, *documents) or ""),
    )


section.action("/dead/retry", "retry_dead")(partial(act_on_matching, act=Act.RETRY))
section.action("/dead/discard", "discard_dead")(partial(act_on_matching, act=Act.DELETE))
