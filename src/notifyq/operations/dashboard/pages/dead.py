"""Dead messages, grouped by their errors, and actions on many of them."""

import asyncio
import time
from dataclasses import replace

import asyncpg
from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.errors import InvalidArgumentError
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.searching import NAMES, conditions_of, position_of, problem_of
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.masks import redacted
from notifyq.operations.monitor import (
    Act,
    Conditions,
    DeadGroup,
    DeadGroups,
    clock,
    dead_groups,
    masked_details,
    search,
    step,
)

section = Section("dead", "Dead", key="d")

_FILTERS = ("queue", "subscriber", "type", "since", "until")
_MOST_COUNTED = 10_000
_FEW = 5000
_STEP = 500
_SECONDS = 3.0
"""How long one request continues with steps before it shows its progress."""
_STATES = frozenset({"dead", "failed", "rejected", "lock_expired"})
_EFFECTS = {
    Act.RETRY: "Each is published again once, with all of its attempts, the oldest first. Dead "
    "events are delivered to their subscriber again.",
    Act.DELETE: "They are permanently removed from the archive, with the history of their "
    "attempts.",
}


@section.page("/dead", "dead")
async def dead(view: View) -> Response:
    """The groups, the largest first."""
    given = {name: view.query(name) for name in _FILTERS}
    status, problem, found = 200, "", DeadGroups((), 0, None)
    try:
        conditions = await conditions_of(view, given)
        position = position_of(view, view.query("position"))
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
        redacted(group.sample, view.masks, *documents) or "",
    )


@section.action("/dead/retry", "retry_dead")
async def retry(view: View) -> Response:
    """Retry all dead messages that match."""
    return await _run(view, Act.RETRY)


@section.action("/dead/discard", "discard_dead")
async def discard(view: View) -> Response:
    """Delete all dead messages that match."""
    return await _run(view, Act.DELETE)


async def _run(view: View, act: Act) -> Response:
    fields = {name: view.form.get(name, "") for name in (*NAMES, "like") if view.form.get(name)}
    if fields.get("state", "dead") not in _STATES:
        raise HTTPException(400, "only dead messages can be retried or deleted")
    conditions = await conditions_of(view, fields)
    if not view.is_confirmed:
        return await _confirm(view, act, conditions, fields)
    if conditions.until is None:
        raise HTTPException(400, "until is missing")
    done, skipped, total = (
        view.integer(view.form.get(name, "0"), name) for name in ("done", "skipped", "total")
    )
    position = position_of(view, view.form.get("position", ""))
    given = {name: text for name, text in fields.items() if name != "payload"}
    details = {"until": conditions.until, **masked_details(given, view.masks)}
    subject = f"those like {fields['like']}" if fields.get("like") else "those found"
    deadline = time.monotonic() + _SECONDS
    while True:
        async with view.acting(f"dead.{act.name.lower()}", subject, **details) as running:
            one = await step(running.connection, act, conditions, quantity=_STEP, position=position)
            running.note(found=one.found, done=one.done)
        done, skipped, position = done + one.done, skipped + one.found - one.done, one.position
        if position is None:
            return view.back(_summary(act, done, skipped), fallback="dead")
        if time.monotonic() > deadline:
            break
    return view.render(
        "progress.html",
        title="Working …",
        text=_summary(act, done, skipped),
        done=done + skipped,
        total=total,
        fields=fields | {"done": done, "skipped": skipped, "position": position, "total": total},
    )


async def _confirm(
    view: View, act: Act, conditions: Conditions, fields: dict[str, str]
) -> Response:
    """Show how many messages match; messages that fail from now on are left out."""
    now = await clock(view.database)
    until = min(now, conditions.until) if conditions.until else now
    conditions = replace(conditions, until=until)
    count = await step(view.database, Act.COUNT, conditions, quantity=_MOST_COUNTED)
    if not count.found and count.position is None:
        return view.back(error="No dead message matches any more. Nothing was done.")
    if conditions.fingerprint is not None:
        # The latest message represents the group: it is deleted last.
        newest = await search(
            view.database, replace(conditions, state=conditions.state or "dead"), quantity=1
        )
        if newest.messages:
            fields["like"] = str(newest.messages[0].id)
    many = f"{count.found:,}" if count.position is None else f"{count.found:,} or more"
    where = ", ".join(f"{name} {fields[name]}" for name in _FILTERS[:3] if name in fields)
    button = f"{act.name.capitalize()} {many}"
    return view.confirm(
        f"{button} dead {'message' if many == '1' else 'messages'}?",
        [
            f"These are all that match{f' ({where})' if where else ''}; messages that fail from "
            "now on are left out.",
            _EFFECTS[act],
        ],
        button=button,
        fields=fields | {"until": until.isoformat(), "total": count.found},
        is_dangerous=act is Act.DELETE,
    )


def _summary(act: Act, done: int, skipped: int) -> str:
    what = "retried" if act is Act.RETRY else "deleted"
    text = f"{done:,} dead {'message was' if done == 1 else 'messages were'} {what}."
    if skipped:
        text += f" {skipped:,} {'was' if skipped == 1 else 'were'} not: their queue or subscription"
        text += " does not exist any more, or another user was faster."
    return text
