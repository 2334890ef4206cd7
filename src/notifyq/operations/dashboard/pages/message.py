"""One message: what it says, what became of it, and what can be done about it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from notifyq.database import sql
from notifyq.models.message import Attempt, columns
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.timeline import timeline
from notifyq.operations.masks import HIDDEN, redacted
from notifyq.operations.monitor import relatives

if TYPE_CHECKING:
    from notifyq.operations.dashboard.view import View

section = Section("message")

_SHOWN = 50_000
"""Characters of a payload that a page shows; the rest is in the download."""


async def _find(view: View, message_id: int) -> dict[str, Any]:
    # The archive first and last: a message may move between two looks.
    for statement in (statements.FINISHED, statements.MESSAGE, statements.FINISHED):
        if rows := await view.database.fetch(statement, message_id):
            return columns(rows[0])
    raise HTTPException(
        404, f"there is no message {message_id}: the archive does not keep it, or it never was"
    )


@section.page("/messages/{id:id}", "message")
async def message(view: View) -> Response:
    """Payload, attempts, timeline and result of one message."""
    id_ = view.integer(str(view.request.path_params["id"]))
    row = await _find(view, id_)
    found, attempts = await asyncio.gather(
        relatives(view.database, id_), view.database.fetch(sql.ATTEMPTS, id_)
    )
    tries = [Attempt.from_row(it) for it in attempts]
    documents = (row["message"], row["headers"])
    return view.render(
        "message.html",
        title=f"Message {id_}",
        row=row,
        state="blocked" if row["blockers"] is not None else row["state"],
        is_live=row["archived_at"] is None,
        is_dead=row["archived_at"] is not None and row["state"] != "success",
        retried=next((it for it in found if it.kind == "retried_as"), None),
        payload=_shown(view, row["message"]),
        headers=_shown(view, row["headers"]),
        result=_shown(view, row["result"]),
        details=redacted(row["details"], view.masks, *documents),
        attempts=[
            (
                it,
                redacted(it.details, view.masks, *documents),
                redacted(it.traceback, view.masks, *documents),
            )
            for it in tries
        ],
        relatives=found,
        events=timeline(row, tries, found),
    )


def _shown(view: View, text: str | None) -> tuple[str, bool] | None:
    """A JSON text to be shown, and whether it was cut off."""
    if text is None:
        return None
    written = view.masks.text(text) or ""
    return written[:_SHOWN], len(written) > _SHOWN


@section.page("/messages/{id:id}/payload", "message_payload")
async def payload(view: View) -> Response:
    """The payload as a file, with what is hidden hidden."""
    id_ = view.integer(str(view.request.path_params["id"]))
    rows = await view.database.fetch(statements.PAYLOAD, id_)
    if not rows:
        raise HTTPException(404, f"there is no message {id_}")
    # It may have many megabytes: meanwhile others are answered.
    text = await asyncio.to_thread(view.masks.text, rows[0][0])
    return Response(
        text or HIDDEN,
        media_type="application/json",
        headers={"content-disposition": f'attachment; filename="message-{id_}.json"'},
    )


def _id(view: View) -> int:
    return view.integer(view.form.get("id", ""))


async def _act(
    view: View, action: str, statement: str, *args: Any, done: str, lost: str
) -> Response:
    """Do something to one message; `lost` is said where somebody else was first."""
    changed = await view.change(f"message.{action}", _id(view), statement, *args)
    return view.back(done) if changed else view.back(error=lost)


@section.action("/message/cancel", "cancel_message")
async def cancel(view: View) -> Response:
    """Archive a message that nobody handles yet as rejected."""
    return await _act(
        view, "cancel", sql.CANCEL, done=f"Cancelled message {_id(view)}.",
        lost=f"Message {_id(view)} was not cancelled: a worker has it by now, or it is finished.",
    )  # fmt: skip


@section.action("/message/run-now", "run_message_now")
async def run_now(view: View) -> Response:
    """Make a scheduled message due now."""
    return await _act(
        view, "run_now", statements.RUN_NOW, done=f"Message {_id(view)} is due now.",
        lost=f"Message {_id(view)} is not scheduled any more: nothing was changed.",
    )  # fmt: skip


@section.action("/message/unblock", "unblock_message")
async def unblock(view: View) -> Response:
    """Make a message due that waits for others."""
    return await _act(
        view, "unblock", sql.UNBLOCK,
        done=f"Message {_id(view)} waits for no other message any more.",
        lost=f"Message {_id(view)} waits for no other message: nothing was changed.",
    )  # fmt: skip


@section.action("/message/release", "release_message")
async def release(view: View) -> Response:
    """Take the lock from a worker, if it is the one that was seen."""
    id_, token = _id(view), view.integer(view.form.get("lock_token", ""), "lock_token")
    if not view.is_confirmed:
        return view.confirm(
            f"Take message {id_} from its worker?",
            [
                "It is handed out again at once, to any worker, and this attempt does not count.",
                "The worker that has it is not stopped: if it is still at work, the message is "
                "handled twice. Do this for workers that are gone and will not come back in time.",
            ],
            action=view.url("release_message"),
            button="Release",
            fields={"id": id_, "lock_token": token},
        )
    return await _act(
        view, "release", sql.RELEASE_MANY, [id_], [token],
        done=f"Message {id_} was released: it waits again.",
        lost=f"Message {id_} was not released: that lock is over, the worker has ended it or "
        "lost it.",
    )  # fmt: skip


@section.action("/message/retry", "retry_message")
async def retry(view: View) -> Response:
    """Publish a dead message again, once."""
    id_ = _id(view)
    again = None
    async with view.acting("dead.retry", id_) as act:
        again = await act.connection.fetchval(sql.DEAD_RETRY, [id_])
        act.details["as"] = again
    if again is None:
        return view.back(
            error=f"Message {id_} was not published again: somebody did so before, or it is gone."
        )
    return view.back(f"Published message {id_} again, as {again}.")


@section.action("/message/discard", "discard_message")
async def discard(view: View) -> Response:
    """Delete a dead message for good."""
    id_ = _id(view)
    if not view.is_confirmed:
        return view.confirm(
            f"Delete dead message {id_}?",
            ["It is removed from the archive for good, with the history of its attempts."],
            action=view.url("discard_message"),
            button="Delete",
            fields={"id": id_},
        )
    deleted = 0
    async with view.acting("dead.delete", id_) as act:
        deleted = await act.connection.fetchval(sql.DEAD_DELETE, [id_])
        act.details["deleted"] = deleted
    if not deleted:
        return view.back(error=f"Message {id_} was not deleted: it is gone, or not dead.")
    return view.redirect(view.url("dead"), f"Deleted dead message {id_}.")
