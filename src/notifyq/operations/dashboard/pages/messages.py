"""Messages: search among live and finished ones."""

from functools import partial

import asyncpg
from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.errors import InvalidArgumentError
from notifyq.models.payload import without_envelope
from notifyq.operations.dashboard.matching import act_on_matching
from notifyq.operations.dashboard.searching import NAMES, conditions_of, position_of, problem_of
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.masks import redacted
from notifyq.operations.monitor import FREE, Act, Conditions, Found, Page, search

section = Section("messages", "Messages", key="m")

STATES = (
    ("any", "Any state"),
    ("live", "Live: any"),
    ("waiting", "Waiting"),
    ("scheduled", "Scheduled"),
    ("blocked", "Blocked: runs after others"),
    ("locked", "Locked"),
    ("finished", "Finished: any"),
    ("success", "Success"),
    ("dead", "Dead, not retried"),
    ("failed", "Failed"),
    ("rejected", "Rejected"),
    ("lock_expired", "Lock expired"),
)
_DEAD = frozenset({"dead", "failed", "rejected", "lock_expired"})
_MORE = ("type", "key", "dedup_key", "worker", "subscriber", "error", "payload", "since", "until")


@section.page("/messages", "messages")
async def messages(view: View) -> Response:
    """The messages that match the conditions in the address."""
    given = {name: view.query(name) for name in (*NAMES, "like", "id")}
    position = view.query("position")
    status, problem = 200, ""
    conditions, page = Conditions(), Page((), None)
    try:
        if jump := given.pop("id").lstrip("#"):
            return view.redirect(view.url("message", id=view.integer(jump)))
        conditions = await conditions_of(view, given)
        page = await search(view.database, conditions, position=position_of(position))
    except (HTTPException, InvalidArgumentError, asyncpg.DataError) as error:
        # The form keeps the input, which the user can correct.
        status, problem = problem_of(error)
    fields = {name: text for name, text in given.items() if text and text != "any"}
    return view.render(
        "messages.html",
        status=status,
        problem=problem,
        jump=view.query("id"),
        title="Messages",
        states=STATES,
        given=given,
        read_as=conditions.payload if conditions.payload != given["payload"] else None,
        fingerprint=conditions.fingerprint if view.masks.are_none else None,
        is_open=any(given[name] for name in _MORE),
        found=[(it, _details(view, it)) for it in page.messages],
        fields=fields,
        is_dead=conditions.state in _DEAD,
        acts_on_live=conditions.state in ("live", *FREE) and not given["like"],
        position=page.position,
        following=view.here(position=str(page.position)) if page.position else "",
        # Slow searches are not repeated automatically.
        is_live=not problem and not position and fields.keys() <= {"state", "queue"},
    )


for _path, _name, _act in (
    ("/messages/cancel", "cancel_messages", Act.CANCEL),
    ("/messages/run-now", "run_messages_now", Act.RUN_NOW),
    ("/messages/move", "move_messages", Act.MOVE),
    ("/messages/amend", "amend_messages", Act.AMEND),
):
    section.action(_path, _name)(partial(act_on_matching, act=_act))


def _details(view: View, message: Found) -> str:
    """The most useful line of a message: its error, or else its payload."""
    if message.details:
        # The headers, which may be masked, are not known here, but on the page of the message.
        return without_envelope(redacted(message.details, view.masks, None) or "")
    return without_envelope(view.masks.text(message.message, indent=None) or "")
