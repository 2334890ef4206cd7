"""Dead messages, by what their errors have in common; and what is done to many of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg
from starlette.exceptions import HTTPException

from notifyq.errors import InvalidArgumentError
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.searching import NAMES, conditions_of, place_of, problem_of
from notifyq.operations.dashboard.section import Section
from notifyq.operations.masks import redacted
from notifyq.operations.monitor import (
    Act,
    Conditions,
    DeadGroups,
    clock,
    dead_groups,
    masked_details,
    search,
    step,
)

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View
    from notifyq.operations.monitor import DeadGroup

section = Section("dead", "Dead", key="d")

_FILTERS = ("queue", "subscriber", "type", "since", "until")
_MOST_COUNTED = 10_000
_FEW = 5000
_STEP = 500
_SECONDS = 3.0
"""How long one answer to a form goes on with steps; then the page says how far it is."""
_STATES = frozenset({"dead", "failed", "rejected", "lock_expired"})


@section.page("/dead", "dead")
async def dead(view: View) -> Response:
    """The groups, the largest first."""
    given = {name: view.query(name) for name in _FILTERS}
    status, problem, found = 200, "", DeadGroups((), 0, None)
    try:
        conditions = await conditions_of(view, given)
        place = place_of(view, view.query("place"))
        found = await dead_groups(view.database, conditions, place=place)
    except (HTTPException, InvalidArgumentError, asyncpg.DataError) as error:
        status, problem = problem_of(error)
    fields = {name: text for name, text in given.items() if text}
    return view.render(
        "dead.html",
        status=status,
        problem=problem,
        title="Dead messages",
        given=given,
        fields=fields,
        groups=await asyncio.gather(*(_shown(view, it) for it in found.groups)),
        looked_at=found.looked_at,
        place=found.place,
        following=view.here(place=str(found.place)) if found.place else "",
        # Where these are many, they are not grouped again and again.
        is_live=not problem and not view.query("place") and found.looked_at < _FEW,
    )


async def _shown(view: View, group: DeadGroup) -> tuple[DeadGroup, str, str]:
    """A group with what may be seen of its fingerprint and of its last error."""
    sample = group.sample or ""
    if view.masks.are_none:
        return group, group.fingerprint, sample
    documents: tuple[str | None, ...] = (None,)
    if group.last_id is not None:
        rows = await view.database.fetch(statements.FINISHED, group.last_id)
        documents = (rows[0]["message"], rows[0]["headers"]) if rows else (None,)
    return (
        group,
        redacted(group.fingerprint, view.masks, *documents) or "",
        redacted(sample, view.masks, *documents) or "",
    )


@section.action("/dead/retry", "retry_dead")
async def retry(view: View) -> Response:
    """Publish all dead messages again that match."""
    return await _go_on(view, Act.RETRY)


@section.action("/dead/discard", "discard_dead")
async def discard(view: View) -> Response:
    """Delete all dead messages for good that match."""
    return await _go_on(view, Act.DELETE)


async def _go_on(view: View, act: Act) -> Response:
    fields = {name: view.form.get(name, "") for name in (*NAMES, "like") if view.form.get(name)}
    if fields.get("state", "dead") not in _STATES:
        raise HTTPException(400, "only dead messages can be retried or deleted")
    conditions = await conditions_of(view, fields)
    if not view.is_confirmed:
        return await _ask(view, act, conditions, fields)
    if conditions.until is None:
        raise HTTPException(400, "until is missing")
    done = view.integer(view.form.get("done", "0"), "done")
    passed = view.integer(view.form.get("passed", "0"), "passed")
    place = place_of(view, view.form.get("place", ""))
    said = {k: v for k, v in fields.items() if k != "payload"}
    about = {"until": conditions.until, **masked_details(said, view.masks)}
    action = "dead.retry" if act is Act.RETRY else "dead.delete"
    subject = fields.get("like") and f"those like {fields['like']}"
    deadline = time.monotonic() + _SECONDS
    while True:
        async with view.acting(action, subject or "those found", **about) as under_way:
            one = await step(
                under_way.connection, act, conditions, quantity=_STEP, place=place
            )  # fmt: skip
            under_way.details |= {"found": one.found, "done": one.done}
        done, passed, place = done + one.done, passed + one.found - one.done, one.place
        if place is None or time.monotonic() > deadline:
            break
    if place is None:
        return view.back(_summary(act, done, passed), fallback="dead")
    return view.render(
        "progress.html",
        title="Working …",
        action=view.url("retry_dead" if act is Act.RETRY else "discard_dead"),
        text=_summary(act, done, passed),
        done=done + passed,
        total=view.integer(view.form.get("total", "0"), "total"),
        fields=fields | {"done": done, "passed": passed, "place": place,
                         "total": view.form.get("total", "0")},
    )  # fmt: skip


async def _ask(view: View, act: Act, conditions: Conditions, fields: dict[str, str]) -> Response:
    """Say how many it is about, and until when: what dies from now on is left."""
    now = await clock(view.database)
    until = min(now, conditions.until) if conditions.until else now
    conditions = replace(conditions, until=until)
    count = await step(view.database, Act.COUNT, conditions, quantity=_MOST_COUNTED)
    if not count.found and count.place is None:
        return view.back(error="No dead message is left that matches: nothing was done.")
    if conditions.fingerprint is not None:
        # The latest of the group stands for it: it is the last to go where they are deleted.
        newest = await search(
            view.database, replace(conditions, state=conditions.state or "dead"), quantity=1
        )
        if newest.messages:
            fields["like"] = str(newest.messages[0].id)
    many = f"{count.found:,}" if count.place is None else f"{count.found:,} or more"
    noun = "message" if many == "1" else "messages"
    where = ", ".join(f"{name} {fields[name]}" for name in _FILTERS[:3] if name in fields)
    lines = [
        f"That is all that match{f' ({where})' if where else ''} and died before now; what dies "
        "later is left.",
        "Each is published again once, with all of its attempts, the oldest first. Dead events are "
        "delivered again to their subscriber."
        if act is Act.RETRY
        else "They are removed from the archive for good, with the history of their attempts.",
    ]
    return view.confirm(
        f"Publish {many} dead {noun} again?" if act is Act.RETRY else f"Delete {many} dead {noun}?",
        lines,
        action=view.url("retry_dead" if act is Act.RETRY else "discard_dead"),
        button=f"Retry {many}" if act is Act.RETRY else f"Delete {many}",
        fields=fields | {"until": until.isoformat(), "total": count.found},
        is_dangerous=act is Act.DELETE,
    )


def _summary(act: Act, done: int, passed: int) -> str:
    what = "published again" if act is Act.RETRY else "deleted"
    text = f"{done:,} dead messages were {what}." if done != 1 else f"1 dead message was {what}."
    if passed:
        why = "their queue or subscription is gone, or somebody else was first"
        text += f" {passed:,} {'was' if passed == 1 else 'were'} not: {why}."
    return text
