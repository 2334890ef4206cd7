"""Actions on all messages that match: their number first, then steps that a user can stop."""

import time
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.operations.dashboard.searching import NAMES, conditions_of, position_of
from notifyq.operations.dashboard.view import View
from notifyq.operations.masks import redacted
from notifyq.operations.monitor import (
    FREE,
    Act,
    Conditions,
    audited_conditions,
    clock,
    search,
    step,
)

_MOST_COUNTED = 10_000
_STEP = 500
_SECONDS = 3.0
"""How long one request continues with steps before it shows its progress."""
_DEAD = ("dead", "failed", "rejected", "lock_expired")

_TEXTS = {
    Act.RETRY: (
        "Retry",
        "retried",
        "Each is published again once, with all of its attempts, the oldest first. Dead events are "
        "delivered to their subscriber again.",
    ),
    Act.DELETE: (
        "Delete",
        "deleted",
        "They are permanently removed from the archive, with the history of their attempts.",
    ),
    Act.CANCEL: ("Cancel", "cancelled", "They are rejected. Messages that a worker has stay."),
    Act.RUN_NOW: ("Run now", "made due", "Scheduled messages are due at once."),
    Act.MOVE: (
        "Move",
        "moved",
        "They keep their ids. Those that the other queue would not accept stay.",
    ),
    Act.AMEND: ("Change", "changed", "Their priority is set."),
}
"""The button, what was done, and what the action does."""


async def act_on_matching(view: View, act: Act) -> Response:
    """Show how many messages match, or act on them in steps once that is confirmed."""
    fields = {name: view.form.get(name, "") for name in (*NAMES, "like") if view.form.get(name)}
    kind = "live" if act.is_live else "dead"
    if fields.get("state", kind) not in (("live", *FREE) if act.is_live else _DEAD):
        raise HTTPException(400, f"this is for {kind} messages that no worker has")
    if act.is_live and (fields.get("like") or fields.get("subscriber")):
        raise HTTPException(400, "live messages are not chosen by an error or a subscriber")
    conditions = await conditions_of(view, fields)
    args, more = _arguments(view, act)
    if not view.is_confirmed:
        return await _confirm(view, act, conditions, fields, more)
    if conditions.until is None:
        raise HTTPException(400, "until is missing")
    return await _run(view, act, conditions, fields, args, more)


async def _run(
    view: View,
    act: Act,
    conditions: Conditions,
    fields: dict[str, str],
    args: tuple[Any, ...],
    more: dict[str, Any],
) -> Response:
    """Do steps for some seconds, and show how far they came."""
    done, skipped, total, entry = (
        view.integer(view.form.get(name, "0"), name)
        for name in ("done", "skipped", "total", "entry")
    )
    why = view.form.get("why", "")
    position = position_of(view.form.get("position", ""))
    details = {"until": conditions.until, **audited_conditions(fields, view.masks), **more}
    subject = f"those like {fields['like']}" if fields.get("like") else "those found"
    action = f"{'message' if act.is_live else 'dead'}.{act.name.lower()}"
    fallback = "messages" if act.is_live else "dead"
    deadline = time.monotonic() + _SECONDS
    while True:
        async with view.acting(action, subject, entry=entry or None, **details) as running:
            one = await step(
                running.connection, act, conditions, *args, quantity=_STEP, position=position
            )
            running.note(found=one.found, done=one.done)
        done, skipped, position = done + one.done, skipped + one.found - one.done, one.position
        entry = running.entry or 0
        if one.refusals:
            why = redacted(one.refusals[0], view.masks, None) or ""
        text = _summary(act, done, skipped, why)
        if position is None:
            return view.back(text, fallback=fallback)
        if time.monotonic() > deadline:
            break
    now = {"done": done, "skipped": skipped, "total": total, "entry": entry, "why": why}
    return view.render(
        "progress.html",
        title="Working …",
        text=text,
        done=done + skipped,
        total=total,
        fallback=fallback,
        fields=fields | more | now | {"position": position},
    )


def _arguments(view: View, act: Act) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an action, and those that the form has repeated."""
    match act:
        case Act.CANCEL:
            return (False, False, None, view.actor), {}
        case Act.MOVE:
            to = view.form.get("to", "").strip()
            return (to,), {"to": to}
        case Act.AMEND:
            priority = view.integer(view.form.get("priority", "").strip(), "priority")
            return (priority,), {"priority": priority}
        case _:
            return (), {}


async def _confirm(
    view: View, act: Act, conditions: Conditions, fields: dict[str, str], more: dict[str, Any]
) -> Response:
    """Show how many messages match; what is published, or fails, from now on is left out."""
    now = await clock(view.database)
    until = min(now, conditions.until) if conditions.until else now
    conditions = replace(conditions, until=until)
    kind, count = "live", Act.COUNT_LIVE
    if not act.is_live:
        kind, count = "dead", Act.COUNT
    states = [("scheduled",) if act is Act.RUN_NOW else FREE] if act.is_live else []
    counted = await step(view.database, count, conditions, *states, quantity=_MOST_COUNTED)
    if not counted.found and counted.position is None:
        return view.back(error=f"No {kind} message matches any more. Nothing was done.")
    if conditions.fingerprint is not None:
        # The latest message represents the group: it is deleted last.
        newest = await search(
            view.database, replace(conditions, state=conditions.state or "dead"), quantity=1
        )
        if newest.messages:
            fields["like"] = str(newest.messages[0].id)
    many = f"{counted.found:,}" if counted.position is None else f"{counted.found:,} or more"
    shown = {name: fields[name] for name in ("queue", "subscriber", "type") if name in fields}
    where = ", ".join(f"{name} {text}" for name, text in (shown | more).items())
    verb, _, effect = _TEXTS[act]
    later = "are published" if act.is_live else "fail"
    button = f"{verb} {many}"
    return view.confirm(
        f"{verb} {many} {kind} {'message' if many == '1' else 'messages'}?",
        [
            f"These are all that match{f' ({where})' if where else ''}; messages that {later} from "
            "now on are left out.",
            effect,
        ],
        button=button,
        fields=fields | more | {"until": until.isoformat(), "total": counted.found},
        is_dangerous=act in {Act.DELETE, Act.CANCEL},
    )


def _summary(act: Act, done: int, skipped: int, why: str) -> str:
    kind = "live" if act.is_live else "dead"
    text = f"{done:,} {kind} {'message was' if done == 1 else 'messages were'} {_TEXTS[act][1]}."
    if skipped:
        text += f" {skipped:,} {'was' if skipped == 1 else 'were'} not: "
        text += why or (
            "they were claimed or changed meanwhile"
            if act.is_live
            else "their queue or subscription does not exist any more, or another user was faster"
        )
        text += "."
    return text
